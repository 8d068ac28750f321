"""What a run leaves to look at, and what it shows while it runs."""

import io
import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from tsplat import ArgumentError
from tsplat.scene import Gaussians, MissingExtraError, View
from tsplat.training import History, Progress, Score
from tsplat.training.display import progress_display, stop_on_interrupt
from tsplat.training.plots import CAPTION_HEIGHT, CELL_WIDTH, GAP, contact_sheet, curve, side_by_side


def score(value, width=30, height=20, name="view"):
    image = torch.full((height, width, 3), 51, dtype=torch.uint8)
    return Score(View(name, image, torch.eye(4), torch.eye(3)), torch.full((height, width, 3), value), 20.0, 0.5)


def pair(n=1, **options):
    views = [score(0.2 + 0.0 * i, **options) for i in range(n)]
    return views, [Score(s.view, torch.full_like(s.image, 0.45), 30.0, 0.9) for s in views]


def test_a_contact_sheet_has_truth_start_result_and_error_side_by_side(tmp_path):
    start, result = pair(2)
    contact_sheet(tmp_path / "a.png", start, result)
    sheet = np.asarray(Image.open(tmp_path / "a.png"))
    height = round(CELL_WIDTH * 20 / 30)
    assert sheet.shape[1] == GAP + 4 * (CELL_WIDTH + GAP)
    assert sheet.shape[0] == GAP + 2 * (CAPTION_HEIGHT + height + GAP)
    middle = GAP // 2 + CAPTION_HEIGHT + height // 2
    columns = [GAP + i * (CELL_WIDTH + GAP) + CELL_WIDTH // 2 for i in range(4)]
    truth, before, after, error = (sheet[middle, x].tolist() for x in columns)
    assert (truth, before, after) == ([51] * 3, [51] * 3, [115] * 3)
    assert error == pytest.approx([252, 253, 191], abs=2)  # four times 0.25 is the brightest of the scale
    assert (sheet[GAP : GAP + CAPTION_HEIGHT - 4] < 100).any()  # captions


def test_of_many_views_six_are_shown(tmp_path):
    for n, rows in ((6, 6), (9, 6)):
        contact_sheet(tmp_path / "a.png", *pair(n))
        with Image.open(tmp_path / "a.png") as sheet:
            assert sheet.height == GAP + rows * (CAPTION_HEIGHT + round(CELL_WIDTH * 20 / 30) + GAP)


def test_scores_of_other_views_make_no_sheet(tmp_path):
    for start, result in (([], []), (pair(2)[0], pair(2)[1])):
        with pytest.raises(ArgumentError, match="same views"):
            contact_sheet(tmp_path / "a.png", start, result)
    assert not list(tmp_path.iterdir())


def test_a_held_out_picture_beside_the_truth(tmp_path):
    side_by_side(tmp_path / "a.png", pair()[1][0])
    picture = np.asarray(Image.open(tmp_path / "a.png"))
    assert picture.shape == (20, 60, 3)
    assert (picture[:, :30] == 51).all()
    assert (picture[:, 30:] == 115).all()


def test_a_curve_shows_its_points(tmp_path):
    empty, full = History(), History([10, 20], [20.0, 25.0], [0.1, 0.05], [0, 20], [15.0, 24.0])
    for name, history in (("a.png", empty), ("b.png", full)):
        curve(tmp_path / name, history)
    plain, drawn = (np.asarray(Image.open(tmp_path / name).convert("RGB"), dtype=int) for name in ("a.png", "b.png"))
    assert min(drawn.shape[:2]) > 400

    def orange(picture):
        return (picture[..., 0] - picture[..., 2] > 120).sum()

    assert orange(drawn) > orange(plain) + 100


def test_a_history_takes_down_every_tenth_step_and_the_last():
    history = History()
    for step in range(1, 26):
        history.record(Progress(step, 25, torch.tensor(0.5), torch.tensor(20.0 + step), GAUSSIANS, len(GAUSSIANS)))
    assert history.train_steps == [10, 20, 25]
    assert history.train_psnr == [30, 40, 45]


@pytest.mark.parametrize("module", ["PIL", "matplotlib"])
def test_missing_extras_are_named(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[train\]'"):
        contact_sheet(tmp_path / "a.png", *pair())
    assert not list(tmp_path.iterdir())


GAUSSIANS = Gaussians.from_points(torch.eye(3), torch.ones(3, 3), 0)


def steps_of(n, after=0):
    for step in range(after + 1, n + 1):
        yield Progress(step, n, torch.tensor(0.125), torch.tensor(20.0), GAUSSIANS, len(GAUSSIANS))


def test_without_a_terminal_there_are_a_few_lines(capsys):
    with progress_display(200) as show:
        for progress in steps_of(200):
            show(progress)
    lines = capsys.readouterr().out.splitlines()
    assert 8 <= len(lines) <= 12
    assert lines[-1].startswith("step 200/200  loss 0.1250  PSNR 20.00 dB")
    assert "3 Gaussians" in lines[0]
    assert "steps/s" in lines[0]
    assert "GiB" in lines[0]


def test_in_a_terminal_there_is_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress_display(30_000, start=29_970) as show:
        for progress in steps_of(30_000, after=29_970):
            show(progress)
    for figure in ("30000/30000", "0:00:00", "loss 0.1250  PSNR 20.00 dB  3 Gaussians", "steps/s", "GiB"):
        assert figure in terminal.getvalue()
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(MissingExtraError, match="rich"), progress_display(30):
        pass


def test_ctrl_c_asks_to_stop_and_pressed_again_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_nothing_is_caught():
    found = []

    def run():
        with stop_on_interrupt() as stopped:
            found.append(stopped())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [False]
