"""Runs that start from models: their frames, frozen parts, and finding the models again."""

import dataclasses
import json

import pytest
import torch

from tests.support.moved_scenes import write_moved
from tests.training.runs.test_train import results
from tsplat import ArgumentError
from tsplat.scene import (
    FileError,
    Gaussians,
    merge_models,
    plan_blocks,
    procedural_capture,
    read_capture,
    read_model,
    set_sh_degree,
    write_model,
    write_plan,
)
from tsplat.training import Config, RunConfig, Trainer, evaluate, preset, read_newest, resume, train
from tsplat.training.configuration import FROZEN_NAMES
from tsplat.training.runs.initial_gaussians import read_initial_model

pytestmark = pytest.mark.usefixtures("no_gpu")


CONFIG = dataclasses.replace(preset("refine", 6), device="cpu", backend="torch", test_every=4, save_every=4)


@pytest.fixture(scope="module")
def capture():
    return procedural_capture(40, 30, 8, 1, 160, seed=3)


@pytest.fixture(scope="module")
def model(capture):
    """Gaussians at the points of the capture, with colors of degree 2 and awkward numbers."""
    generator = torch.Generator().manual_seed(1)
    gaussians = Gaussians.from_points(capture.points, capture.colors, 2, opacity=0.7)
    noise = {name: 0.05 * torch.randn(t.shape, generator=generator) for name, t in gaussians.tensors().items()}
    return dataclasses.replace(gaussians, **{name: t + noise[name] for name, t in gaussians.tensors().items()})


@pytest.fixture(scope="module")
def scene(capture, tmp_path_factory):
    """The folder of the capture at a place from which its local frame differs in origin and unit."""
    folder = tmp_path_factory.mktemp("scene")
    return write_moved(folder, capture.train, capture.points, capture.colors, unit=3.0, offset=(40.0, -7.3, 0.7))


@pytest.fixture(scope="module")
def moved(model):
    """The model where the scene is."""
    means = 3.0 * model.means + torch.tensor([40.0, -7.3, 0.7])
    return dataclasses.replace(model, means=means, log_scales=model.log_scales + torch.tensor(3.0).log())


def test_runs_start_with_what_the_model_shows(scene, moved, tmp_path, capsys):
    write_model(tmp_path / "model.ply", moved)
    config = dataclasses.replace(CONFIG, scene=scene, init=(str(tmp_path / "model.ply"),))
    metrics = train(config, tmp_path / "run")
    first = json.loads((tmp_path / "run" / "checkpoints" / "step_00000006" / "checkpoint.json").read_text())
    before, *_, after = first["figures"]["history"]["test_psnr"]
    capture = read_capture(scene, test_every=4, frame="local")
    local = capture.frame.gaussians_to_local(moved)
    assert not capture.frame.is_model_frame
    back = capture.frame.gaussians_of_model(local)
    assert torch.allclose(back.means, moved.means, atol=1e-5) and torch.allclose(
        back.log_scales, moved.log_scales, atol=1e-5
    )
    assert before == pytest.approx(evaluate(local, capture.test, backend="torch").psnr, abs=1e-4)
    assert metrics["psnr_initial"] == pytest.approx(before, abs=1e-4) and after > before
    saved = read_newest(tmp_path / "run")[1]
    assert saved.config.sh_degree == 2 and saved.gaussians.sh_degree == 2 and len(saved.gaussians) == len(moved)
    assert "160 Gaussians" in capsys.readouterr().out


def test_runs_start_from_points_of_a_survey(scene, capture, tmp_path, capsys):
    kept = capture.points[:90]
    survey = write_moved(
        tmp_path / "survey", capture.train, kept, capture.colors[:90], unit=3.0, offset=(40.0, -7.3, 0.7)
    )
    points = f"{survey}/points.ply"
    config = dataclasses.replace(preset("fixed", 4), device="cpu", backend="torch", scene=scene, points=points)
    train(config, tmp_path / "run", stop_after=2)
    assert f"{points}: training starts from its 90 points" in capsys.readouterr().out
    found = read_newest(tmp_path / "run")[1].gaussians
    assert len(found) == 90
    expected = 3.0 * kept + torch.tensor([40.0, -7.3, 0.7])
    assert (found.means - expected).norm(dim=1).max() < 0.1 * (expected.amax(0) - expected.amin(0)).norm()
    write_moved(tmp_path / "survey", capture.train, kept + 1, capture.colors[:90])
    with pytest.raises(FileError, match="differ"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("part", FROZEN_NAMES)
def test_frozen_parts_are_written_as_they_were(part, scene, moved, tmp_path):
    write_model(tmp_path / "model.ply", moved)
    config = dataclasses.replace(CONFIG, scene=scene, init=(str(tmp_path / "model.ply"),), freeze=(part,))
    train(config, tmp_path / "run")
    names = {"means": "means", "scales": "log_scales", "quats": "quats", "opacities": "opacity_logits"}
    frozen = {names.get(name, name) for name in FROZEN_NAMES[part]}
    for found in (read_model(tmp_path / "run" / "point_cloud.ply"), read_newest(tmp_path / "run")[1].gaussians):
        for name, tensor in found.tensors().items():
            assert torch.equal(tensor, moved.tensors()[name]) == (name in frozen), name


@pytest.mark.slow
@pytest.mark.parametrize("visible", ["on", "off"])
def test_resumed_runs_from_a_model_are_bit_exact(visible, scene, moved, tmp_path):
    write_model(tmp_path / "a" / "model.ply", moved)
    config = dataclasses.replace(CONFIG, scene=scene, init=(str(tmp_path / "a" / "model.ply"),), freeze=("positions",))
    config = dataclasses.replace(config, visible_adam=visible, clip_gradients=1.0)
    train(config, tmp_path / "a" / "whole")
    train(config, tmp_path / "a" / "cut", stop_after=4)
    (tmp_path / "a").rename(tmp_path / "b")  # the model moves with the run
    resume(tmp_path / "b" / "cut")
    (expected, *_), (found, *_) = results(tmp_path / "b" / "whole"), results(tmp_path / "b" / "cut")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(read_model(tmp_path / "b" / "cut" / "point_cloud.ply").means, moved.means)
    assert not any(name.startswith("adam/means") for name in found)


def test_changed_or_missing_models_are_told_when_a_run_is_resumed(scene, moved, tmp_path):
    path = tmp_path / "model.ply"
    write_model(path, moved)
    config = dataclasses.replace(CONFIG, scene=scene, init=(str(path),))
    train(config, tmp_path / "run", stop_after=1)
    write_model(path, dataclasses.replace(moved, sh0=moved.sh0 + 1))
    with pytest.raises(FileError, match="models in init have changed since the run started"):
        resume(tmp_path / "run", stop_after=2)
    path.unlink()
    with pytest.raises(FileError, match=r"model\.ply: no such model, from which the run started; put it back"):
        resume(tmp_path / "run", stop_after=2)
    with pytest.raises(FileError, match=r"model\.ply: no such model; --init expects"):
        train(config, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_several_models_are_merged_and_invalid_gaussians_left_out(scene, moved, tmp_path, capsys):
    first, second = moved.select(slice(0, 100)), set_sh_degree(moved.select(slice(100, None)), 0)
    first = dataclasses.replace(first, quats=first.quats * (torch.arange(100) != 3)[:, None])
    write_model(tmp_path / "a.ply", first)
    write_model(tmp_path / "b.spz", second)
    config = dataclasses.replace(CONFIG, scene=scene, init=(str(tmp_path / "a.ply"), str(tmp_path / "b.spz")))
    capture = read_capture(scene, test_every=4, frame="local")
    found = read_initial_model(config, capture)
    expected = merge_models([first, read_model(tmp_path / "b.spz")])
    expected = expected.select(expected.valid)
    assert len(found) == 159 and all(map(torch.equal, found.tensors().values(), expected.tensors().values()))
    assert "left out 1 of 160 Gaussians" in capsys.readouterr().out
    for degree in (0, 3):
        assert read_initial_model(dataclasses.replace(config, sh_degree=degree), capture).sh_degree == degree


def test_models_that_cannot_start_a_run_are_refused(scene, moved, tmp_path, capsys):
    capture = read_capture(scene, test_every=4, frame="local")
    models = {
        "away": dataclasses.replace(moved, means=moved.means - 1000),
        "flat": moved.as_surfels(),
        "empty": dataclasses.replace(moved, quats=0 * moved.quats),
    }
    messages = {
        "away": "away.ply: no training view shows it; a model must be in the frame",
        "flat": r"primitive: .*flat.ply has 2D Gaussians, found '3dgs'; use primitive 2dgs",
        "empty": "init: expected at least one Gaussian",
    }
    for name, gaussians in models.items():
        write_model(tmp_path / f"{name}.ply", gaussians)
        with pytest.raises(ArgumentError, match=messages[name]):
            read_initial_model(dataclasses.replace(CONFIG, init=(str(tmp_path / f"{name}.ply"),)), capture)
    flat = dataclasses.replace(CONFIG, init=(str(tmp_path / "flat.ply"),), primitive="2dgs")
    assert read_initial_model(flat, capture).surfels
    write_model(tmp_path / "model.ply", moved)
    solid = dataclasses.replace(flat, init=(str(tmp_path / "model.ply"),))
    with pytest.raises(ArgumentError, match="has 3D Gaussians, found '2dgs'"):
        read_initial_model(solid, capture)
    capsys.readouterr()
    read_initial_model(dataclasses.replace(CONFIG, init=solid.init, antialiased=True), capture)
    assert "not trained for antialiased rendering" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_another_frame_is_moved_to_that_of_this_run(scene, moved, tmp_path, capsys):
    write_model(tmp_path / "model.ply", moved)
    config = dataclasses.replace(CONFIG, scene=scene, init=(str(tmp_path / "model.ply"),))
    train(config, tmp_path / "files")
    again = dataclasses.replace(config, init=(str(tmp_path / "files"),), normalize=True)
    metrics = train(again, tmp_path / "normalized")
    assert "moved from the frame of its run" in capsys.readouterr().out
    before = json.loads((tmp_path / "files" / "metrics.json").read_text())
    assert metrics["psnr_initial"] == pytest.approx(before["psnr"], abs=1e-3)
    world = torch.tensor(json.loads((tmp_path / "normalized" / "world.json").read_text()))
    assert world.shape == (4, 4)


def test_blocks_start_with_what_their_views_show(scene, moved, tmp_path, capsys):
    plan = plan_blocks(read_capture(scene, test_every=0), 2, scene=scene)
    write_plan(tmp_path, plan)
    write_model(tmp_path / "model.ply", moved)
    config = dataclasses.replace(CONFIG, init=(str(tmp_path / "model.ply"),), block=f"{tmp_path}:1")
    capture = read_capture(scene, test_every=0, frame="local")
    few = dataclasses.replace(capture, train=capture.train[:1])
    found = read_initial_model(config, few)
    assert int(plan.contains(1, moved.means, expanded=True).sum()) <= len(found) <= len(moved)
    assert f"block 1 of 2: {len(found)} of 160 Gaussians" in capsys.readouterr().out


def test_degrees_of_the_initial_gaussians_are_used_from_the_first_step(capture, model):
    config = Config(steps=8, sh_interval=3, backend="torch")
    for gaussians, expected in (
        (model, [2] * 8),
        (set_sh_degree(set_sh_degree(model, 1), 2), [1, 1, 1, 1, 1, 1, 2, 2]),
        (set_sh_degree(set_sh_degree(model, 0), 2), [0, 0, 0, 1, 1, 1, 2, 2]),
    ):
        trainer = Trainer(gaussians, capture.train, config)
        assert [trainer._view_gradients._sh_degree_at(step) for step in range(8)] == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(freeze=("means",)), "freeze: expected one of 'positions', 'scales', .*, found 'means'"),
        (dict(freeze="positions"), "freeze: expected a tuple of some of positions"),
        (dict(freeze=tuple(FROZEN_NAMES)), "freeze: nothing is left to train"),
        (dict(freeze=("scales",), max_elongation=3.0), "max_elongation: shortens the scales"),
        (dict(freeze=("colors",), strategy=preset("mcmc").strategy), "freeze: colors cannot stay .* use the preset"),
        (dict(init="model.ply"), "init: expected a tuple of paths"),
        (dict(init=("",)), "init: expected a tuple of paths"),
        (dict(init=("model.ply",), sky=100), "sky: not with init"),
        (dict(sh_degree=5), "sh_degree: expected one of 0, 1"),
    ],
)
def test_invalid_settings(values, message):
    with pytest.raises(ArgumentError, match=message):
        RunConfig(**values)
