"""Fixtures of the command-line tests."""

import pytest
import torch

from tests.support.captures import write_scene
from tests.support.plain_results import simplify
from tsplat.scene import Gaussians, write_ply
from tsplat.training import RunConfig, train


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    """Runs every command on the CPU, so that results are the same on every machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(autouse=True, scope="module")
def _plain_results():
    with pytest.MonkeyPatch.context() as patch:
        simplify(patch.setattr)
        yield


@pytest.fixture
def model(tmp_path):
    """Path of a PLY with a red, a green and a blue ball from left to right, in a folder of its own."""
    points = torch.tensor([[-1.0, 0, 0], [0, 0, 0], [1, 0, 0]])
    gaussians = Gaussians.from_points(points, torch.eye(3), 0)
    ball = {"log_scales": torch.full((3, 3), -1.5), "opacity_logits": torch.full((3,), 4.0)}
    folder = tmp_path / "models"
    folder.mkdir()
    write_ply(folder / "model.ply", Gaussians(**{**gaussians.tensors(), **ball}))
    return folder / "model.ply"


@pytest.fixture(scope="session")
def stopped_run(tmp_path_factory):
    """A run that was stopped after 2 of 4 steps, on 5 photographs of which 2 are held out. Tests do not change it."""
    folder = tmp_path_factory.mktemp("stopped")
    scene = str(write_scene(folder / "scene", n=5))
    config = RunConfig(scene=scene, steps=4, backend="torch", device="cpu", sh_degree=0, test_every=4)
    train(config, folder / "run", stop_after=2)
    return folder / "run"
