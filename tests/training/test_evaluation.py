"""Evaluation of views."""

import dataclasses
import math

import pytest
import torch

from tsplat.training import Evaluation, Score, evaluate
from tsplat.training.evaluation import _render


def test_metrics_are_those_of_the_clamped_image(scene):
    gaussians, views = scene
    bright = dataclasses.replace(gaussians, sh0=gaussians.sh0 + 100)
    (score,) = evaluate(bright, views[:1])
    assert score.image.amax() == 1
    mse = float((score.image - views[0].pixels).square().mean())
    assert score.psnr == pytest.approx(-10 * math.log10(mse), abs=1e-3)


def test_first_image_is_not_measured_where_it_compiles(scene, monkeypatch):
    gaussians, views = scene
    now, times = [0.0], iter([9.0, 5.0, 2.0, 1.0, 1.0])  # compiled, traced, traced again, replayed

    def slow_at_first(*arguments, **options):
        now[0] += next(times)
        return _render(*arguments, **options)

    monkeypatch.setattr("tsplat.training.evaluation._render", slow_at_first)
    monkeypatch.setattr("tsplat.training.evaluation.time.perf_counter", lambda: now[0])
    assert [score.seconds for score in evaluate(gaussians, views[:2], warm_up=True)] == [1.0, 1.0]


def test_masked_pixels_do_not_count(scene):
    gaussians, views = scene
    mask = torch.ones(30, 40, dtype=torch.bool)
    mask[:, 20:] = False
    image = views[0].image.clone()
    image[:, 20:] = 255
    masked = dataclasses.replace(views[0], image=image, mask=mask)
    assert evaluate(gaussians, [masked]).psnr > 50
    assert evaluate(gaussians, [dataclasses.replace(masked, mask=None)]).psnr < 20


def test_report_has_means_and_no_infinity(scene):
    _, views = scene
    scores = [Score(views[0], torch.empty(0), 20.0, 0.5), Score(views[1], torch.empty(0), math.inf, 1.0)]
    metrics = Evaluation(scores).to_json()
    assert (metrics["psnr"], metrics["ssim"]) == (None, 0.75)
    assert [view["psnr"] for view in metrics["views"]] == [20.0, None]
