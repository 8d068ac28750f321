"""Camera trajectories: orbits, spirals, paths along the cameras of a run, and cameras read from a file."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arguments import check_choice, check_size
from ..errors import ArgumentError, FileError
from ..precision import fp64
from ..scene.cameras import Camera, look_at, viewmat_from_pose
from ..scene.capture.local_frame import LocalFrame, move_pose
from ..scene.capture.views import View
from ..scene.rotation import decompose_similarity
from ..support.extras import require
from ..support.reading import read_json

TURNS, SWING, DIVE = 2, 0.2, 0.1
"""Spirals: number of turns, and the amplitudes sideways and forward relative to the distance of the target."""

SMOOTHING, GAP = 0.02, 4.0
"""Paths along cameras: width of the means relative to the number of cameras, and the largest distance of the last from
the first camera of a closed path, in median steps."""


def orbit_around(eye: Sequence[float], target: Sequence[float], up: Sequence[float], frames: int) -> Tensor:
    """Returns the cameras of one turn around a target, starting at `eye`.

    Args:
        eye: [3] first camera position, world frame.
        target: [3] point at the image center, world frame.
        up: [3] axis of the turn, world frame; up in the images.
        frames: Number of cameras.

    Returns:
        World-to-camera matrices [frames, 4, 4].

    Raises:
        ArgumentError: As :func:`tsplat.scene.look_at`, or `frames` is not positive.
    """
    check_size("frames", frames)
    axis, middle = (fp64(v) for v in (up, target))
    axis = axis / axis.norm().clamp_min(1e-12)
    offset = fp64(eye) - middle
    along = (offset @ axis) * axis
    across = offset - along
    side = axis.cross(across, -1)
    angles = [2 * math.pi * i / frames for i in range(frames)]
    return torch.stack(
        [look_at((middle + along + math.cos(a) * across + math.sin(a) * side).tolist(), target, up) for a in angles]
    )


def spiral_at(
    eye: Sequence[float], target: Sequence[float], up: Sequence[float], frames: int, *, inside: Sequence[Camera] = ()
) -> Tensor:
    """Returns the cameras of a closed spiral around `eye` that looks at `target`.

    The usual trajectory for forward-facing scenes (Mildenhall et al., 2019, "Local light field fusion").

    Args:
        eye: [3] center of the spiral, world frame.
        target, up, frames: As for :func:`orbit_around`.
        inside: Cameras whose extent, along the axes of a camera at `eye`, limits the spiral, which is moved into it;
            none for no limit.

    Returns:
        World-to-camera matrices [frames, 4, 4].

    Raises:
        ArgumentError: As :func:`tsplat.scene.look_at`, or `frames` is not positive.
    """
    check_size("frames", frames)
    viewmat = look_at(eye, target, up).double()
    start = fp64(eye)
    distance = float((start - fp64(target)).norm())
    radii, middle = (
        distance * torch.tensor([SWING, SWING, DIVE], dtype=torch.float32, device="cpu").double(),
        torch.zeros(3, dtype=torch.float64, device="cpu"),
    )
    if inside:
        offsets = (torch.stack([camera.position for camera in inside]) - start) @ viewmat[:3, :3].T
        low, high = offsets.amin(0), offsets.amax(0)
        radii = torch.minimum(radii, (high - low) / 2)
        middle = torch.minimum(torch.maximum(middle, low + radii), high - radii)
    matrices = []
    for i in range(frames):
        a = 2 * math.pi * i / frames
        swing = fp64([math.cos(TURNS * a), math.sin(TURNS * a), math.sin(a)])
        offset = (middle + radii * swing) @ viewmat[:3, :3]
        matrices.append(look_at((start + offset).tolist(), target, up))
    return torch.stack(matrices)


def path_along(cameras: Sequence[Camera], frames: int) -> Tensor:
    """Returns the cameras of a closed path along others, which looks where they look.

    Positions, viewing directions and up directions are means of those of cameras that follow each other, so that the
    path stays within their convex hull. If the last camera is far from the first, the path returns the same way.

    Args:
        cameras: In the order of the path.
        frames: Number of cameras of the path.

    Returns:
        World-to-camera matrices [frames, 4, 4].

    Raises:
        ArgumentError: There are no cameras, `frames` is not positive, or cameras that follow each other look in
            opposite directions.
    """
    check_size("frames", frames)
    if not cameras:
        raise ArgumentError("cameras: expected at least one, found none")
    positions = torch.stack([camera.position.double() for camera in cameras])
    axes = torch.stack([camera.viewmat[:3, :3].double() for camera in cameras])
    steps = (positions[1:] - positions[:-1]).norm(dim=-1)
    if len(cameras) > 2 and (positions[-1] - positions[0]).norm() > GAP * steps.median():
        positions, axes = (torch.cat([values, values.flip(0)[1:-1]]) for values in (positions, axes))
    n = len(positions)
    times = torch.arange(frames, dtype=torch.float64, device="cpu")[:, None] * n / frames
    apart = (times - torch.arange(n, device="cpu") + n / 2).remainder(n) - n / 2
    weights = torch.softmax(-0.5 * (apart / max(1.0, SMOOTHING * n)) ** 2, -1)
    eyes, forward, up = (weights @ values for values in (positions, axes[:, 2], -axes[:, 1]))
    forward = torch.nn.functional.normalize(forward, dim=-1)
    # A target at the scale of the positions keeps its digits, and no unit has a meaning.
    ahead = positions.abs().amax()
    targets = eyes + forward * (ahead if ahead > 0 else torch.ones_like(ahead))
    return torch.stack([look_at(*values) for values in zip(eyes.tolist(), targets.tolist(), up.tolist())])


def read_cameras(path: str | os.PathLike[str], world: Tensor | None = None) -> list[Camera]:
    """Reads the `cameras.json` of a run or of Inria's code: a list with width, height, position, rotation, fx and fy.

    Positions and rotations (a list of rows) are camera to world; cameras look along +z, with y down. Runs add the
    principal point `cx` and `cy`, which otherwise is the center, `camera_model`, `distortion`, the four or eight
    coefficients of a lens, if there are any, `near`, the depth of the near plane, and `split`: train or test.

    Args:
        path: The file.
        world: [4, 4] fp64, the similarity transform from the frame of the file to that of the cameras; None for the
            same. It is applied in double precision, which UTM coordinates need.

    Raises:
        FileError: The file cannot be read, or does not have this form.
    """
    path = Path(path)
    try:
        cameras = [_camera(camera, world) for camera in read_json(path)]
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, LookupError, TypeError, RuntimeError, OverflowError) as error:
        raise FileError(
            f"{path}: expected a list of cameras with width, height, position, rotation, fx and fy ({str(error)[:120]})"
        ) from error
    if not cameras:
        raise FileError(f"{path}: contains no cameras")
    return cameras


def _camera(camera: dict[str, Any], world: Tensor | None) -> Camera:
    width, height = camera["width"], camera["height"]
    check_size("width", width)
    check_size("height", height)
    rotation = fp64(camera["rotation"]).reshape(3, 3)
    position = fp64(camera["position"]).reshape(3)
    fx, fy = float(camera["fx"]), float(camera["fy"])
    cx, cy = float(camera.get("cx", width / 2)), float(camera.get("cy", height / 2))
    model = camera.get("camera_model", "pinhole")
    check_choice("camera_model", model, ("pinhole", "fisheye", "equirectangular"))
    pose, scale = viewmat_from_pose(rotation, position), 1.0
    if world is not None:
        pose, scale = move_pose(pose, world, position), decompose_similarity(world)[0]
    viewmat = pose.float()
    K = torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=torch.float32, device="cpu")
    distortion = None
    if "distortion" in camera:
        distortion = torch.tensor(camera["distortion"], dtype=torch.float32, device="cpu").float()
        if list(distortion.shape) not in ([4], [8] if model == "pinhole" else [4]):
            raise ValueError(f"expected distortion of 4 numbers, or 8 of a pinhole lens, found {len(distortion)}")
    numbers = [K.flatten(), viewmat.flatten(), *([] if distortion is None else [distortion])]
    if not (torch.cat(numbers).isfinite().all() and K.diag().min() > 0):
        raise ValueError("expected positive focal lengths and finite numbers, in fp32")
    near = None if camera.get("near") is None else scale * float(camera["near"])
    if near is not None and not 0 <= near < math.inf:
        raise ValueError(f"expected a near plane of at least 0, found {near}")
    name = str(camera.get("img_name", ""))
    return Camera(viewmat, K, width, height, model, name, camera.get("split") == "test", distortion, near=near)


def cameras_of_views(train: Sequence[View], test: Sequence[View], frame: LocalFrame | None = None) -> list[Camera]:
    """Returns the cameras of views, in the order of the views' names; in the frame of the model of a local `frame`."""
    cameras = [view.camera for view in train] + [dataclasses.replace(view.camera, is_test=True) for view in test]
    cameras = cameras if frame is None else [frame.camera_of_model(camera.to("cpu")) for camera in cameras]
    return sorted(cameras, key=lambda camera: camera.name)


def describe_cameras(
    train: Sequence[View], test: Sequence[View], frame: LocalFrame | None = None
) -> list[dict[str, Any]]:
    """Returns the cameras of views as JSON values for :func:`read_cameras`, in the order of the views' names.

    If the views are in a local `frame`, the cameras are in that of its model.
    """
    return [describe_camera(camera, i) for i, camera in enumerate(cameras_of_views(train, test, frame))]


def describe_camera(camera: Camera, index: int) -> dict[str, Any]:
    """Returns a camera as JSON values, see :func:`describe_cameras`."""
    viewmat, K = camera.viewmat.double().cpu(), camera.K.double().cpu()
    return {
        "id": index,
        "img_name": camera.name,
        "split": "test" if camera.is_test else "train",
        "width": camera.width,
        "height": camera.height,
        "position": camera.position.tolist(),
        "rotation": viewmat[:3, :3].T.tolist(),
        "fy": K[1, 1].item(),
        "fx": K[0, 0].item(),
        "cx": K[0, 2].item(),
        "cy": K[1, 2].item(),
        "camera_model": camera.model,
        **({} if camera.distortion is None else {"distortion": camera.distortion.tolist()}),
        **({} if camera.near is None else {"near": camera.near}),
    }


WRAPPED = 12
"""Number of cameras before the first and behind the last one by which a closed path is continued."""


def interpolate(
    cameras: Sequence[Camera], frames: int, *, closed: bool = False, seconds: Sequence[float] | None = None
) -> list[Camera]:
    """Returns as many cameras as `frames`, at equal times, on a smooth path from the first to the last of some cameras.

    Positions and focal lengths follow cubic splines, rotations a spline with continuous angular acceleration. The size
    and the camera model are those of the first camera, which follows the last frame if the path is closed. `seconds`
    are the times to each camera from the one before it, to the first one from the last, of which only the ratios count;
    all are equal if None. Raises ArgumentError for fewer than two cameras, and for invalid numbers.
    """
    check_size("frames", frames)
    n = len(cameras)
    if n < 2:
        raise ArgumentError(f"cameras: expected at least two keyframes, found {n}")
    steps = np.ones(n) if seconds is None else np.array(seconds, np.float64)
    if steps.shape != (n,) or not ((steps > 0) & (steps < math.inf)).all():
        raise ArgumentError(f"seconds: expected {n} positive numbers, found {seconds}")
    require("scipy")
    from scipy.interpolate import CubicSpline
    from scipy.spatial.transform import Rotation, RotationSpline

    # Splines over enough keys before and behind are those of a circle.
    places = np.arange(-WRAPPED, n + WRAPPED) if closed else np.arange(n)
    keys = steps[places % n].cumsum()
    keys -= keys[places == 0]
    times = np.linspace(0, steps.sum() if closed else keys[-1], frames, endpoint=not closed)
    first, cameras = cameras[0], [cameras[int(place) % n] for place in places]
    relative = torch.stack([camera.K.double() / _size(camera) for camera in cameras])
    intrinsics = torch.from_numpy(CubicSpline(keys, relative)(times)) * _size(first)
    positions = torch.from_numpy(CubicSpline(keys, torch.stack([camera.position for camera in cameras]))(times))
    matrices = torch.stack([camera.viewmat[:3, :3].double() for camera in cameras]).numpy()
    rotations = torch.from_numpy(RotationSpline(keys, Rotation.from_matrix(matrices))(times).as_matrix())
    path = []
    for rotation, position, K in zip(rotations, positions, intrinsics):
        viewmat = viewmat_from_pose(rotation.T, position)
        path.append(Camera(viewmat.float(), K.float(), first.width, first.height, first.model, near=first.near))
    return path


def _size(camera: Camera) -> Tensor:
    return torch.tensor([[camera.width], [camera.height], [1]], dtype=torch.float32, device="cpu")


def choose_camera(cameras: Sequence[Camera], view: str) -> Camera:
    """Returns the camera with an index, or with the name of a photograph, with or without folder and suffix."""
    named = [camera for camera in cameras if camera.name == view]
    named = named or [camera for camera in cameras if view in (Path(camera.name).name, Path(camera.name).stem)]
    if len(named) == 1:
        return named[0]
    if not named and view.isascii() and view.isdecimal() and int(view) < len(cameras):
        return cameras[int(view)]
    problem = f"{len(named)} views have the name" if named else "there is no view"
    raise ArgumentError(
        f"--view: {problem} {view!r}; expected an index from 0 to {len(cameras) - 1} or a name such as "
        f"{cameras[0].name!r}"
    )
