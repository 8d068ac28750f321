"""Device selection."""

import pytest
import torch

from tsplat import BackendError
from tsplat.viewing.devices import pick_device


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_pick_device_falls_back_to_the_cpu_and_says_why():
    device, description = pick_device()
    assert device == torch.device("cpu")
    assert description.startswith("backend torch on cpu: ")


def test_pick_device_rejects_a_gpu_that_does_not_exist():
    with pytest.raises(BackendError, match="device: PyTorch finds no usable GPU"):
        pick_device(device_type="cuda")
