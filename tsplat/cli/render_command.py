"""``tsplat render``: renders an image or a video of a model."""

import contextlib
import sys
import time
from argparse import Namespace

import torch
from torch import Tensor

from .. import ArgumentError
from ..scene import Camera, Gaussians, intrinsics
from ..scene.capture.local_frame import move_points
from ..scene.extents import with_near_planes
from ..scene.gaussians import drop_invalid
from ..scene.images import write_jpeg, write_png
from ..support.extras import require
from ..support.files import output_folder, staged_folder
from ..support.progress import track
from ..viewing import path_along, read_cameras, render_frames, write_frames
from ..viewing.devices import pick_device, reserve_threads
from ..viewing.framing import guess_up, place_cameras
from ..viewing.panoramas import level_panoramas, panorama_metadata, panorama_size
from ..viewing.run_cameras import complete_framing, find_background, find_cameras, mean_up, vertical_fov
from ..viewing.run_files import check_output
from ..viewing.slabs import render_large_frames
from ..viewing.trajectories import choose_camera
from ..viewing.videos import VIDEO_SUFFIXES, check_video_path, frame_name, frame_size, map_writer, stale_frames
from .large_models import FRAMING, open_large
from .shared_steps import georeference_of, open_model_of, options_of, refuse

PLACEMENT = ("eye", "look_at", "up")
"""Options that place cameras."""

WRITERS = {".png": write_png, ".jpg": write_jpeg, ".jpeg": write_jpeg}
"""Image writers by file suffix."""


def render(arguments: Namespace) -> int:
    """Runs ``tsplat render``."""
    out = arguments.out
    if arguments.trajectory is None and arguments.view is None and out.suffix in VIDEO_SUFFIXES:
        # The path follows the cameras of a run, unless options place cameras.
        is_placed = any(getattr(arguments, name) is not None for name in PLACEMENT)
        has_path = not is_placed and any(not camera.is_test for camera in find_cameras(arguments.model))
        arguments.trajectory = "path" if has_path else "orbit"
    trajectory = arguments.trajectory
    # With a trajectory, check_video_path() checks the other packages as well.
    needed = {
        "PIL": trajectory is None,
        "rich": trajectory is not None and sys.stdout.isatty(),
        "matplotlib": arguments.show == "depth",
    }
    require(*[module for module, is_needed in needed.items() if is_needed])
    if arguments.view is not None:
        excluded = ("trajectory", *(("width", "height", "fov") if arguments.camera is None else ()), *PLACEMENT)
        refuse(arguments, excluded, "not with --view, which uses the camera and size of the view")
    if arguments.camera is not None:
        refuse(arguments, ("fov",), "not with --camera equirectangular, which shows everything")
        panorama_size(arguments.width, arguments.height)
    world = _move_placement(arguments)
    if trajectory is not None:
        check_video_path(out)
    elif out.suffix.lower() not in WRITERS:
        expected = "expected a file name ending in .png or .jpg"
        raise ArgumentError(f"--out: {expected}, found {str(out)!r}; videos end in .mp4")
    check_output(out, arguments.model)
    if arguments.maps:
        map_writer(out)  # raises if it has none
    start = time.perf_counter()
    device, _ = pick_device(arguments.backend)
    reserve_threads(device, arguments.backend)
    large = open_large(arguments, "render")
    gaussians = large.sample(FRAMING) if large is not None else drop_invalid(open_model_of(arguments), print)
    cameras = with_near_planes(_cameras(arguments, gaussians, world), gaussians.means)
    background = tuple(arguments.background or find_background(arguments.model) or (0.0, 0.0, 0.0))
    for camera in cameras if trajectory is not None else ():
        frame_size(out, camera.width, camera.height)  # before anything is rendered
    is_folder = trajectory is not None and not out.suffix
    with contextlib.ExitStack() as stack:
        if large is not None:
            stack.enter_context(large)
        target = out
        if is_folder:
            target = stack.enter_context(staged_folder(out, stale_frames))  # frames and maps together
        else:
            stack.enter_context(output_folder(out.parent))
        on_map = map_writer(target) if arguments.maps else None
        options = {"background": background, "on_map": on_map, **options_of(arguments, "show", "backend")}
        if large is None:
            frames = render_frames(gaussians.to(device), cameras, **options)
        else:
            frames = render_large_frames(large, cameras, out.parent, device=device, **options)
        if trajectory is None:
            WRITERS[out.suffix.lower()](out, next(frames), panorama_metadata(cameras[0]))
        else:
            write_frames(target, track(frames, len(cameras), "rendering"), arguments.fps)
    # A folder may contain other files, which do not count.
    paths = [out / frame_name(i) for i in range(len(cameras))] if out.is_dir() else [out]
    width, height = frame_size(out, cameras[0].width, cameras[0].height)
    what = "" if trajectory is None else f"{len(cameras):,} frames of "
    print(
        f"wrote {out}: {what}{width}×{height} pixels, "
        f"{sum(path.stat().st_size for path in paths) / 1e6:.2f} MB, in {time.perf_counter() - start:.1f} s"
    )
    return 0


def _move_placement(arguments: Namespace) -> Tensor | None:
    """Moves the options of :data:`PLACEMENT` from the frame of the files to that of the model.

    Returns the transform [4, 4] fp64; None if they are in the frame of the model.
    """
    georeference = georeference_of(arguments)
    if arguments.frame == "local" or georeference is None:
        return None
    world = georeference.world
    for name in PLACEMENT:
        values = getattr(arguments, name)
        if values is not None:
            vector = torch.tensor(values, dtype=torch.float64, device="cpu")
            moved = world[:3, :3] @ vector if name == "up" else move_points(vector[None], world)[0]
            setattr(arguments, name, moved.tolist())
    return world


def _cameras(arguments: Namespace, gaussians: Gaussians, world: Tensor | None) -> list[Camera]:
    """Returns the cameras that ``tsplat render`` renders."""
    cameras = _placed_cameras(arguments, gaussians, world)
    if arguments.camera is None:
        return cameras
    training = [camera for camera in find_cameras(arguments.model) if not camera.is_test]
    up = arguments.up or (mean_up(training) if training else guess_up(gaussians))
    return level_panoramas(cameras, *panorama_size(arguments.width, arguments.height), up)


def _placed_cameras(arguments: Namespace, gaussians: Gaussians, world: Tensor | None) -> list[Camera]:
    """Returns the cameras that the options choose, before they are replaced by panoramas."""
    trajectory = arguments.trajectory
    if arguments.view is None and trajectory not in (None, "path", "orbit", "spiral"):
        return read_cameras(trajectory, world)
    cameras = find_cameras(arguments.model)
    if arguments.view is not None:
        if not cameras:
            raise ArgumentError(f"--view: {arguments.model} has no cameras.json of a run")
        return [choose_camera(cameras, arguments.view)]
    size = {name: getattr(arguments, name) for name in ("width", "height", "fov")}
    if trajectory is None and cameras and not any(getattr(arguments, name) for name in PLACEMENT):
        # The view of the first photograph, in its size unless options give another.
        first = cameras[0]
        if all(value is None for value in size.values()):
            return [first]
        width, height = size["width"] or 800, size["height"] or 600
        fov = vertical_fov([first]) if size["fov"] is None else size["fov"]
        return [Camera(first.viewmat, intrinsics(width, height, fov), width, height)]
    framing = complete_framing(
        gaussians, cameras, fov=arguments.fov, eye=arguments.eye, target=arguments.look_at, up=arguments.up
    )
    width, height = arguments.width or 800, arguments.height or 600
    training = [camera for camera in cameras if not camera.is_test]
    if trajectory == "path":
        if not training:
            raise ArgumentError(f"--trajectory: {arguments.model} has no cameras.json of a run; use orbit")
        refuse(arguments, PLACEMENT, "not with a path along cameras; use --trajectory orbit")
        K = intrinsics(width, height, framing["fov"])
        return [Camera(viewmat, K, width, height) for viewmat in path_along(training, arguments.frames)]
    inside = [] if arguments.eye else training  # a given position may be anywhere
    along = options_of(arguments, "trajectory", "frames")
    return place_cameras(gaussians, width, height, **framing, **along, inside=inside)
