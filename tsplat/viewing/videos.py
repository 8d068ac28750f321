"""Frames and videos of a model: color, depth, normals or alpha for a list of cameras, and maps of their values."""

import errno
import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..config import Backend
from ..errors import ArgumentError, MissingExtraError
from ..rendering import render_views
from ..scalars import check_choice
from ..scene.cameras import Camera
from ..scene.culling import CulledModel
from ..scene.extents import with_near_planes
from ..scene.gaussians import Gaussians
from ..scene.images import to_bytes, write_png
from ..scene.option_types import Color
from ..support.extras import require, require_ffmpeg
from ..support.files import atomic_write, output_folder, staged_folder
from .appearances import as_normals
from .colormaps import Limits, color_depths, depth_limits

Quantity = Literal["rgb", "depth", "normals", "alpha"]
OnMap = Callable[[int, Tensor], object]
CODECS = {".mp4": ("-c:v", "libx264", "-crf", "10"), ".webm": ("-c:v", "libvpx-vp9", "-b:v", "0", "-crf", "24")}
"""Options of ffmpeg for codec and quality, by file suffix: H.264 and VP9."""

VIDEO_SUFFIXES = (*CODECS, ".gif")


@torch.no_grad()
def render_frames(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    show: Quantity = "rgb",
    background: Color = (0.0, 0.0, 0.0),
    backend: Backend = "auto",
    on_map: OnMap | None = None,
) -> Iterator[Tensor]:
    """Renders one frame per camera, [H, W, 3] in [0, 1], lazily.

    Args:
        gaussians: The model, on the device to render on.
        cameras: One camera per frame. Cameras without a near plane get one that is computed from the Gaussians.
        show: `"rgb"`; `"depth"`, inverse expected depth through a colormap, where bright is near, with the limits of
            the first frame that is not empty; `"normals"`, (n + 1) / 2 for the shortest axis n of each Gaussian, in the
            world frame and towards the camera; or `"alpha"`.
        background: RGB in [0, 1]; used by `"rgb"`.
        on_map: Called with the index and the values of each frame: expected depth [H, W, 1] along z, in world units;
            unit normals [H, W, 3]; alpha [H, W, 1]; or color [H, W, 3]. Depths and normals are 0 where alpha is 0.

    Raises:
        ArgumentError: Unknown `show`; or as :func:`tsplat.rasterization`.
        MissingExtraError: Matplotlib, which provides the colormap of depths, is not installed.
    """
    check_choice("show", show, get_args(Quantity))
    limits: Limits | None = None
    cameras = with_near_planes(cameras, gaussians.means)
    model = CulledModel(gaussians) if len(cameras) > 1 else None  # for one image, culling does not pay off
    for i, camera in enumerate(cameras):
        near: dict[str, Any] = {} if camera.near is None else {"near": camera.near}
        seen = gaussians if model is None else model.seen_by(camera, **near)
        images, alphas, _ = render_views(
            as_normals(seen, camera.position) if show == "normals" else seen,
            [camera],
            background=background if show == "rgb" else (0.0, 0.0, 0.0),
            render_mode="ED" if show == "depth" else "RGB",
            backend=backend,
        )
        values = image = images[0]
        if show == "alpha":
            values, image = alphas[0], alphas[0].expand(-1, -1, 3)
        elif show == "normals":
            values = torch.nn.functional.normalize(2 * image - alphas[0], dim=-1)  # colors are (n + 1) / 2
        elif show == "depth":
            depths, coverage = image[..., 0], alphas[0, ..., 0]
            limits = limits or depth_limits(depths, coverage)
            image = color_depths(depths, coverage, limits)
        if on_map is not None:
            on_map(i, values)
        yield image.clamp(0, 1)


def map_writer(path: str | os.PathLike[str]) -> OnMap:
    """Returns an `on_map` that writes float32 NumPy files beside an image or into a folder of frames, atomically."""
    path = Path(path)
    if path.suffix in VIDEO_SUFFIXES:
        raise ArgumentError(f"--maps: not for a video; write frames to a folder, such as {path.stem}")

    def write(i: int, values: Tensor) -> None:
        with atomic_write(path.with_suffix(".npy") if path.suffix else path / frame_name(i, ".npy")) as file:
            np.save(file, values.float().cpu().numpy())

    return write


def write_frames(path: str | os.PathLike[str], frames: Iterable[Tensor], fps: int = 30) -> None:
    """Writes frames [H, W, 3] in [0, 1] as a video, `.mp4`, `.webm` or `.gif`, or as PNGs into a folder.

    Videos are written atomically, and so are all frames of a folder together. Later frames of an earlier, longer call
    are removed from the folder. Frames of `.mp4` and `.webm` are cropped to an even width and height.

    Args:
        path: A file name with one of these suffixes, or a folder name without a suffix; folders are created.
        fps: Frames per second.

    Raises:
        ArgumentError: Another suffix, or no frames for a video.
        MissingExtraError: imageio-ffmpeg is not installed (`.mp4` and `.webm`), or Pillow is not (the others).
        FileError: The folder is not writable.
        OSError: The file cannot be written, or ffmpeg fails.

    Example::

        import torch
        from tsplat.scene import Camera, Gaussians, intrinsics
        from tsplat.viewing import orbit_around, render_frames, write_frames

        gaussians = Gaussians.from_points(torch.rand(100, 3) - 0.5, torch.rand(100, 3))
        poses = orbit_around(eye=(0, -1, -3), target=(0, 0, 0), up=(0, -1, 0), frames=8)
        cameras = [Camera(viewmat, intrinsics(80, 60, fov=50), 80, 60) for viewmat in poses]
        write_frames("orbit.gif", render_frames(gaussians, cameras), fps=10)
    """
    path = Path(path)
    check_video_path(path)
    if not path.suffix:
        with staged_folder(path, stale_frames) as folder:
            for i, frame in enumerate(frames):
                write_png(folder / frame_name(i), frame)
        return
    with output_folder(path.parent):
        if path.suffix == ".gif":
            write_gif(path, frames, round(1000 / fps))
        else:
            _write_video(path, frames, fps)


def frame_name(index: int, suffix: str = ".png") -> str:
    """Returns the file name of a frame, or of its map, in a folder."""
    return f"{index:05d}{suffix}"


def stale_frames(folder: Path, new: frozenset[str]) -> list[str]:
    """Returns the names of frames and maps of an earlier call whose indices follow those of the new frames."""
    stale: list[str] = []
    for i in itertools.count(sum(name.endswith(".png") for name in new)):
        left = [frame_name(i, suffix) for suffix in (".png", ".npy") if os.path.lexists(folder / frame_name(i, suffix))]
        if not left:
            break
        stale += left
    return stale


def frame_size(path: Path, width: int, height: int) -> tuple[int, int]:
    """Returns the width and height that :func:`write_frames` writes, as codecs require even sizes.

    Raises ArgumentError if frames are too small for a video.
    """
    if path.suffix not in CODECS:
        return width, height
    if min(width, height) < 2:
        raise ArgumentError(
            f"{path}: expected frames of at least 2×2 pixels for a {path.suffix} video, found {width}×{height}"
        )
    return width // 2 * 2, height // 2 * 2


def default_video() -> str:
    """Returns a name for a video: an MP4 if its encoder is installed, otherwise a GIF, which is much larger."""
    try:
        check_video_path(Path("video.mp4"))
    except MissingExtraError:
        return "video.gif"
    return "video.mp4"


def check_video_path(path: Path) -> None:
    """Raises ArgumentError unless :func:`write_frames` supports the suffix, and MissingExtraError if it cannot."""
    if path.suffix and path.suffix not in VIDEO_SUFFIXES:
        suffixes = ", ".join(VIDEO_SUFFIXES)
        raise ArgumentError(f"{path}: expected a file name ending in {suffixes}, or a folder name without a suffix")
    if path.suffix in (".mp4", ".webm"):
        require("PIL", "imageio_ffmpeg")
        require_ffmpeg(f"{path.suffix} videos")
    else:
        require("PIL")


def write_gif(path: str | os.PathLike[str], frames: Iterable[Tensor], milliseconds: int = 60) -> None:
    """Writes frames [H, W, 3] in [0, 1] as a looping GIF with one palette, atomically."""
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
    with atomic_write(path) as file, tempfile.TemporaryFile() as log:
        frames = iter(frames)
        first = next(frames, None)
        if first is None:
            raise ArgumentError("frames: expected at least one, found none")
        width, height = frame_size(path, first.shape[1], first.shape[0])
        command = _ffmpeg_command(file.name, path.suffix, width, height, fps)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log)
        assert process.stdin is not None
        try:
            for frame in itertools.chain([first], frames):
                process.stdin.write(to_bytes(frame[:height, :width]).cpu().contiguous().numpy().data)
        except BrokenPipeError:
            pass  # ffmpeg has failed; the reason is in the log
        except BaseException:
            process.kill()
            raise
        finally:
            process.communicate()  # closes its input, and waits until it ends
        if process.returncode:
            log.seek(0)
            lines = [line.partition("] ")[2] or line for line in log.read().decode(errors="replace").splitlines()]
            reason = lines[0] if lines else f"exit status {process.returncode}"
            raise OSError(errno.EIO, f"ffmpeg cannot write the video: {reason}", str(path))


def _ffmpeg_command(out: str | os.PathLike[str], suffix: str, width: int, height: int, fps: int) -> list[str]:
    """Returns the command that encodes RGB frames from standard input into an existing file."""
    from imageio_ffmpeg import get_ffmpeg_exe

    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    video = [*CODECS[suffix], "-pix_fmt", "yuv420p", "-f", suffix.removeprefix(".")]
    return [get_ffmpeg_exe(), "-v", "error", "-y", *source, *video, f"file:{os.fspath(out)}"]
