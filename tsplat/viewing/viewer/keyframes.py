"""Keyframes of one client, the path along them, and what is written of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ...errors import ArgumentError
from ...scene.cameras import Camera
from ...support.files import output_folder, write_json
from ..trajectories import describe_camera, interpolate, read_cameras
from ..videos import check_video_path, write_frames
from .comparison import Image
from .poses import pose_of
from .renderer import Pose

SECONDS_MAX, N_MAX = 600, 1000
"""Length of a video, and number of keyframes."""

GIF_PIXELS_MAX = 1 << 28


@dataclasses.dataclass(frozen=True)
class VideoOptions:
    """How a path along keyframes becomes a video.

    Attributes:
        seconds: Its length.
        fps: Frames per second.
        closed: Whether the path returns to the first keyframe.
        size: Width and height; those of the first keyframe where None. The vertical field of view stays.
    """

    seconds: float
    fps: int = 30
    closed: bool = False
    size: tuple[int, int] | None = None


class Keyframes:
    """Keyframes of a video.

    Attributes:
        cameras: The keyframes.
    """

    def __init__(self) -> None:
        self.cameras: list[Camera] = []

    def insert(self, index: int, pose: Pose) -> None:
        """Inserts a keyframe before that of an index.

        Raises:
            ArgumentError: There are too many.
        """
        if len(self.cameras) >= N_MAX:
            raise ArgumentError(f"keyframes: expected at most {N_MAX}; remove some first")
        self.cameras.insert(index, pose.camera(pose.width, pose.height))

    def load(self, path: Path) -> None:
        """Replaces the keyframes by the cameras of a file.

        Raises:
            FileError: As :func:`tsplat.viewing.read_cameras`.
            ArgumentError: There are too many, or the images are too large.
        """
        cameras = read_cameras(path)
        if len(cameras) > N_MAX:
            raise ArgumentError(f"{path}: expected at most {N_MAX} keyframes, found {len(cameras)}")
        for camera in cameras:
            pose_of(camera)
        self.cameras = cameras

    def save(self, path: Path) -> None:
        """Writes the keyframes as JSON, for :meth:`load`.

        Raises:
            ArgumentError: There are none, or the folder is not writable.
            OSError: The file cannot be written.
        """
        if not self.cameras:
            raise ArgumentError("keyframes: expected at least one, found none; add one first")
        write_cameras(path, self.cameras)

    def path(self, options: VideoOptions) -> list[Camera]:
        """Returns cameras along the keyframes.

        Raises:
            ArgumentError: There are fewer than two keyframes, or the video would be too long.
        """
        if not 0 < options.seconds <= SECONDS_MAX:
            raise ArgumentError(f"Seconds: expected a number of at most {SECONDS_MAX}, found {options.seconds}")
        cameras = list(self.cameras)
        if options.size is not None:
            cameras = [pose_of(camera, *options.size).camera(*options.size) for camera in cameras]
        return interpolate(cameras, max(2, round(options.seconds * options.fps)), closed=options.closed)

    def write(self, path: Path, options: VideoOptions, render: Callable[[int, int, Camera], Image]) -> str:
        """Writes a video along the keyframes, or its cameras as ``.json``.

        Args:
            render: Renders a frame: from its index, the number of all frames, and its camera.

        Returns:
            What was written.

        Raises:
            ArgumentError: There are fewer than two keyframes; or as :func:`tsplat.viewing.write_frames`.
            MissingExtraError, OSError: As :func:`tsplat.viewing.write_frames`.
        """
        cameras = self.path(options)
        if path.suffix == ".json":
            write_cameras(path, cameras)
            return f"{len(cameras)} cameras"
        check_video_path(path)
        pixels = len(cameras) * cameras[0].width * cameras[0].height
        if path.suffix == ".gif" and pixels > GIF_PIXELS_MAX:
            raise ArgumentError(
                f"{path.name}: a GIF is made in memory, expected at most {GIF_PIXELS_MAX:,} pixels, found {pixels:,}; "
                "write .mp4, or fewer seconds"
            )
        images = (render(i, len(cameras), camera) for i, camera in enumerate(cameras))
        write_frames(path, (torch.from_numpy(image) / 255 for image in images), options.fps)
        return f"{len(cameras)} frames"


def write_cameras(path: Path, cameras: Sequence[Camera]) -> None:
    """Writes cameras as JSON for :func:`tsplat.viewing.read_cameras`.

    Raises:
        FileError: The folder is not writable.
        OSError: The file cannot be written.
    """
    with output_folder(path.parent):
        write_json(path, [describe_camera(camera, i) for i, camera in enumerate(cameras)])
