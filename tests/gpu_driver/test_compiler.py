"""Triton compiles for a target without its driver: the keys in its cache are those of its own launches."""

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from emulator.emulation import emulated, target_of
from tsplat.gpu_driver import DriverError
from tsplat.gpu_driver.compiler import compiled_for
from tsplat.kernels.intersection import _tile_lists_kernel

from .small_kernels import TARGETS, arguments, types_kernel


def of_tile_lists(offset=0):
    ids = torch.arange(5 + offset, dtype=torch.int32)[offset:]
    sorted_ids, gaussian_major_indices = (torch.empty(5, dtype=torch.int32) for _ in range(2))
    return dict(
        keys=torch.zeros(5, dtype=torch.int16), indices=torch.arange(5), flatten_ids=ids, sorted_ids=sorted_ids,
        gaussian_major_indices=gaussian_major_indices, isect_offsets=torch.empty(3, dtype=torch.int32), n=5, n_tiles=2,
        first_key=0, search_steps=3, BLOCK=16,
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_keys_in_the_cache_are_those_of_tritons_launches(target):
    out = torch.zeros(5, dtype=torch.float64)
    kinds = [(_tile_lists_kernel, of_tile_lists()), (_tile_lists_kernel, of_tile_lists(1))]
    for given in (
        arguments(out), arguments(out[1:]), arguments(out, small=2**31), arguments(out, N=5),
        arguments(out, num_warps=2), arguments(out, enable_fp_fusion=False, num_stages=1), arguments(out, debug=True),
    ):  # fmt: skip
        kinds.append((types_kernel, given))
    found = [compiled_for(kernel, target_of(target), given).hash for kernel, given in kinds]
    with emulated(target):
        assert found == [kernel.warmup(grid=(1,), **given).hash for kernel, given in kinds]
    assert len(set(found)) == len(found)


def test_tritons_driver_is_not_asked(monkeypatch):
    class Driver:
        def __getattr__(self, name):
            raise AssertionError(f"Triton's driver was asked for {name}")

    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    assert compiled_for(types_kernel, target_of("sm_80"), arguments(torch.zeros(3, dtype=torch.float64))).kernel


def test_another_way_to_specialize_is_said(monkeypatch):
    monkeypatch.delattr(JITFunction, "_pack_args")
    with pytest.raises(DriverError, match=r"types_kernel: tsplat does not know how Triton \S+ specializes kernels"):
        compiled_for(types_kernel, target_of("sm_80"), arguments(torch.zeros(3, dtype=torch.float64)))


UNKNOWN = [(GPUTarget("cuda", 999, 32), "sm_999"), (GPUTarget("hip", "gfx9999", 64), "gfx9999")]


@pytest.mark.parametrize(("target", "arch"), UNKNOWN)
def test_targets_that_triton_does_not_know_are_named(target, arch, capfd):
    with pytest.raises(DriverError, match=rf"types_kernel: Triton .* cannot compile it for {arch} .*install a newer"):
        compiled_for(types_kernel, target, arguments(torch.zeros(3, dtype=torch.float64)))
