"""Extracts photographs from a video with ffmpeg: the sharpest frame of each segment of equal motion.

The first pass reads small gray frames one at a time and measures them; the second pass writes the chosen frames.
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
"""Default number of frames: proportional to the length of the video, within these limits."""

SIDE = 480
"""Longest side in pixels of the frames whose sharpness is compared."""

SMALLER = f"scale='if(gte(iw,ih),min({SIDE},iw),-2)':'if(gte(iw,ih),-2,min({SIDE},ih))'"
"""ffmpeg filter that limits the longest side."""

COARSE = 4
"""Factor by which frames are downscaled further to measure motion, so that consecutive frames differ by few pixels."""

STILL = 0.15
"""Motion in pixels, at the size :data:`SIDE`, below which a frame shows nothing new."""

CUT = 1.0
"""Threshold for cuts: difference of consecutive frames relative to the contrast of the second frame. Frames that share
nothing exceed 1."""

JPEG_QUALITY = 95

SPHERICAL = re.compile(rb"spherical(?: mapping)?: equirectangular", re.IGNORECASE)
"""ffmpeg's description of a video of full panoramas, depending on its version; cropped panoramas are "tiled"."""

FRAME_RATE = 30
"""Assumed frames per second of a video of unknown length."""


@dataclasses.dataclass(frozen=True)
class ChosenFrames:
    """Frames of a video that become photographs.

    `frames` are their ascending indices, `n_frames` is the number of all frames, `cuts` are the frames after cuts, and
    `damage` is ffmpeg's message about a video that is damaged or ends early.
    """

    frames: tuple[int, ...]
    n_frames: int
    cuts: tuple[int, ...]
    damage: str = ""


def extract_frames(
    video: Path, folder: Path, count: int | None, on_progress: Callable[[int, int], object] = lambda *_: None
) -> ChosenFrames:
    """Writes frames of a video as ``frame_000123.jpg``, numbered by frame index so that names sort in video order.

    If a video is damaged or ends early, the readable frames are used. Raises FileError if there are none.

    Args:
        video: A file that ffmpeg can read. It is rotated according to its metadata.
        folder: Folder for the frames.
        count: Number of frames; fewer are written if others show nothing new. None for 4 per second, between 50 and
            300.
        on_progress: Called with the number of finished frames, where each pass counts half, and their approximate
            total.
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
    """Chooses the sharpest frame of each of at most `count` segments of a video with equal motion.

    Frames that move less than :data:`STILL` from the previous one, because the camera stands still, are left out.
    Chosen frames of adjacent segments are at least a quarter of a segment apart, unless there is a cut between them.

    Args:
        measured: [F, 3] sharpness, motion since the previous frame in pixels, and difference from the previous frame
            relative to the contrast. The last two are 0 for the first frame.
        count: Maximum number of frames.
    """
    sharpness, motion, difference = measured.T
    cuts = np.flatnonzero((difference > CUT) & (difference > 2 * np.median(difference)))
    # Motion across a cut is unknown; it counts as a whole segment.
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
    """Returns sharpness, motion and difference of a gray frame [H, W] for :func:`choose_frames`.

    Sharpness is the variance of the Laplacian. Motion is the mean optical flow along the gradient: the absolute
    difference of frames divided by the norm of their gradient.
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
    """Returns whether the metadata of a video marks its frames as equirectangular panoramas (Spherical Video)."""
    import imageio_ffmpeg

    # Without an output, ffmpeg prints a description of the video and fails.
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", f"file:{video.absolute()}"]
    described = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return SPHERICAL.search(described.stderr) is not None


def _count(video: Path) -> tuple[int, float]:
    """Returns the approximate number of frames of a video, at least one, and its duration in seconds, 0 if unknown."""
    import imageio_ffmpeg

    try:
        n, seconds = imageio_ffmpeg.count_frames_and_secs(str(video.absolute()))
    except Exception:  # the video is damaged; frames are counted while they are read
        return 1, 0.0
    return max(1, n), seconds


def _read(
    video: Path, codec: str, filters: str = "null", log: list[str] | None = None
) -> Generator[npt.NDArray[np.uint8], None, None]:
    """Yields the frames of a video: [H, W] gray for the codec ``pgm``, [H, W, 3] RGB for ``ppm``.

    The generator ends when ffmpeg ends, for any reason, and then appends ffmpeg's error messages to `log`.
    """
    import imageio_ffmpeg

    source = ["-i", f"file:{video.absolute()}", "-map", "0:v:0", "-vf", filters]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *source, "-f", "image2pipe", "-c:v", codec, "-"]
    pipes: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    with tempfile.TemporaryFile() as errors, subprocess.Popen(command, stderr=errors, **pipes) as process:
        assert process.stdout is not None
        try:
            # Each frame begins with a header of three lines: type, width and height, and maximum value.
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
            # Remove ffmpeg's component names and addresses in brackets.
            lines = errors.read().decode(errors="replace").splitlines()
            lines = [re.sub(r"^\[[^]]*\] ", "", line.strip()) for line in lines]
            log += [line for line in lines if line] or ([f"exit status {status}"] if status else [])
