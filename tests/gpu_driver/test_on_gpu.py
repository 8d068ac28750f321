"""Loaded kernels on a GPU; on an emulated one by the plugin of tests/emulator."""

import threading

import pytest
import torch

from tsplat import gpu_driver
from tsplat.kernels import launch

from .small_kernels import arguments, transpose_kernel, types_kernel, values

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def loaded(kernel, given):
    tensor = next(value for value in given.values() if isinstance(value, torch.Tensor))
    return gpu_driver.prepare(kernel, gpu_driver.find(launch.current_gpu(tensor)), given)


def test_arguments_arrive():
    out = torch.zeros(6, dtype=torch.float64, device=DEVICE)
    given = arguments(out)
    kernel = loaded(types_kernel, given)
    kernel(2, values(given))
    assert out.tolist() == [3, 2**40, 1] * 2
    kernel(1, values(given | dict(small=-(2**31), large=-(2**63), x=-0.5)))
    assert out.tolist() == [-(2**31), -(2**63), -2, 3, 2**40, 1]


def test_more_shared_memory_than_the_default():
    x, y = torch.rand(128, 128, device=DEVICE), torch.zeros(128, 128, device=DEVICE)
    given = dict(x=x, y=y, N=128)
    kernel = loaded(transpose_kernel, given)
    assert kernel.metadata.shared_bytes > 49_152
    kernel(1, values(given))
    assert torch.equal(y, x.T)


def test_new_threads_launch():
    out = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    given = arguments(out)
    kernel, failed = loaded(types_kernel, given), []

    def work():
        try:
            kernel(1, values(given))
        except gpu_driver.DriverError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed and out.tolist() == [3, 2**40, 1]
