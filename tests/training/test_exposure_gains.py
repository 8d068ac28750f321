"""Gains that are known before training: from colors of points, and only where the camera changed its exposure."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from PIL import Image

from tests.support.training_scenes import gray, make_gaussians, make_views
from tsplat.runtime.process_group import RankGroup
from tsplat.scene import Camera, View, intrinsics
from tsplat.scene.images import read_exposure
from tsplat.training import Config, Trainer, evaluate
from tsplat.training.exposure_gains import gains_of_held_out, gains_of_points
from tsplat.training.view_gradients import ViewGains

SIDE = 24
LOGS = torch.tensor([[0.2, 0.1, 0.15], [-0.1, -0.2, -0.1], [0.0, 0.1, -0.05], [-0.1, 0.0, 0.0]], dtype=torch.float64)


def write_photo(path, time, **others):
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x829A: time, **others} if time is not None else others)
    Image.new("RGB", (4, 4)).save(path, exif=exif)
    return path


def photographed(folder, logs=LOGS, times=(1.3, 0.7, 1.0, 0.9), n_seen=400):
    """Views of a plane of colored pixels, all of which are points, with gains; some colors are of something else."""
    generator = torch.Generator().manual_seed(0)
    colors = 0.2 + 0.4 * torch.rand(SIDE, SIDE, 3, generator=generator, dtype=torch.float64)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    centers = torch.stack([columns + 0.5, rows + 0.5, torch.ones(SIDE, SIDE)], -1).view(-1, 3)
    views = []
    for i, (log, time) in enumerate(zip(logs, times, strict=True)):
        image = colors * log.exp()
        wrong = torch.rand(SIDE, SIDE, generator=generator) < 0.1
        image[wrong] = torch.rand(int(wrong.sum()), 3, generator=generator, dtype=torch.float64)
        seen = torch.randperm(SIDE * SIDE, generator=generator)[:n_seen]
        path = write_photo(folder / f"{i}.jpg", time)
        camera = Camera(torch.eye(4), intrinsics(SIDE, SIDE, 50), SIDE, SIDE, name=path.name)
        pixels = (255 * image).round().clamp(0, 255).to(torch.uint8)
        views.append(View(pixels, camera, sparse=centers[seen], sparse_ids=seen, files=(path,)))
    return views


def test_gains_of_points_are_those_of_the_photographs(tmp_path):
    expected = LOGS - LOGS.mean(0)
    torch.testing.assert_close(gains_of_points(photographed(tmp_path)), expected, rtol=0, atol=0.01)


def test_gains_propagate_along_a_chain_of_views(tmp_path):
    """Each view has points in common with the next one only."""
    logs = 0.1 * torch.arange(12, dtype=torch.float64)[:, None].expand(12, 3) - 0.6
    views = photographed(tmp_path, logs, [math.exp(float(log[0])) for log in logs], SIDE * SIDE)
    parts = []
    for i, view in enumerate(views):
        seen = (view.sparse_ids // 50 == i) | (view.sparse_ids // 50 == i - 1)
        parts.append(dataclasses.replace(view, sparse=view.sparse[seen], sparse_ids=view.sparse_ids[seen]))
    found = gains_of_points(parts)
    torch.testing.assert_close(found, logs - logs.mean(0), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0, 1.0), (1.3, 0.7, 1.0, None), (1.0, 1.01, 0.99, 1.0)])
def test_there_are_no_gains_where_the_camera_kept_its_exposure_or_does_not_tell_it(tmp_path, times):
    assert gains_of_points(photographed(tmp_path, times=times)) is None


def test_there_are_no_gains_without_points_that_views_share(tmp_path):
    views = photographed(tmp_path)
    alone = [view.replaced(sparse_ids=view.sparse_ids + 1000 * i) for i, view in enumerate(views)]
    assert gains_of_points(alone) is None
    assert gains_of_points([view.replaced(sparse=None, sparse_ids=None) for view in views]) is None
    assert gains_of_points([view.replaced(files=()) for view in views]) is None


def test_masked_points_are_not_used(tmp_path):
    views = photographed(tmp_path)
    spoiled = views[0].image.clone()
    spoiled[: SIDE // 2] = 128
    mask = torch.ones(SIDE, SIDE, dtype=torch.bool)
    mask[: SIDE // 2] = False
    views[0] = views[0].replaced(image=spoiled, mask=mask)
    torch.testing.assert_close(gains_of_points(views), LOGS - LOGS.mean(0), rtol=0, atol=0.015)


def test_exposure_is_time_times_sensitivity_over_the_squared_f_number(tmp_path):
    path = write_photo(tmp_path / "a.jpg", 0.01, **{})
    assert read_exposure(path) == pytest.approx(math.log(0.01))
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x829A: 0.01, 0x829D: 4.0, 0x8827: 200})
    Image.new("RGB", (4, 4)).save(path, exif=exif)
    assert read_exposure(path) == pytest.approx(math.log(0.01 * 200 / 16))
    for time in (0.0, None):
        assert read_exposure(write_photo(path, time)) is None
    Image.new("RGB", (4, 4)).save(tmp_path / "b.png")
    assert read_exposure(tmp_path / "b.png") is None


def trainer_with(monkeypatch, logs, **options):
    monkeypatch.setattr("tsplat.training.view_gradients.gains_of_points", lambda views: logs)
    gaussians = make_gaussians()
    config = Config(steps=8, strategy=None, gains=True, backend="torch", **options)
    return Trainer(gray(gaussians), make_views(gaussians, 4), config)


def test_trainers_keep_known_gains_and_resume_with_them(monkeypatch):
    logs = LOGS - LOGS.mean(0)
    whole, stopped = trainer_with(monkeypatch, logs), trainer_with(monkeypatch, logs)
    for _ in range(8):
        whole.advance()
    for _ in range(5):
        stopped.advance()
    tensors, figures = stopped.state()
    assert torch.equal(tensors["gains/logs"], logs.float()) and figures["gains_known"]
    resumed = trainer_with(monkeypatch, None)  # photographs lost their EXIF data
    resumed.restore(tensors, figures)
    for _ in range(3):
        resumed.advance()
    assert torch.equal(resumed.state()[0]["gains/logs"], logs.float())
    assert torch.equal(resumed.gaussians.means, whole.gaussians.means)


def test_gains_are_fitted_before_the_first_step_only(monkeypatch):
    logs, fits = LOGS - LOGS.mean(0), []
    trainer = trainer_with(monkeypatch, logs)
    monkeypatch.setattr("tsplat.training.view_gradients.gains_of_points", lambda views: fits.append(1) or logs)
    unstarted = copy.deepcopy(trainer)
    trainer.advance()
    unstarted.advance()
    assert len(fits) == 2
    trainer.advance()
    resumed = Trainer(trainer.gaussians, make_views(make_gaussians(), 4), trainer.config)
    resumed.restore(*trainer.state())
    for other in (copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer)), resumed):
        other.advance()
        assert torch.equal(other.state()[0]["gains/logs"], logs.float())
    assert len(fits) == 2


def test_states_of_before_resume_with_estimates(monkeypatch):
    before, after = trainer_with(monkeypatch, None), trainer_with(monkeypatch, None)
    for _ in range(4):
        before.advance()
    for _ in range(8):
        after.advance()
    tensors, figures = before.state()
    del figures["gains_known"]
    other = trainer_with(monkeypatch, LOGS)
    other.restore(tensors, figures)
    for _ in range(4):
        other.advance()
    assert torch.equal(other.state()[0]["gains/logs"], after.state()[0]["gains/logs"])
    assert after.state()[0]["gains/logs"].abs().max() > 0


def test_known_gains_do_not_change(monkeypatch):
    logs = LOGS - LOGS.mean(0)
    gains = ViewGains(4, torch.zeros(3))
    gains.set_known(logs)
    gains.update(RankGroup())
    assert torch.equal(gains.logs, logs.float())


def test_gains_of_held_out_views_are_relative_to_training_views(tmp_path):
    views = photographed(tmp_path)
    expected = (LOGS - LOGS[:3].mean(0))[3:]
    torch.testing.assert_close(gains_of_held_out(views[:3], views[3:]), expected, rtol=0, atol=0.015)


def test_images_are_scored_with_gains():
    gaussians = make_gaussians()
    views = make_views(gaussians, 2)
    bright = [view.replaced(image=(view.image.float() * 0.5).round().to(torch.uint8)) for view in views]
    gains = torch.full((2, 3), 0.5)
    without, found = (evaluate(gaussians, bright, gains=g, backend="torch").psnr for g in (None, gains))
    assert found > 45 > 30 > without
