"""Pictures and films of a scene: color, depth or alpha, from one camera or along a trajectory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..arguments import check_choice
from ..errors import ArgumentError
from ..scene.capture.views import Color
from ..scene.gaussians import Gaussians
from ..scene.images import to_bytes, write_png
from ..stages.backend import Backend
from ..support.extras import require
from ..support.files import atomic_write
from ..training.pictures import animation, heat
from .rendering import render_views
from .trajectories import Camera

Show = Literal["rgb", "depth", "alpha"]
SHOWS = ("rgb", "depth", "alpha")
FILMS = (".mp4", ".webm", ".gif")
"""Endings of films; a name without an ending is a folder of PNGs."""


@torch.no_grad()
def frames_of(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    show: Show = "rgb",
    background: Color = (0.0, 0.0, 0.0),
    backend: Backend = "auto",
) -> Iterator[Tensor]:
    """Renders what cameras see one by one, [H, W, 3] in [0, 1].

    Args:
        gaussians: On the device to render on.
        show: Colors; inverse expected depth, bright is near, between the same limits in all frames; or alpha.

    Raises:
        ArgumentError: No such thing to show; or as :func:`tsplat.rasterization`.
    """
    check_choice("show", show, SHOWS)
    device = gaussians.means.device
    limits: tuple[Tensor, Tensor] | None = None
    for camera in cameras:
        images, alphas, _ = render_views(
            gaussians,
            camera.viewmat.to(device)[None],
            camera.K.to(device)[None],
            camera.width,
            camera.height,
            background=background,
            render_mode="ED" if show == "depth" else "RGB",
            backend=backend,
        )
        image, alphas = images[0], alphas[0]
        if show == "alpha":
            image = alphas.expand(-1, -1, 3)
        elif show == "depth":
            seen = alphas[..., 0] > 0.5
            inverse = torch.where(seen, 1 / image[..., 0].clamp_min(1e-12), 0.0)
            if limits is None and bool(seen.any()):
                low, high = inverse[seen].quantile(inverse.new_tensor([0.01, 0.99])).unbind()
                limits = low, torch.maximum(high, low * (1 + 1e-6))
            low, high = limits or (inverse.new_zeros(()), inverse.new_ones(()))
            image = heat(torch.where(seen, 0.15 + 0.85 * (inverse - low) / (high - low), 0.0)).to(device) / 255
        yield image.clamp(0, 1)


def write_frames(path: str | os.PathLike[str], frames: Iterable[Tensor], fps: int = 30) -> None:
    """Writes frames [H, W, 3] in [0, 1] as a film, `.mp4`, `.webm` or `.gif`, or as PNGs into a folder.

    Raises:
        ArgumentError: Another ending.
        MissingExtraError: imageio-ffmpeg is not installed, for `.mp4` and `.webm`.
        OSError: The file cannot be written.
    """
    path = Path(path)
    check_film(path)
    if path.suffix == ".gif":
        animation(path, frames, round(1000 / fps))
    elif path.suffix:
        _film(path, frames, fps)
    else:
        path.mkdir(parents=True, exist_ok=True)
        for i, frame in enumerate(frames):
            write_png(path / f"{i:05d}.png", frame)


def check_film(path: Path) -> None:
    """Raises `ArgumentError` where frames cannot be written under a name, `MissingExtraError` for want of a package."""
    if path.suffix and path.suffix not in FILMS:
        raise ArgumentError(f"{path}: expected a name that ends in {', '.join(FILMS)}, or a folder's without an ending")
    if path.suffix in (".mp4", ".webm"):
        require("imageio_ffmpeg")
    else:
        require("PIL")


def _film(path: Path, frames: Iterable[Tensor], fps: int) -> None:
    import imageio_ffmpeg

    writer = None
    # ffmpeg writes a file of its own, which then goes to its place whole.
    with atomic_write(path) as file:
        aside = Path(f"{file.name}{path.suffix}")
        try:
            for frame in frames:
                # Codecs want even sizes.
                picture = to_bytes(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]).cpu().contiguous()
                if writer is None:
                    size = (picture.shape[1], picture.shape[0])
                    writer = imageio_ffmpeg.write_frames(str(aside), size, fps=fps, macro_block_size=1, quality=8)
                    writer.send(None)
                writer.send(picture.numpy())
            if writer is None:
                raise ArgumentError("film: found no frames")
            writer.close()
            file.write(aside.read_bytes())
        finally:
            aside.unlink(missing_ok=True)
