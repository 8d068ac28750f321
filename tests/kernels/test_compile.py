"""Every kernel of the package compiles for NVIDIA and AMD GPUs, without register spills and within its budget."""

import functools
import json

import pytest

static_cost = pytest.importorskip("benchmarks.static_cost", reason="needs Triton")

if static_cost.kernels_are_interpreted():
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

BUDGETS = json.loads(static_cost.BUDGETS.read_text())
GOALS = {"_composite_fwd_kernel": 20, "_composite_bwd_kernel": 56}
"""Machine instructions per 32 pixels and Gaussian, for three channels and tiles of 16, that budgets never exceed."""


@functools.cache
def shipped_launches(vendor, tile_sizes):
    return static_cost.shipped_launches(vendor, (1, 3, 4, 6, 8, 9, 16, 64), tile_sizes)


@pytest.mark.slow
@pytest.mark.parametrize("target", static_cost.TARGETS)
@pytest.mark.parametrize(
    "kernel",
    ["projection", "valid", "sh", "tile", "composite", "features", "pack", "segment", "moments", "ssim", "adam"],
)
def test_kernel_compiles_without_spills(target, kernel):
    vendor = "nvidia" if target.startswith("cuda") else "amd"
    tile_sizes = (4, 8, 16) if kernel in ("tile", "composite") else (16,)
    calls = [
        (label, call) for label, call in shipped_launches(vendor, tile_sizes) if f"_{kernel}_" in call.kernel.__name__
    ]
    assert calls
    checked = 0
    for label, call in calls:
        record = static_cost.cost(label, call, target)
        if vendor == "nvidia":
            assert record["spill_bytes"] == 0, record
            budget = BUDGETS.get(f"{record['kernel']} {label}")
            assert budget is None or record["per_32"] <= budget, (budget, record)
            checked += budget is not None
            if record.get("D") == 3 and call.constants["TILE"] == 16 and "absgrad" not in label:
                assert record["per_32"] <= GOALS[record["kernel"]], record
    assert checked or vendor == "amd"
