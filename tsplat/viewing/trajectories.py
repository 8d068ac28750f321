"""Camera trajectories: orbits, spirals, paths along the cameras of a run, and cameras from a file."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError, FileError
from ..precision import fp32, fp64
from ..scalars import check_choice, check_size
from ..scene.cameras import Camera, look_at, viewmat_from_pose
from ..scene.capture.local_frame import LocalFrame, move_pose
from ..scene.capture.views import View
from ..scene.rotation import decompose_similarity
from ..support.extras import require
from ..support.reading import read_json

TURNS, SWING, DIVE = 2, 0.2, 0.1
"""Constants of spirals: number of turns, and amplitudes sideways and forward relative to the target's distance."""

SMOOTHING, GAP = 0.02, 4.0
"""Constants of paths along cameras: standard deviation of the smoothing, as a fraction of the number of cameras; and
maximum distance from the last to the first camera of a closed path, in units of the median step."""


def orbit_around(eye: Sequence[float], target: Sequence[float], up: Sequence[float], frames: int) -> Tensor:
    """Returns camera poses on a circle around a target, starting at `eye`.

    Args:
        eye: [3] first camera position, world frame.
        target: [3] point at the image center, world frame.
        up: [3] axis of the circle, world frame; up in the images.
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
    """Returns camera poses on a closed spiral around `eye` that look at `target`.

    This is the usual trajectory for forward-facing scenes (Mildenhall et al., 2019, "Local light field fusion").

    Args:
        eye: [3] center of the spiral, world frame.
        target, up, frames: As for :func:`orbit_around`.
        inside: Cameras whose bounding box, along the axes of a camera at `eye`, limits the spiral, which is shifted and
            reduced to fit; empty for no limit.

    Returns:
        World-to-camera matrices [frames, 4, 4].

    Raises:
        ArgumentError: As :func:`tsplat.scene.look_at`, or `frames` is not positive.
    """
    check_size("frames", frames)
    viewmat = look_at(eye, target, up).double()
    start = fp64(eye)
    distance = float((start - fp64(target)).norm())
    radii, middle = distance * fp32([SWING, SWING, DIVE]).double(), fp64([0.0, 0.0, 0.0])
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
    """Returns camera poses on a closed path along cameras, with their viewing directions.

    Positions, viewing directions and up directions are weighted means over consecutive cameras, so the path stays
    within the convex hull of their positions. If the last camera is far from the first, the path returns the same way.

    Args:
        cameras: In the order of the path.
        frames: Number of cameras of the path.

    Returns:
        World-to-camera matrices [frames, 4, 4].

    Raises:
        ArgumentError: There are no cameras, `frames` is not positive, or consecutive cameras look in opposite
            directions.
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
    # The distance of the target has the scale of the positions, to preserve precision in any unit.
    ahead = positions.abs().amax()
    targets = eyes + forward * (ahead if ahead > 0 else torch.ones_like(ahead))
    return torch.stack([look_at(*values) for values in zip(eyes.tolist(), targets.tolist(), up.tolist())])


def read_cameras(path: str | os.PathLike[str], world: Tensor | None = None) -> list[Camera]:
    """Reads the `cameras.json` of a run or of Inria's code: a list with width, height, position, rotation, fx and fy.

    Positions and rotations (a list of rows) are camera to world; cameras look along +z, with y down. Runs also write
    the principal point `cx` and `cy` (by default, the image center), `camera_model`, the four or eight coefficients
    `distortion` of a lens with distortion, the depth `near` of the near plane, and `split`: train or test.

    Args:
        path: The file.
        world: [4, 4] fp64, similarity transform from the frame of the file to that of the returned cameras; None for
            the identity. It is applied in double precision, which UTM coordinates require.

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
    K = fp32([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    distortion = None
    if "distortion" in camera:
        distortion = fp32(camera["distortion"])
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
    """Returns the cameras of views, in the order of their names, converted from the local `frame` to the model's."""
    cameras = [view.camera for view in train] + [dataclasses.replace(view.camera, is_test=True) for view in test]
    cameras = cameras if frame is None else [frame.camera_of_model(camera.to("cpu")) for camera in cameras]
    return sorted(cameras, key=lambda camera: camera.name)


def describe_cameras(
    train: Sequence[View], test: Sequence[View], frame: LocalFrame | None = None
) -> list[dict[str, Any]]:
    """Returns the cameras of views as JSON values for :func:`read_cameras`, in the order of the views' names.

    The cameras are converted from the local `frame` of the views to the frame of the model.
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
"""Number of cameras by which a closed path is extended before the first and after the last camera."""


def interpolate(
    cameras: Sequence[Camera], frames: int, *, closed: bool = False, seconds: Sequence[float] | None = None
) -> list[Camera]:
    """Returns `frames` cameras, at equal time steps, on a smooth path through the given cameras.

    Positions and focal lengths follow cubic splines, rotations a spline with continuous angular acceleration. The size
    and the camera model are those of the first camera. A closed path returns to the first camera after the last frame.
    `seconds` has, for each camera, the time from the previous one, or for the first, from the last; only ratios matter,
    and None means equal times. Raises ArgumentError for fewer than two cameras, and for invalid numbers.
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

    # With enough keys added at both ends, the splines are periodic.
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
    return fp32([[camera.width], [camera.height], [1]])


def choose_camera(cameras: Sequence[Camera], view: str) -> Camera:
    """Returns the camera with this index, or with this photograph's name, with or without folder and suffix."""
    named = [camera for camera in cameras if camera.name == view]
    named = named or [camera for camera in cameras if view in (Path(camera.name).name, Path(camera.name).stem)]
    if len(named) == 1:
        return named[0]
    if not named and view.isascii() and view.isdecimal() and int(view) < len(cameras):
        return cameras[int(view)]
    problem = f"{len(named):,} views have the name" if named else "there is no view"
    raise ArgumentError(
        f"--view: {problem} {view!r}; expected an index from 0 to {len(cameras) - 1} or a name such as "
        f"{cameras[0].name!r}"
    )
