"""Images that summarize a run: a contact sheet of views, the PSNR curve, and views beside their renderings."""

import os
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch

from ...errors import ArgumentError
from ...scene.images import to_bytes, write_png
from ...support.extras import require
from ...support.files import atomic_write
from ...viewing.colormaps import apply_colormap
from ..evaluation import Score
from ..history import History
from .data_urls import ERROR_GAIN

T = TypeVar("T")

CELL_WIDTH, CAPTION_HEIGHT, GAP = 352, 24, 8
"""Layout of the contact sheet in pixels."""

VIEWS_MAX = 6
PAPER, INK = (250, 250, 248), (40, 40, 44)


def write_side_by_side(path: str | os.PathLike[str], score: Score) -> None:
    """Writes a PNG with a view's photograph on the left and its rendering on the right, at full size."""
    write_png(path, torch.cat([score.view.image, to_bytes(score.image)], 1))


def evenly_spaced(values: Sequence[T]) -> list[T]:
    """Returns at most six values, evenly spaced from the first to the last, for a contact sheet."""
    chosen = np.linspace(0, len(values) - 1, min(VIEWS_MAX, len(values))).round().astype(int)
    return [values[i] for i in chosen]


def write_contact_sheet(path: str | os.PathLike[str], start: Sequence[Score], result: Sequence[Score]) -> None:
    """Writes a labeled PNG with a row per view: photograph, start, result, and the result's absolute error times 4.

    The error is averaged over RGB. At most six views are shown. Raises ArgumentError if there are no views,
    or `start` and `result`, scores before and after training, differ in their views.
    """
    require("PIL", "matplotlib")
    from PIL import Image, ImageDraw, ImageFont

    if not result or [score.view for score in start] != [score.view for score in result]:
        raise ArgumentError("contact sheet: expected start and result to be scores of the same views, at least one")
    rows = []
    for before, after in zip(evenly_spaced(start), evenly_spaced(result)):
        target = after.view.image
        cells = {
            after.view.name: target,
            f"start  {before.psnr:.1f} dB": to_bytes(before.image),
            f"result  {after.psnr:.1f} dB": to_bytes(after.image),
            f"error x {ERROR_GAIN}": apply_colormap(ERROR_GAIN * (after.image - after.view.pixels).abs().mean(-1)),
        }
        size = (CELL_WIDTH, max(1, round(CELL_WIDTH * target.shape[0] / target.shape[1])))
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


def write_psnr_curve(path: str | os.PathLike[str], history: History) -> None:
    """Writes a PNG that plots the PSNR of training views and the mean PSNR of the held-out views over steps.

    If the number of Gaussians changes, it is plotted, too.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(history.train_steps, history.train_psnr, color="#b9c6d6", lw=1, label="training views, one per point")
    if history.test_steps:
        axes.plot(history.test_steps, history.test_psnr, "o-", color="#c2410c", ms=4, label="held-out views, mean")
    axes.set(xlabel="steps", ylabel="PSNR in dB", xlim=(0, None))
    axes.grid(alpha=0.3)
    if len(set(history.test_gaussians)) > 1:
        counts = axes.twinx()
        counts.plot(history.test_steps, history.test_gaussians, color="#6b7280", linestyle="--", linewidth=1)
        counts.set(ylabel="Gaussians (dashed)", ylim=(0, None))
    axes.legend(loc="lower right")
    with atomic_write(path) as file:
        figure.savefig(file, format="png")
