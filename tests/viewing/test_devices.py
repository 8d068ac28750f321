"""Device selection."""

import pytest
import torch

from tsplat import BackendError, triton_cpu
from tsplat.viewing.devices import pick_device, reserve_threads


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_pick_device_falls_back_to_the_cpu_and_says_why(monkeypatch):
    monkeypatch.setattr("tsplat.runtime.backend.cpu_compiler_problem", lambda: "llvmlite is not installed")
    device, description = pick_device()
    assert device == torch.device("cpu")
    assert description.startswith("backend torch on cpu: llvmlite is not installed")


@pytest.mark.triton
def test_reserve_threads_leaves_pytorch_one_thread():
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        reserve_threads(torch.device("cpu"), "torch")
        assert torch.get_num_threads() == 3
        reserve_threads(torch.device("cpu"), "auto")
        assert (torch.get_num_threads(), triton_cpu.get_num_threads()) == (1, 3)
    finally:
        torch.set_num_threads(n_threads)


def test_pick_device_rejects_a_gpu_that_does_not_exist():
    with pytest.raises(BackendError, match="device: PyTorch does not find a usable GPU"):
        pick_device(device_type="cuda")


@pytest.mark.parametrize(("n_visible", "index"), [(4, 3), (1, 0)])
def test_pick_device_takes_the_gpu_of_the_local_rank(n_visible, index, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_visible)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr("tsplat.viewing.devices.choose", lambda *_: ("triton", "a GPU"))
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device()[0] == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)]
