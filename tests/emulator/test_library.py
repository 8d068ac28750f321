"""The emulator's library refuses what drivers refuse."""

import ctypes

import pytest
import torch
import triton
import triton.language as tl

from emulator import build
from emulator.emulation import emulated
from emulator.library import library

CUDA = {"success": 0, "invalid value": 1, "invalid image": 200, "no context": 201, "invalid handle": 400}
NOT_FOUND = 500


@triton.jit
def _one_kernel(x):
    tl.store(x, 1.0)


@pytest.fixture
def cuda():
    """The library, with a context of this thread at the start and none at the end."""
    functions = ctypes.CDLL(build.driver_library()._name)
    context = ctypes.c_void_p()
    assert functions.cuInit(0) == functions.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    functions.cuCtxSetCurrent(context)
    yield functions
    functions.cuCtxSetCurrent(None)


def module_of(cuda, image):
    module = ctypes.c_void_p()
    return cuda.cuModuleLoadData(ctypes.byref(module), image), module


def compiled():
    with emulated("cuda:80"):
        return _one_kernel.warmup(torch.zeros(1), grid=(1,)).kernel


def function_of(cuda, module, name):
    function = ctypes.c_void_p()
    return cuda.cuModuleGetFunction(ctypes.byref(function), module, name), function


def test_binaries_are_known_to_the_byte(cuda):
    image = compiled()
    code, module = module_of(cuda, image + bytes(100))
    assert code == 0 and function_of(cuda, module, b"_one_kernel")[0] == 0
    assert function_of(cuda, module, b"_two_kernel")[0] == NOT_FOUND
    code, module = module_of(cuda, image[:-1] + bytes([image[-1] ^ 1]))
    assert code == 0 and function_of(cuda, module, b"_one_kernel")[0] == NOT_FOUND
    assert module_of(cuda, b"no binary")[0] == CUDA["invalid image"]


def test_nothing_works_without_a_context(cuda):
    image = compiled()
    _, module = module_of(cuda, image)
    cuda.cuCtxSetCurrent(None)
    assert module_of(cuda, image)[0] == function_of(cuda, module, b"_one_kernel")[0] == CUDA["no context"]
    assert cuda.cuLaunchKernelEx(None, None, None, None) == CUDA["no context"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "success"),
        ({0: 0}, "invalid value"),
        ({1: 65_536}, "invalid value"),
        ({3: 0}, "invalid value"),
        ({3: 1_025}, "invalid value"),
        ({3: 32, 4: 33}, "invalid value"),
        ({6: 49_153}, "invalid value"),
    ],
)
def test_launches_are_checked(cuda, changed, expected):
    """Of the configuration: the grid, the threads and the shared memory, seven integers."""
    _, module = module_of(cuda, compiled())
    _, function = function_of(cuda, module, b"_one_kernel")
    config = (ctypes.c_uint32 * 14)(1, 1, 1, 128, 1, 1, 0)
    for place, value in changed.items():
        config[place] = value
    pointers = [ctypes.c_uint64(0) for _ in range(3)]
    parameters = (ctypes.c_void_p * 3)(*(ctypes.addressof(pointer) for pointer in pointers))
    made = []
    with emulated("cuda:80"):
        library().execute = lambda source, launch: made.append(launch)
        assert cuda.cuLaunchKernelEx(config, function, parameters, None) == CUDA[expected]
        assert cuda.cuLaunchKernelEx(config, None, parameters, None) == CUDA["invalid handle"]
    assert len(made) == (expected == "success")


def test_launches_fail_while_nothing_is_emulated(cuda):
    _, module = module_of(cuda, compiled())
    _, function = function_of(cuda, module, b"_one_kernel")
    config = (ctypes.c_uint32 * 14)(1, 1, 1, 128, 1, 1, 0)
    pointers = [ctypes.c_uint64(0) for _ in range(3)]
    parameters = (ctypes.c_void_p * 3)(*(ctypes.addressof(pointer) for pointer in pointers))
    assert cuda.cuLaunchKernelEx(config, function, parameters, None) == 719
    text = ctypes.c_char_p()
    assert cuda.cuGetErrorString(719, ctypes.byref(text)) == 0
    assert b"emulated GPU that no longer exists" in text.value


def test_launches_can_be_answered_from_a_recording():
    x = torch.zeros(4)
    data, others = (torch.tensor(pair).numpy().tobytes() for pair in ([5.0, 6.0], [7.0, 8.0]))
    with emulated("cuda:80") as gpu:
        for _ in range(2):
            with library().answering([(0, 0, 4, data), (2, 0, -4, others)]) as begin:
                for _ in range(2):
                    begin()
                    x.zero_()
                    _one_kernel[(1,)](x)
                    assert x.tolist() == [0, 5, 6, 0]
                    _one_kernel[(1,)](x)
                    assert x.tolist() == [0, 5, 6, 0]
                    _one_kernel[(1,)](x[2:])
                    assert x.tolist() == [0, 7, 8, 0]
        assert not gpu.counts
        _one_kernel[(1,)](x)
    assert x[0] == 1 and gpu.counts


def test_what_was_built_before_needs_no_gcc(monkeypatch, tmp_path):
    for core in (build.nvidia_core, build.driver_library, lambda: build.amd_core(32), lambda: build.amd_core(64)):
        core()
    monkeypatch.setenv("PATH", "")
    assert build.missing() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.missing() == "needs gcc, or libraries that gcc has built before"
