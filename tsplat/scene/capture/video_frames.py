"""Photographs from a video: the sharpest frame of each stretch of motion, read with ffmpeg, one frame at a time.

A first pass reads small gray frames and keeps two numbers of each; a second one writes the chosen frames.
"""

import contextlib
import dataclasses
import itertools
import math
import re
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import FileError

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".mts", ".3gp", ".gif")
FRAMES_PER_SECOND, FRAMES_MIN, FRAMES_MAX = 4, 50, 300
"""Frames that are chosen by default: by the length of the video, within these limits."""

SIDE = 480
"""Longest side in pixels of the frames whose sharpness is compared."""

SMALLER = f"scale='if(gte(iw,ih),min({SIDE},iw),-2)':'if(gte(iw,ih),-2,min({SIDE},ih))'"
"""Filter of ffmpeg that limits the longest side."""

COARSE = 4
"""Factor by which frames are made smaller still to measure motion: consecutive frames then differ by few pixels."""

STILL = 0.15
"""Motion in pixels of :data:`SIDE` since the last chosen frame below which a frame shows nothing new."""

CUT = 1.0
"""Difference of consecutive frames, relative to the contrast of the second; it is above 1 where they share nothing."""

JPEG_QUALITY = 95

SPHERICAL = re.compile(rb"spherical(?: mapping)?: equirectangular", re.IGNORECASE)
"""Versions of ffmpeg print this of a video of panoramas; cropped ones are "tiled"."""

FRAME_RATE = 30
"""Frames per second of a video of unknown length."""


@dataclasses.dataclass(frozen=True)
class ChosenFrames:
    """Frames of a video that become photographs: their increasing indices; the frames that begin a shot; and what
    ffmpeg says of a video that is damaged or ends early."""

    frames: tuple[int, ...]
    n_frames: int
    cuts: tuple[int, ...]
    damage: str = ""


def extract_frames(
    video: Path, folder: Path, count: int | None, on_progress: Callable[[int, int], object] = lambda *_: None
) -> ChosenFrames:
    """Writes frames of a video as ``frame_000123.jpg``, with the index of the frame, so that names are in its order.

    A video that is damaged or ends early gives the frames that can be read. Raises FileError if there are none.

    Args:
        video: A file that ffmpeg can read. It is rotated as its metadata say.
        count: Number of frames; fewer are written if others show nothing new. None for 4 per second, 50 to 300.
        on_progress: Called with the frames that are done, half a frame for each pass, and about how many there are.
    """
    from PIL import Image

    total, seconds = _count(video)
    measured = []
    previous = None
    log: list[str] = []
    for i, frame in enumerate(_read(video, "pgm", SMALLER, log)):
        measured.append(_measure(frame.astype(np.float32), previous))
        previous = frame.astype(np.float32)
        on_progress(min(i + 1, total) // 2, total)
    if not measured:
        reason = ", ".join(dict.fromkeys((log[0], log[-1])))[:300] if log else "it has no frames"
        raise FileError(f"{video}: ffmpeg cannot read it as a video: {reason}")
    total, seconds = len(measured), seconds or len(measured) / FRAME_RATE
    chosen = choose_frames(
        np.array(measured), count or min(FRAMES_MAX, max(FRAMES_MIN, round(seconds * FRAMES_PER_SECOND)))
    )
    wanted = set(chosen.frames)
    written = []
    with contextlib.closing(_read(video, "ppm")) as frames:
        for i, frame in enumerate(itertools.islice(frames, chosen.frames[-1] + 1)):
            if i in wanted:
                path = folder / f"frame_{i:06d}.jpg"
                Image.fromarray(frame).save(path, quality=JPEG_QUALITY, subsampling=0)
                written.append(i)
            on_progress((total + min(i + 1, total)) // 2, total)
    on_progress(total, total)
    return dataclasses.replace(chosen, frames=tuple(written), damage=log[0][:200] if log else "")


def choose_frames(measured: npt.NDArray[np.floating[Any]], count: int) -> ChosenFrames:
    """Chooses the sharpest frame of each of at most `count` stretches of a video with equal motion.

    Frames that move less than :data:`STILL` from the one before, as of a camera that stands still, are left out. Frames
    next to each other in two stretches are at least a quarter of a stretch apart, unless a cut is between them.
    `measured` [F, 3] are sharpness, motion since the frame before in pixels, and difference from it relative to the
    contrast. The last two are 0 for the first frame.
    """
    sharpness, motion, difference = measured.T
    cuts = np.flatnonzero((difference > CUT) & (difference > 2 * np.median(difference)))
    # Motion across a cut is not known: it counts as much as a stretch.
    steps = motion.copy()
    steps[cuts] = 0
    stretch = max(steps.sum() / max(1, count - len(cuts)), STILL)
    steps[cuts] = stretch
    path = steps.cumsum()
    shots = np.searchsorted(cuts, np.arange(len(path)), side="right")
    chosen: list[int] = []
    for i in range(count):
        last = i == count - 1
        candidates = np.flatnonzero((path >= i * stretch) & ((path < (i + 1) * stretch) | last))
        if chosen:
            gap = max(STILL, stretch / 4)
            candidates = candidates[
                (path[candidates] >= path[chosen[-1]] + gap) | (shots[candidates] > shots[chosen[-1]])
            ]
        if len(candidates):
            chosen.append(int(candidates[sharpness[candidates].argmax()]))
    return ChosenFrames(tuple(chosen), len(measured), tuple(cuts.tolist()))


def _measure(frame: npt.NDArray[np.float32], previous: npt.NDArray[np.float32] | None) -> tuple[float, float, float]:
    """Returns sharpness, motion and difference of a gray frame [H, W], as :func:`choose_frames` expects them.

    Sharpness is the variance of the Laplacian. Motion is that of optical flow along the gradient, on average: the
    absolute difference of frames over the size of their gradient.
    """
    inner = frame[1:-1, 1:-1]
    laplacian = frame[:-2, 1:-1] + frame[2:, 1:-1] + frame[1:-1, :-2] + frame[1:-1, 2:] - 4 * inner
    if previous is None:
        return float(laplacian.var()), 0.0, 0.0
    now, old = _shrink(frame), _shrink(previous)
    change = float(np.abs(now - old).mean())
    gradient = float(np.abs(np.diff(now, axis=0)).mean() + np.abs(np.diff(now, axis=1)).mean()) / 2
    contrast = float(np.abs(now - now.mean()).mean())
    return float(laplacian.var()), COARSE * change / max(gradient, 1.0), change / max(contrast, 1.0)


def _shrink(frame: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if min(frame.shape) < COARSE:
        return frame
    height, width = (size // COARSE for size in frame.shape)
    cells = frame[: height * COARSE, : width * COARSE].reshape(height, COARSE, width, COARSE)
    mean: npt.NDArray[np.float32] = cells.mean((1, 3))
    return mean


def is_marked_spherical(video: Path) -> bool:
    """Returns whether the metadata of a video says that its frames are equirectangular panoramas (Spherical Video)."""
    import imageio_ffmpeg

    # Without an output, ffmpeg describes the video and fails.
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", f"file:{video.absolute()}"]
    described = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return SPHERICAL.search(described.stderr) is not None


def _count(video: Path) -> tuple[int, float]:
    """Returns about how many frames a video has, at least one, and its seconds; 0 if they are not known."""
    import imageio_ffmpeg

    try:
        n, seconds = imageio_ffmpeg.count_frames_and_secs(str(video.absolute()))
    except Exception:  # of a damaged video, whose frames are counted as they are read
        return 1, 0.0
    return max(1, n), seconds


def _read(
    video: Path, codec: str, filters: str = "null", log: list[str] | None = None
) -> Generator[npt.NDArray[np.uint8], None, None]:
    """Yields the frames of a video: [H, W] gray for the codec ``pgm``, [H, W, 3] RGB for ``ppm``.

    Frames end where ffmpeg ends, in any way. What it prints about errors is appended to `log` then.
    """
    import imageio_ffmpeg

    source = ["-i", f"file:{video.absolute()}", "-map", "0:v:0", "-vf", filters]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *source, "-f", "image2pipe", "-c:v", codec, "-"]
    pipes: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    with tempfile.TemporaryFile() as errors, subprocess.Popen(command, stderr=errors, **pipes) as process:
        assert process.stdout is not None
        try:
            # A header of three lines before each frame: its kind, its width and height, and the largest value.
            while process.stdout.readline():
                size = process.stdout.readline().split()
                if not process.stdout.readline():
                    break
                width, height = map(int, size)
                shape = (height, width) if codec == "pgm" else (height, width, 3)
                data = process.stdout.read(math.prod(shape))
                if len(data) < math.prod(shape):
                    break
                yield np.frombuffer(data, np.uint8).reshape(shape)
        except BaseException:
            process.kill()
            raise
        process.stdout.close()
        status = process.wait()
        if log is not None:
            errors.seek(0)
            # Without the name and the address of a part of ffmpeg, in brackets.
            lines = errors.read().decode(errors="replace").splitlines()
            lines = [re.sub(r"^\[[^]]*\] ", "", line.strip()) for line in lines]
            log += [line for line in lines if line] or ([f"exit status {status}"] if status else [])
