"""The comparison of trainers runs end to end, and its rendered captures are what it says."""

import json

import pytest
import torch

from benchmarks import room, trainers
from tsplat.scene import intrinsics


def test_recipes_are_compared_at_an_equal_budget(tmp_path, monkeypatch, capsys):
    file, figure = tmp_path / "runs.jsonl", tmp_path / "curves.png"
    options = ["--captures", "tiny", "--recipes", "gsplat", "standard:strategy.refine_every=1", "--steps", "40"]
    monkeypatch.setattr(
        "sys.argv", ["trainers", *options, "--seeds", "0", "--json", str(file), "--figure", str(figure)]
    )
    trainers.main()
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert first["gaussians"] == 640 >= second["gaussians"] > 200
    assert [step for _, step, _ in second["curve"]] == list(range(4, 44, 4))
    assert second["psnr"] > second["curve"][0][2] + 1
    assert figure.stat().st_size > 5000
    rows = trainers.table([first, second, {**first, "seed": 1, "psnr": first["psnr"] + 1}]).splitlines()
    assert f"| tiny | 40 | gsplat | 2 | 640 | {first['psnr'] + 0.5:.2f} ± 0.50 |" in rows[2]


def test_captures_without_photographs_are_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trainers, "SCENES", tmp_path)
    monkeypatch.setattr("sys.argv", ["trainers", "--captures", "banana"])
    trainers.main()
    assert "banana: skipped" in capsys.readouterr().out


def test_scenes_are_trained_in_place_of_captures(tmp_path, monkeypatch, capsys):
    calls = []

    def read_capture(path, downscale):
        calls.append((path, downscale))
        return trainers.CAPTURES["tiny"]()

    monkeypatch.setattr(trainers, "read_capture", read_capture)
    options = ["--scenes", str(tmp_path / "mine"), "--downscale", "3", "--recipes", "standard", "--steps", "2"]
    monkeypatch.setattr("sys.argv", ["trainers", *options, "--seeds", "0"])
    trainers.main()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert calls == [(tmp_path / "mine", 3)] and (line["capture"], line["steps"]) == ("mine", 2)


def test_gsplat_has_the_schedule_of_its_trainer():
    # gsplat 1.5.3: adjust_steps multiplies by steps_scaler and truncates.
    config = trainers.configure("gsplat", 1500)
    strategy = config.strategy
    assert (strategy.refine_start_iter, strategy.refine_stop_iter, strategy.refine_every) == (25, 1250, 5)
    assert (config.sh_interval, config.start_opacity, config.start_scale) == (50, 0.5, 0.1)


def test_settings_replace_or_multiply():
    config = trainers.configure("mcmc:means_rate*=2,antialiased=true,strategy.noise_lr=0", 30_000)
    assert (config.means_rate, config.antialiased, config.strategy.noise_lr) == (3.2e-4, True, 0)
    with pytest.raises(SystemExit, match="NAME=VALUE"):
        trainers.configure("mcmc:antialiased", 100)


def test_room_has_consistent_points_and_gains_around_one():
    plain, varied = (room.room_capture(24, 18, 4, 1, 50, exposure=exposure) for exposure in (0.0, 0.25))
    assert torch.equal(plain.test[0].image, varied.test[0].image)
    ratios = torch.stack([b.pixels.mean((0, 1)) / a.pixels.mean((0, 1)) for a, b in zip(plain.train, varied.train)])
    assert ratios.std(0).min() > 0.05
    assert ratios.log().mean(0).abs().max() < 0.05
    half = torch.tensor(room.HALF)
    assert (plain.points.abs() < half + 0.1).all()


def test_rows_of_a_rolling_shutter_are_those_of_their_poses():
    K = intrinsics(16, 12, room.FOV)
    start, end = room.camera(0.1, 0.5), room.camera(0.14, 0.5)
    image = room.trace(start, K, 16, 12, end=end)[0]
    poses = room.poses_of_rows(start, end, 12)
    torch.testing.assert_close(poses[[0, 11]], torch.stack([start, end]), rtol=0, atol=1e-6)
    for row, pose in enumerate(poses):
        torch.testing.assert_close(image[row], room.trace(pose, K, 16, 12)[0][row], rtol=0, atol=1e-4)
    assert (image[-1] - room.trace(start, K, 16, 12)[0][-1]).abs().max() > 0.05
    scene = room.room_capture(16, 12, 1, 0, 10, rolling=0.04)
    camera = scene.train[0].camera
    assert torch.equal(camera.viewmat_end, room.camera(0.04, -1.0)) and camera.readout == "ROLLING_TOP_TO_BOTTOM"


def test_rays_meet_what_they_should():
    (center, radius), eye = room.BALLS[0], torch.tensor([[0.0, 0.35, -1.7]])
    depth, solid, normal = room.intersect(eye, torch.tensor([[0.0, 0, 1]]))
    assert (float(depth), int(solid)) == (pytest.approx(center[2] - radius + 1.7), 1)
    assert normal[0].tolist() == pytest.approx([0, 0, -1], abs=1e-6)
    depth, solid, normal = room.intersect(eye, torch.tensor([[0.0, -1, 0]]))
    assert (float(depth), int(solid)) == (pytest.approx(room.HALF[1] + 0.35), 0)
    assert normal[0].tolist() == pytest.approx([0, 1, 0], abs=1e-6)
