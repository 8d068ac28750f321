"""Training on distorted photographs as they were taken."""

import dataclasses
import json
import shutil

import pytest
import torch

from tests.support.captures import sample_views, write_colmap
from tsplat.rendering import render_views
from tsplat.training import RunConfig, evaluate_run, read_newest, resume, train
from tsplat.training.runs.scenes import describe_capture, difference, read_scene
from tsplat.viewing.trajectories import read_cameras

for module in ("pycolmap", "PIL"):
    pytest.importorskip(module)

DISTORTION = (-0.1, 0.02, 0.01, -0.02)
CONFIG = RunConfig(
    steps=8, sh_degree=0, camera="native", test_every=4, pose_refinement=True, lens_refinement=True, save_every=4,
    keep=2,
)  # fmt: skip


@pytest.fixture
def scene(tmp_path):
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    camera = f"OPENCV 40 30 40 41 20 15 {' '.join(map(str, DISTORTION))}"
    return write_colmap(tmp_path / "scene", sample_views(), points, camera)


@pytest.mark.long
def test_runs_train_on_photographs_as_they_were_taken(scene, tmp_path):
    run = tmp_path / "run"
    train(dataclasses.replace(CONFIG, scene=str(scene)), run)
    cameras = read_cameras(run / "cameras.json")
    assert all(camera.distortion.tolist() == pytest.approx(DISTORTION) for camera in cameras)
    metrics = json.loads((run / "metrics.json").read_text())
    assert len(metrics["lens_changes"]) == 1 and any(metrics["lens_changes"][0])
    assert metrics["psnr_fitted_poses"] != metrics["psnr"] and 0 < metrics["ssim_fitted_poses"] < 1
    gaussians = read_newest(run)[1].gaussians
    image = render_views(gaussians, cameras[:1])[0]
    plain = render_views(gaussians, [dataclasses.replace(cameras[0], distortion=None)])[0]
    assert not torch.equal(image, plain)
    assert evaluate_run(run)["psnr"] == pytest.approx(json.loads((run / "metrics.json").read_text())["psnr"])
    shutil.rmtree(sorted((run / "checkpoints").glob("step_*"))[-1])
    resume(run)
    for name, tensor in read_newest(run)[1].gaussians.tensors().items():
        assert torch.equal(tensor, gaussians.tensors()[name]), name


def test_a_changed_lens_is_another_camera(scene):
    config = dataclasses.replace(CONFIG, scene=str(scene))
    recorded = describe_capture(read_scene(config))
    assert not difference(recorded, describe_capture(read_scene(config)), "scene")
    undistorted = describe_capture(read_scene(dataclasses.replace(config, camera="undistorted")))
    assert "9 cameras have changed" in difference(recorded, undistorted, "scene")
    path = scene / "sparse" / "0" / "cameras.txt"
    path.write_text(path.read_text().replace("-0.1 ", "-0.11 "))
    assert "9 cameras have changed" in difference(recorded, describe_capture(read_scene(config)), "scene")
