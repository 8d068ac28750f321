"""Keyframes of one client, the path along them, and their files."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ...errors import ArgumentError, FileError
from ...scene.cameras import Camera
from ...support.files import output_folder, write_json
from ...support.reading import read_json
from ..trajectories import describe_camera, interpolate, read_cameras
from ..videos import check_video_path, write_frames
from .comparison import Image
from .poses import pose_of
from .renderer import Pose

SECONDS, SECONDS_MAX, N_MAX = 2.0, 600, 1000
"""Default seconds between keyframes, maximum length of a video in seconds, and maximum number of keyframes."""

GIF_PIXELS_MAX = 1 << 28
"""Maximum number of pixels of all frames of a GIF, which is encoded in memory."""


@dataclasses.dataclass(frozen=True)
class VideoOptions:
    """Options of a video along keyframes.

    A `closed` path returns to the first keyframe. `size` is the width and height in pixels, None for those of the first
    keyframe; it does not change the vertical field of view.
    """

    fps: int = 30
    closed: bool = False
    size: tuple[int, int] | None = None


@dataclasses.dataclass
class Keyframe:
    """A camera of a path, and the seconds from the previous keyframe; for the first of a closed path, from the last."""

    camera: Camera
    seconds: float = SECONDS


class Keyframes:
    """Keyframes of a video."""

    def __init__(self) -> None:
        self.keys: list[Keyframe] = []

    @property
    def cameras(self) -> list[Camera]:
        """The cameras of the keyframes."""
        return [key.camera for key in self.keys]

    def insert(self, index: int, pose: Pose) -> None:
        """Inserts a keyframe at an index; raises ArgumentError if there are too many."""
        if len(self.keys) >= N_MAX:
            raise ArgumentError(f"keyframes: expected at most {N_MAX}; remove some first")
        self.keys.insert(index, Keyframe(pose.camera(pose.width, pose.height)))

    def length(self, closed: bool) -> float:
        """Returns the duration of the path in seconds."""
        return sum(key.seconds for key in self.keys[0 if closed else 1 :])

    def scale(self, seconds: float, closed: bool) -> None:
        """Changes the duration of the path by scaling all times."""
        factor = seconds / max(self.length(closed), 1e-9)
        for key in self.keys:
            key.seconds *= factor

    def load(self, path: Path) -> None:
        """Replaces the keyframes by the cameras of a file, with the file's times if it has any.

        Raises FileError as :func:`tsplat.viewing.read_cameras`, or if times are invalid, and ArgumentError if there are
        too many cameras, or their images are too large.
        """
        cameras = read_cameras(path)
        if len(cameras) > N_MAX:
            raise ArgumentError(f"{path}: expected at most {N_MAX} keyframes, found {len(cameras)}")
        keys = [
            Keyframe(camera, entry.get("seconds", SECONDS))
            for camera, entry in zip(cameras, read_json(path), strict=True)
        ]
        for key in keys:
            pose_of(key.camera)
            if type(key.seconds) not in (int, float) or not 0 < key.seconds <= SECONDS_MAX:
                raise FileError(f"{path}: seconds: expected a number up to {SECONDS_MAX}, found {key.seconds!r:.80}")
        self.keys = keys

    def save(self, path: Path) -> None:
        """Writes the keyframes as JSON, for :meth:`load` and :func:`tsplat.viewing.read_cameras`."""
        if not self.keys:
            raise ArgumentError("keyframes: expected at least one, found none; add one first")
        write_cameras(path, self.cameras, [key.seconds for key in self.keys])

    def path(self, options: VideoOptions, frames: int | None = None) -> list[Camera]:
        """Returns cameras along the keyframes: `frames` of them, or one for each frame of the video."""
        length, cameras = self.length(options.closed), self.cameras
        if frames is None:
            if length > SECONDS_MAX:
                raise ArgumentError(f"Total seconds: expected at most {SECONDS_MAX}, found {length:g}")
            frames = max(2, round(length * options.fps))
        if options.size is not None:
            cameras = [pose_of(camera, *options.size).camera(*options.size) for camera in cameras]
        return interpolate(cameras, frames, closed=options.closed, seconds=[key.seconds for key in self.keys])

    def write(self, path: Path, options: VideoOptions, render: Callable[[int, int, Camera], Image]) -> str:
        """Writes a video along the keyframes, or its cameras as ``.json``, and returns what was written.

        `render` renders a frame from its index, the number of all frames, and its camera. Raises ArgumentError if there
        are fewer than two keyframes; and as :func:`tsplat.viewing.write_frames`.
        """
        cameras = self.path(options)
        if path.suffix == ".json":
            write_cameras(path, cameras)
            return f"{len(cameras):,} cameras"
        check_video_path(path)
        pixels = len(cameras) * cameras[0].width * cameras[0].height
        if path.suffix == ".gif" and pixels > GIF_PIXELS_MAX:
            raise ArgumentError(
                f"{path.name}: a GIF is encoded in memory; expected at most {GIF_PIXELS_MAX:,} pixels, found "
                f"{pixels:,}; write .mp4, or fewer seconds"
            )
        images = (render(i, len(cameras), camera) for i, camera in enumerate(cameras))
        write_frames(path, (torch.from_numpy(image).float() / 255 for image in images), options.fps)
        return f"{len(cameras):,} frames"


def write_cameras(path: Path, cameras: Sequence[Camera], seconds: Sequence[float] = ()) -> None:
    """Writes cameras as JSON for :func:`tsplat.viewing.read_cameras`, with the times of keyframes, if given."""
    entries = [describe_camera(camera, i) for i, camera in enumerate(cameras)]
    for entry, value in zip(entries, seconds):
        entry["seconds"] = value
    with output_folder(path.parent):
        write_json(path, entries)
