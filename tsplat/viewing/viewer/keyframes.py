"""Keyframes of one client, the path along them, and what is written of both."""

from __future__ import annotations

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

FPS = 30
SECONDS_MAX, N_MAX = 600, 1000
"""Length of a video, and number of keyframes."""

GIF_PIXELS_MAX = 1 << 28


class Keyframes:
    """Keyframes of a video.

    Attributes:
        cameras: The keyframes.
    """

    def __init__(self) -> None:
        self.cameras: list[Camera] = []

    def add(self, pose: Pose) -> None:
        """Adds a keyframe.

        Raises:
            ArgumentError: There are too many.
        """
        if len(self.cameras) >= N_MAX:
            raise ArgumentError(f"keyframes: expected at most {N_MAX}; remove some first")
        self.cameras.append(pose.camera(pose.width, pose.height))

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

    def path(self, seconds: float, fps: int) -> list[Camera]:
        """Returns cameras along the keyframes.

        Raises:
            ArgumentError: There are fewer than two keyframes, or the video would be too long.
        """
        if not 0 < seconds <= SECONDS_MAX:
            raise ArgumentError(f"Seconds: expected a number of at most {SECONDS_MAX}, found {seconds}")
        return interpolate(list(self.cameras), max(2, round(seconds * fps)))

    def write(self, path: Path, seconds: float, render: Callable[[int, int, Camera], Image]) -> str:
        """Writes a video along the keyframes, or its cameras as ``.json``.

        Args:
            render: Renders a frame: from its index, the number of all frames, and its camera.

        Returns:
            What was written.

        Raises:
            ArgumentError: There are fewer than two keyframes; or as :func:`tsplat.viewing.write_frames`.
            MissingExtraError, OSError: As :func:`tsplat.viewing.write_frames`.
        """
        cameras = self.path(seconds, FPS)
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
        write_frames(path, (torch.from_numpy(image) / 255 for image in images), FPS)
        return f"{len(cameras)} frames"


def write_cameras(path: Path, cameras: Sequence[Camera]) -> None:
    """Writes cameras as JSON for :func:`tsplat.viewing.read_cameras`.

    Raises:
        FileError: The folder is not writable.
        OSError: The file cannot be written.
    """
    with output_folder(path.parent):
        write_json(path, [describe_camera(camera, i) for i, camera in enumerate(cameras)])
