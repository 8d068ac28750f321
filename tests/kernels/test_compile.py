"""Every kernel of the package compiles for NVIDIA and AMD GPUs, without register spills and within its budget."""

import functools
import json

import pytest

static_cost = pytest.importorskip("benchmarks.static_cost", reason="needs Triton")

if static_cost.kernels_are_interpreted():
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

BUDGETS = json.loads(static_cost.BUDGETS.read_text())
GOALS = {"_composite_fwd_kernel": 21, "_composite_bwd_kernel": 56}
"""Machine instructions per 32 pixels and Gaussian, for three channels and tiles of 16, that budgets never exceed."""


LONG = ("projection", "sh", "composite", "features")
"""Kernels that take long to compile; they are tested on fewer targets."""


@functools.cache
def shipped_launches(vendor, channels, tile_sizes):
    return static_cost.shipped_launches(vendor, channels, tile_sizes)


def compile_kernels(kernel, target, channels, tile_sizes):
    """Compiles the variants of a kernel. Returns how many of them have a budget."""
    vendor = "nvidia" if target.startswith("cuda") else "amd"
    launches = shipped_launches(vendor, channels, tile_sizes)
    calls = [(label, call) for label, call in launches if f"_{kernel}_" in call.kernel.__name__]
    assert calls
    n_budgets = 0
    for label, call in calls:
        record = static_cost.cost(label, call, target)
        if vendor == "nvidia":
            assert record["spill_bytes"] == 0, record
            budget = BUDGETS.get(f"{record['kernel']} {label}")
            assert budget is None or record["per_32"] <= budget, (budget, record)
            n_budgets += budget is not None
            if record.get("D") == 3 and call.constants["TILE"] == 16 and "absgrad" not in label:
                assert record["per_32"] <= GOALS[record["kernel"]], record
    return n_budgets


@pytest.mark.slow
@pytest.mark.parametrize("target", static_cost.TARGETS)
@pytest.mark.parametrize(
    "kernel",
    ["projection", "valid", "sh", "tile", "composite", "features", "pack", "segment", "moments", "ssim", "adam"],
)
def test_kernel_compiles_without_spills(target, kernel):
    if kernel in LONG and target in ("cuda:90", "hip:gfx1100"):
        pytest.skip("compiles for long; another target of the vendor is tested")
    if kernel == "features" and target == "cuda:80":
        pytest.skip("compiles for a minute; a newer and an AMD target are tested")
    n_budgets = compile_kernels(kernel, target, (1, 3, 4, 6, 8, 9, 16, 64), (16,))
    assert n_budgets or target.startswith("hip")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
@pytest.mark.parametrize("kernel", ["tile", "composite"])
def test_kernel_compiles_without_spills_for_small_tiles(target, kernel):
    compile_kernels(kernel, target, (3, 9), (4, 8))
