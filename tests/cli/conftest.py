"""Fixtures of the command-line tests."""

import pytest
import torch

from tests.support.plain_results import simplify
from tsplat.scene import Gaussians, write_ply


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
