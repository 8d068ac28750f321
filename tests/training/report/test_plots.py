"""Contact sheets, plots and held-out views."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tsplat import ArgumentError
from tsplat.scene import Camera, MissingExtraError, View
from tsplat.training import History, Score
from tsplat.training.report.plots import (
    CAPTION_HEIGHT,
    CELL_WIDTH,
    GAP,
    write_contact_sheet,
    write_psnr_curve,
    write_side_by_side,
)


def make_scores(n=1):
    """Scores of n uniform views: of equal images, and of images with an error of 0.25."""
    image = torch.full((20, 30, 3), 51, dtype=torch.uint8)
    views = [View(image, Camera(torch.eye(4), torch.eye(3), 30, 20, name="view")) for _ in range(n)]
    before = [Score(view, torch.full((20, 30, 3), 0.2), 20.0, 0.5) for view in views]
    after = [Score(view, torch.full((20, 30, 3), 0.45), 30.0, 0.9) for view in views]
    return before, after


def test_contact_sheet_layout(tmp_path):
    start, result = make_scores(2)
    write_contact_sheet(tmp_path / "a.png", start, result)
    sheet = np.asarray(Image.open(tmp_path / "a.png"))
    height = round(CELL_WIDTH * 20 / 30)
    assert sheet.shape[1] == GAP + 4 * (CELL_WIDTH + GAP)
    assert sheet.shape[0] == GAP + 2 * (CAPTION_HEIGHT + height + GAP)
    middle = GAP // 2 + CAPTION_HEIGHT + height // 2
    columns = [GAP + i * (CELL_WIDTH + GAP) + CELL_WIDTH // 2 for i in range(4)]
    target, before, after, error = (sheet[middle, x].tolist() for x in columns)
    assert (target, before, after) == ([51] * 3, [51] * 3, [115] * 3)
    assert error == pytest.approx([252, 253, 191], abs=2)  # four times 0.25 is the brightest color
    assert (sheet[GAP : GAP + CAPTION_HEIGHT - 4] < 100).any()  # captions


def test_contact_sheet_shows_at_most_six_views(tmp_path):
    for n, rows in ((6, 6), (9, 6)):
        write_contact_sheet(tmp_path / "a.png", *make_scores(n))
        with Image.open(tmp_path / "a.png") as sheet:
            assert sheet.height == GAP + rows * (CAPTION_HEIGHT + round(CELL_WIDTH * 20 / 30) + GAP)


def test_contact_sheet_needs_scores_of_the_same_views(tmp_path):
    for start, result in (([], []), (make_scores(2)[0], make_scores(2)[1])):
        with pytest.raises(ArgumentError, match="same views"):
            write_contact_sheet(tmp_path / "a.png", start, result)
    assert not list(tmp_path.iterdir())


def test_side_by_side_shows_target_and_rendering(tmp_path):
    write_side_by_side(tmp_path / "a.png", make_scores()[1][0])
    image = np.asarray(Image.open(tmp_path / "a.png"))
    assert image.shape == (20, 60, 3)
    assert (image[:, :30] == 51).all()
    assert (image[:, 30:] == 115).all()


def test_curve_shows_the_history(tmp_path):
    empty, full = History(), History([10, 20], [20.0, 25.0], [0.1, 0.05], [0, 20], [15.0, 24.0])
    for name, history in (("a.png", empty), ("b.png", full)):
        write_psnr_curve(tmp_path / name, history)
    plain, drawn = (np.asarray(Image.open(tmp_path / name).convert("RGB"), dtype=int) for name in ("a.png", "b.png"))
    assert min(drawn.shape[:2]) > 400

    def count_orange(image):
        return (image[..., 0] - image[..., 2] > 120).sum()

    assert count_orange(drawn) > count_orange(plain) + 100


@pytest.mark.parametrize("module", ["PIL", "matplotlib"])
def test_missing_package_is_named(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[train\]'"):
        write_contact_sheet(tmp_path / "a.png", *make_scores())
    assert not list(tmp_path.iterdir())
