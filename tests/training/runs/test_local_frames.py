"""Runs of a scene that is moved, turned, scaled or has outliers: the same results, in the frame of the files."""

import dataclasses
import json
import math
from statistics import mean

import pytest
import torch

from tests.support.captures import changed
from tests.support.moved_scenes import write_moved
from tsplat.scene import (
    Gaussians,
    open_model,
    plan_blocks,
    procedural_capture,
    read_capture,
    read_model,
    write_plan,
)
from tsplat.scene.rotation import axis_rotations, rotation_matrix
from tsplat.training import RunConfig, Trainer, evaluate, evaluate_run, merge_blocks, preset, read_newest, resume, train
from tsplat.training.runs.initial_gaussians import initial_gaussians
from tsplat.training.runs.scenes import LEGACY_FRAME, read_scene, with_relative_lengths
from tsplat.viewing import read_cameras, render

pytestmark = pytest.mark.usefixtures("no_gpu")


UTM = (447_000.0, 4_412_000.0, 120.0)
CONFIG = dataclasses.replace(preset("standard", 30), save_every=20, device="cpu", backend="torch", test_every=4)


@pytest.fixture(scope="module")
def capture():
    """Eight views, whose positions and points are of single precision."""
    return procedural_capture(40, 30, 8, 1, 160, seed=3)


def write(folder, capture, unit=1.0, offset=(0.0, 0.0, 0.0), **options):
    """Writes the capture in another unit and at another place."""
    train = capture.train
    return write_moved(folder, train, capture.points, capture.colors, unit=unit, offset=offset, **options)


def scores(metrics):
    return metrics["psnr"], metrics["ssim"], [view["psnr"] for view in metrics["views"]]


@pytest.fixture(scope="module")
def plain(capture, tmp_path_factory):
    """A run of the untouched scene, and its metrics."""
    folder = tmp_path_factory.mktemp("plain")
    config = dataclasses.replace(CONFIG, scene=write(folder, capture))
    return folder / "run", train(config, folder / "run")


@pytest.mark.parametrize(
    ("exponent", "steps"), [(13, (0, 0, 0)), (-10, (0, 0, 0)), (0, (1, -2, 3)), (3, (2**16, -(2**18), 7))]
)
def test_equal_local_frames_give_equal_bits(capture, plain, exponent, steps, tmp_path):
    run, metrics = plain
    unit = 2.0**exponent
    place = read_newest_frame(run)
    offset = [unit * place.unit * step for step in steps]
    config = dataclasses.replace(CONFIG, scene=write(tmp_path, capture, unit, offset))
    assert scores(train(config, tmp_path / "run")) == scores(metrics)
    one, other = read_newest(run)[1].local_gaussians(), read_newest(tmp_path / "run")[1].local_gaussians()
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def read_newest_frame(run):
    return read_capture(read_newest(run)[1].config.scene, test_every=4, frame="local").frame


def test_turned_scenes_start_with_turned_gaussians(capture, tmp_path):
    def axes(name, **changes):
        scene = read_capture(write(tmp_path / name, capture, **changes), test_every=4, frame="local")
        quats = initial_gaussians(CONFIG, scene).quats
        assert torch.equal(quats, quats[:1].expand_as(quats))
        return rotation_matrix(quats[0].tolist())

    turn = axis_rotations((20.0, -65.0, 110.0))
    plain, turned = axes("plain"), axes("turned", unit=37.0, rotation=turn.numpy())
    # Isotropic Gaussians: the order and the signs of axes do not matter.
    agreement = (plain.T @ turn.T @ turned).abs()
    torch.testing.assert_close(agreement, agreement.round(), atol=1e-3, rtol=0)
    assert agreement.round().sum(0).tolist() == agreement.round().sum(1).tolist() == [1, 1, 1]
    # The table top is level.
    assert plain[1].abs().max() > 0.999


def test_runs_and_their_models_are_in_the_frame_of_the_files(capture, tmp_path, capsys):
    config = dataclasses.replace(CONFIG, scene=write(tmp_path, capture, 500.0, (800.0, 0.0, -1700.0)))
    run = tmp_path / "run"
    metrics = train(config, run)
    assert "single precision" not in capsys.readouterr().out
    assert not (run / "world.json").exists()
    scene = read_capture(config.scene, test_every=4)
    cameras = {camera.name: camera for camera in read_cameras(run / "cameras.json")}
    for model in (read_model(run / "point_cloud.ply"), open_model(run)):
        for view, score in zip(scene.test, metrics["views"], strict=True):
            camera = cameras[view.name]
            torch.testing.assert_close(camera.viewmat, view.camera.viewmat, rtol=1e-5, atol=1e-3)
            assert camera.near == pytest.approx(view.camera.near)
            image = render(model, camera).clamp(0, 1)
            psnr = -10 * math.log10(float((image - view.pixels).square().mean()))
            assert psnr == pytest.approx(score["psnr"], abs=0.01)
    assert evaluate_run(run)["psnr"] == metrics["psnr"]
    assert read_newest(run)[1].figures["frame"]["unit"] == 2.0 ** round(math.log2(500 * 3.1))


def test_runs_resume_in_their_frame_with_equal_bits(capture, tmp_path):
    config = dataclasses.replace(CONFIG, scene=write(tmp_path, capture, 1e-3, UTM))
    whole = train(config, tmp_path / "whole")
    train(config, tmp_path / "run", stop_after=20)
    assert scores(resume(tmp_path / "run")) == scores(whole)
    one, other = (read_newest(tmp_path / name)[1] for name in ("whole", "run"))
    for name, tensor in one.local_tensors().items():
        assert torch.equal(tensor, other.local_tensors()[name]), name


@pytest.mark.long
def test_georeferenced_runs_say_where_they_are(capture, plain, tmp_path, capsys):
    config = dataclasses.replace(CONFIG, scene=write(tmp_path, capture, 1.0, UTM))
    run = tmp_path / "run"
    metrics = train(config, run)
    assert "note" in (text := capsys.readouterr().out) and "single precision cannot hold" in text
    # Rounding is amplified by Adam: means of three seeds.
    seeds = [dataclasses.replace(config, seed=seed) for seed in (1, 2)]
    found = [metrics, *(train(other, tmp_path / f"far {other.seed}") for other in seeds)]
    scene = write(tmp_path / "plain", capture)
    near = [dataclasses.replace(other, scene=scene) for other in seeds]
    expected = [plain[1], *(train(other, tmp_path / f"near {other.seed}") for other in near)]
    assert mean(one["psnr"] for one in found) == pytest.approx(mean(one["psnr"] for one in expected), abs=0.3)
    world = torch.tensor(json.loads((run / "world.json").read_text()), dtype=torch.float64)
    torch.testing.assert_close(-world[:3, 3], torch.tensor(UTM, dtype=torch.float64), atol=4.0, rtol=0)
    # What is far in the model is near in the files.
    means = read_model(run / "point_cloud.ply").means.double() - world[:3, 3]
    expected = capture.points.double() + torch.tensor(UTM, dtype=torch.float64)
    torch.testing.assert_close(means.median(0).values, expected.median(0).values, atol=0.5, rtol=0)


def test_photographs_of_poses_that_failed_change_no_bit(capture, plain, tmp_path, capsys):
    config = dataclasses.replace(CONFIG, scene=write(tmp_path, capture, cameras=(300.0, 2e5)))
    run = tmp_path / "run"
    train(config, run, stop_after=20)
    assert "left out 2 of 10 photographs (005_far_0.png, 005_far_1.png)" in capsys.readouterr().out
    metrics = resume(run)
    assert metrics["left_out"] == ["005_far_0.png", "005_far_1.png"]
    assert plain[1]["left_out"] == []
    assert scores(metrics) == scores(plain[1])
    assert "2 photographs with distant cameras left out" in (run / "report.html").read_text()
    assert {camera.name for camera in read_cameras(run / "cameras.json")} == {f"{i:03}.png" for i in range(8)}
    assert evaluate_run(run)["left_out"] == metrics["left_out"]
    assert train(dataclasses.replace(config, keep_far=True, steps=1), tmp_path / "kept")["left_out"] == []
    names = {camera.name for camera in read_cameras(tmp_path / "kept" / "cameras.json")}
    assert names.issuperset(metrics["left_out"])


def test_runs_before_local_frames_keep_all_photographs(capture, tmp_path):
    config = dataclasses.replace(CONFIG, scene=write(tmp_path, capture, cameras=(300.0,)))
    assert read_scene(config).left_out == ("005_far_0.png",)
    assert read_scene(config, frame=LEGACY_FRAME).left_out == ()


def test_points_far_away_change_little(capture, plain, tmp_path):
    metrics = train(dataclasses.replace(CONFIG, scene=write(tmp_path, capture, far_points=(1e6,))), tmp_path / "run")
    assert metrics["psnr"] > plain[1]["psnr"] - 1.0


def test_blocks_of_a_georeferenced_scene_merge_in_one_frame(capture, tmp_path):
    scene = write(tmp_path / "scene", capture, 1.0, UTM)
    found = read_capture(scene)
    (tmp_path / "plan").mkdir()
    plan = plan_blocks(found, 2, scene=scene)
    write_plan(tmp_path / "plan", plan)
    assert plan.world == tuple(map(tuple, found.world.tolist()))
    for k in range(2):
        config = dataclasses.replace(CONFIG, scene=scene, block=f"{tmp_path / 'plan'}:{k}")
        train(config, tmp_path / "plan" / f"block_{k}")
    merged = merge_blocks(tmp_path / "plan")
    torch.testing.assert_close(merged.means.median(0).values, found.points.median(0).values, atol=0.5, rtol=0)


def test_trainers_do_not_depend_on_the_unit_of_their_views(capture):
    """Without a local frame, as views in memory may be in any."""
    found = []
    for unit in (1.0, 1e-4, 1e4):
        views = [moved(view, unit) for view in capture.train]
        start = Gaussians.from_points(unit * capture.points, capture.colors, 0, opacity=0.5, scale=0.3)
        config = dataclasses.replace(CONFIG, scale_weight=0.1, background=capture.background)
        trainer = Trainer(start, views, config)
        for _ in range(20):
            trainer.advance()
        found.append(evaluate(trainer.gaussians, views, background=capture.background).psnr)
    assert found[1:] == pytest.approx([found[0]] * 2, abs=0.02)


def moved(view, unit):
    viewmat = view.camera.viewmat.clone()
    viewmat[:3, 3] *= unit
    return changed(view, viewmat=viewmat)


def test_settings_of_runs_before_local_frames_keep_their_meaning():
    config = dataclasses.replace(CONFIG, scale_weight=0.03)
    converted = with_relative_lengths(config, 8.0)
    assert converted.scale_weight == pytest.approx(0.06)
    assert converted.strategy.noise_lr == pytest.approx(4 * config.strategy.noise_lr)
    assert with_relative_lengths(preset("adaptive", 30), 8.0).strategy == preset("adaptive", 30).strategy
    assert with_relative_lengths(RunConfig(), 8.0).scale_weight == 0
