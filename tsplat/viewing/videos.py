"""Frames and videos of a model: color, depth or alpha along a list of cameras."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..arguments import check_choice
from ..config import Backend
from ..errors import ArgumentError, MissingExtraError
from ..scene.capture.views import Color
from ..scene.gaussians import Gaussians
from ..scene.images import to_bytes, write_png
from ..support.extras import require
from ..support.files import atomic_write, output_folder
from .colormaps import Limits, color_depths, depth_limits
from .rendering import render_views
from .trajectories import Camera

Show = Literal["rgb", "depth", "alpha"]
SHOWS = ("rgb", "depth", "alpha")
VIDEO_SUFFIXES = (".mp4", ".webm", ".gif")


@torch.no_grad()
def render_frames(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    show: Show = "rgb",
    background: Color = (0.0, 0.0, 0.0),
    backend: Backend = "auto",
) -> Iterator[Tensor]:
    """Renders one frame per camera, [H, W, 3] in [0, 1], lazily.

    Args:
        gaussians: On the device to render on.
        show: `"rgb"`; `"depth"`, inverse expected depth through a colormap, bright is near, with the limits of the
            first frame that shows anything; or `"alpha"`.
        background: RGB in [0, 1]; used by `"rgb"`.

    Raises:
        ArgumentError: Unknown `show`; or as :func:`tsplat.rasterization`.
    """
    check_choice("show", show, SHOWS)
    device = gaussians.means.device
    limits: Limits | None = None
    for camera in cameras:
        images, alphas, _ = render_views(
            gaussians,
            camera.viewmat.to(device)[None],
            camera.K.to(device)[None],
            camera.width,
            camera.height,
            camera_model=camera.camera_model,
            background=background,
            render_mode="ED" if show == "depth" else "RGB",
            backend=backend,
        )
        image, alphas = images[0], alphas[0]
        if show == "alpha":
            image = alphas.expand(-1, -1, 3)
        elif show == "depth":
            depths, coverage = image[..., 0], alphas[..., 0]
            limits = limits or depth_limits(depths, coverage)
            image = color_depths(depths, coverage, limits)
        yield image.clamp(0, 1)


def write_frames(path: str | os.PathLike[str], frames: Iterable[Tensor], fps: int = 30) -> None:
    """Writes frames [H, W, 3] in [0, 1] as a video, `.mp4`, `.webm` or `.gif`, or as PNGs into a folder.

    Videos are written atomically. Frames of `.mp4` and `.webm` are cropped to an even width and height.

    Args:
        path: A file name with one of these suffixes, or a folder name without a suffix; folders are created.
        fps: Frames per second.

    Raises:
        ArgumentError: Another suffix, or no frames for a video.
        MissingExtraError: imageio-ffmpeg is not installed (`.mp4` and `.webm`), or Pillow is not (the others).
        FileError: The folder is not writable.
        OSError: The file cannot be written.

    Example::

        import torch
        from tsplat.scene import Gaussians, intrinsics
        from tsplat.viewing import Camera, orbit_around, render_frames, write_frames

        gaussians = Gaussians.from_points(torch.rand(100, 3) - 0.5, torch.rand(100, 3))
        viewmats = orbit_around(eye=(0, -1, -3), target=(0, 0, 0), up=(0, -1, 0), frames=8)
        cameras = [Camera(viewmat, intrinsics(80, 60, fov=50), 80, 60) for viewmat in viewmats]
        write_frames("orbit.gif", render_frames(gaussians, cameras), fps=10)
    """
    path = Path(path)
    check_video_path(path)
    with output_folder(path.parent if path.suffix else path):
        if path.suffix == ".gif":
            write_gif(path, frames, round(1000 / fps))
        elif path.suffix:
            _write_video(path, frames, fps)
        else:
            for i, frame in enumerate(frames):
                write_png(path / f"{i:05d}.png", frame)


def check_video_path(path: Path) -> None:
    """Checks that :func:`write_frames` supports a path.

    Raises:
        ArgumentError: The suffix is not one of `VIDEO_SUFFIXES`, nor empty.
        MissingExtraError: The package that writes this format is not installed.
    """
    if path.suffix and path.suffix not in VIDEO_SUFFIXES:
        suffixes = ", ".join(VIDEO_SUFFIXES)
        raise ArgumentError(f"{path}: expected a file name ending in {suffixes}, or a folder name without a suffix")
    if path.suffix in (".mp4", ".webm"):
        require("PIL", "imageio_ffmpeg")
        import imageio_ffmpeg

        try:
            imageio_ffmpeg.get_ffmpeg_exe()
        except RuntimeError as error:
            raise MissingExtraError(f"{path.suffix} videos need ffmpeg, which imageio-ffmpeg does not find") from error
    else:
        require("PIL")


def write_gif(path: str | os.PathLike[str], frames: Iterable[Tensor], milliseconds: int = 60) -> None:
    """Writes frames [H, W, 3] in [0, 1] as an endless GIF, atomically.

    All frames share one palette, so that colors do not flicker.

    Args:
        milliseconds: Duration of a frame.

    Raises:
        ArgumentError: There are no frames.
        MissingExtraError: Pillow is not installed.
        OSError: The file cannot be written.
    """
    require("PIL")
    from PIL import Image

    arrays = [to_bytes(frame).cpu().numpy() for frame in frames]
    if not arrays:
        raise ArgumentError("frames: expected at least one, found none")
    palette = Image.fromarray(np.concatenate(arrays[:: max(1, len(arrays) // 8)])).quantize(256)
    first, *others = (Image.fromarray(array).quantize(palette=palette) for array in arrays)
    with atomic_write(path) as file:
        first.save(file, "GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)


def _write_video(path: Path, frames: Iterable[Tensor], fps: int) -> None:
    import imageio_ffmpeg

    writer = None
    # ffmpeg needs a path of its own to write to.
    with atomic_write(path) as file:
        temporary = Path(f"{file.name}{path.suffix}")
        try:
            for frame in frames:
                # Most codecs require an even width and height.
                image = to_bytes(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]).cpu().contiguous()
                if writer is None:
                    size = (image.shape[1], image.shape[0])
                    writer = imageio_ffmpeg.write_frames(str(temporary), size, fps=fps, macro_block_size=1, quality=8)
                    writer.send(None)
                writer.send(image.numpy())
            if writer is None:
                raise ArgumentError("frames: expected at least one, found none")
            writer.close()
            file.write(temporary.read_bytes())
        finally:
            temporary.unlink(missing_ok=True)
