"""What a run leaves to look at: a contact sheet, a curve, a turntable."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from ..scene.images import to_bytes, write_png
from ..support.extras import require
from ..support.files import atomic_write
from .evaluation import Score
from .history import History

CELL_WIDTH, CAPTION_HEIGHT, GAP = 352, 24, 8
ROWS_MAX = 6
Item = TypeVar("Item")
ERROR_GAIN = 4
PAPER, INK = (250, 250, 248), (40, 40, 44)


def side_by_side(path: str | os.PathLike[str], score: Score) -> None:
    """A PNG with a view's picture on the left and what was rendered on the right, pixel for pixel."""
    write_png(path, torch.cat([score.view.image, to_bytes(score.image)], 1))


def sheet_views(items: Sequence[Item]) -> list[Item]:
    """Those that a contact sheet has room for, at most six, from first to last."""
    chosen = np.linspace(0, len(items) - 1, min(ROWS_MAX, len(items))).round().astype(int)
    return [items[i] for i in chosen]


def contact_sheet(path: str | os.PathLike[str], start: Sequence[Score], result: Sequence[Score]) -> None:
    """A labeled PNG with a row a view: truth, start, result, and four times the result's mean absolute error.

    Args:
        start, result: Scores of the same views, in the same order; of more than six, six are shown.

    Raises:
        ArgumentError: No views, or not the same.
        MissingExtraError: Pillow or Matplotlib is not installed.
        OSError: The file cannot be written.
    """
    require("PIL", "matplotlib")
    from PIL import Image, ImageDraw, ImageFont

    if not result or [score.view for score in start] != [score.view for score in result]:
        raise ArgumentError("contact sheet: start and result need scores of the same views, at least one")
    rows = []
    for before, after in zip(sheet_views(start), sheet_views(result)):
        truth = after.view.image
        cells = {
            after.view.name: truth,
            f"start  {before.psnr:.1f} dB": to_bytes(before.image),
            f"result  {after.psnr:.1f} dB": to_bytes(after.image),
            f"error x {ERROR_GAIN}": heat(ERROR_GAIN * (after.image - after.view.pixels).abs().mean(-1)),
        }
        size = (CELL_WIDTH, max(1, round(CELL_WIDTH * truth.shape[0] / truth.shape[1])))
        rows.append([(name, Image.fromarray(cell.cpu().numpy()).resize(size)) for name, cell in cells.items()])
    heights = [CAPTION_HEIGHT + row[0][1].height + GAP for row in rows]
    sheet = Image.new("RGB", (GAP + 4 * (CELL_WIDTH + GAP), sum(heights) + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    top = GAP // 2
    for row, height in zip(rows, heights):
        for column, (name, cell) in enumerate(row):
            left = GAP + column * (CELL_WIDTH + GAP)
            draw.text((left, top + CAPTION_HEIGHT / 2), name, INK, font, anchor="lm")
            sheet.paste(cell, (left, top + CAPTION_HEIGHT))
        top += height
    with atomic_write(path) as file:
        sheet.save(file, "PNG")


def curve(path: str | os.PathLike[str], history: History) -> None:
    """A PNG of PSNR over steps: of the views fitted, one by one, and of those held out, their mean; and of Gaussians.

    Raises:
        MissingExtraError: Matplotlib is not installed.
        OSError: The file cannot be written.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(history.train_steps, history.train_psnr, color="#b9c6d6", linewidth=1, label="views fitted, one a point")
    axes.plot(history.test_steps, history.test_psnr, color="#c2410c", marker="o", markersize=4, label="views held out")
    axes.set(xlabel="steps", ylabel="PSNR in dB", xlim=(0, None))
    axes.grid(alpha=0.3)
    if len(set(history.test_gaussians)) > 1:
        counts = axes.twinx()
        counts.plot(history.test_steps, history.test_gaussians, color="#6b7280", linestyle="--", linewidth=1)
        counts.set(ylabel="Gaussians (dashed)", ylim=(0, None))
    axes.legend(loc="lower right")
    with atomic_write(path) as file:
        figure.savefig(file, format="png")


def animation(path: str | os.PathLike[str], frames: Iterable[Tensor], milliseconds: int = 60) -> None:
    """An endless GIF of frames [H, W, 3] in [0, 1], all in one palette so that nothing flickers.

    Raises:
        ArgumentError: There are no frames.
        MissingExtraError: Pillow is not installed.
        OSError: The file cannot be written.
    """
    require("PIL")
    from PIL import Image

    pictures = [to_bytes(frame).cpu().numpy() for frame in frames]
    if not pictures:
        raise ArgumentError("animation: found no frames")
    palette = Image.fromarray(np.concatenate(pictures[:: max(1, len(pictures) // 8)])).quantize(256)
    first, *others = (Image.fromarray(picture).quantize(palette=palette) for picture in pictures)
    with atomic_write(path) as file:
        first.save(file, "GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)


def heat(values: Tensor) -> Tensor:
    """[H, W] in [0, 1] to colors from black through red to white, [H, W, 3] uint8."""
    from matplotlib import colormaps

    return torch.from_numpy(colormaps["magma"](values.clamp(0, 1).cpu().numpy(), bytes=True)[..., :3].copy())
