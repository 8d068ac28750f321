"""What the compositing kernels execute on a small scene stays within budgets; counts on other targets."""

import json
import sys

import pytest

from tests.emulator.targets import needs_emulator

triton = pytest.importorskip("triton")
dynamic_cost = pytest.importorskip("benchmarks.dynamic_cost", reason="needs Triton")
scenes = dynamic_cost.scenes

pytestmark = [needs_emulator, pytest.mark.slow]

MADE_WITH = "3.7."
"""Versions of Triton that budgets were made with."""
MARGIN, MARGIN_ELSEWHERE, MARGIN_LISTS, MARGIN_OLDEST = 1.001, 1.06, 1.12, 1.16
"""Factors of budgets (docs/decisions/0013), with these versions, with others, of `LISTS` there, and with 3.5. The
small one is for PyTorch, whose exponentials differ in the last bit between CPUs."""
LISTS = ("_slot_counts_kernel", "_part_entries_kernel")


def test_executed_counts_are_within_budgets():
    budgets = json.loads(dynamic_cost.BUDGETS.read_text())
    run = scenes.execute(scenes.SCENES[dynamic_cost.BUDGETED](scenes.Data()), traced=False)
    found = dynamic_cost.budgets(dynamic_cost.records(dynamic_cost.BUDGETED, run))
    assert found.keys() == budgets.keys(), "run python -m benchmarks.dynamic_cost --write-budgets"

    def margin(kernel):
        if triton.__version__.startswith(MADE_WITH):
            return MARGIN
        if triton.__version__.startswith("3.5."):
            return MARGIN_OLDEST
        return MARGIN_LISTS if kernel.endswith(LISTS) else MARGIN_ELSEWHERE

    above = [
        f"{kernel}: {field} {found[kernel][field]:,}, budget {limit:,}"
        for kernel, limits in budgets.items()
        for field, limit in limits.items()
        if found[kernel][field] > margin(kernel) * limit
    ]
    assert not above, "\n".join(above)


@pytest.mark.long
@pytest.mark.parametrize(("target", "lanes"), [("sm_90", 32), ("gfx942", 64)])
def test_counts_on_other_targets(target, lanes, monkeypatch, capsys, tmp_path):
    scene = scenes.dense_tile(sparse=60, dense=10, width=64, height=48)
    monkeypatch.setattr(scenes, "SCENES", {"tile": lambda data: scene})
    monkeypatch.setattr(sys, "argv", ["", "--target", target, "--json", str(tmp_path / "out")])
    dynamic_cost.main()
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    walks = {record["kernel"]: record for record in found if record["kernel"].startswith("_composite")}
    assert walks.keys() == {"_composite_fwd_kernel", "_composite_bwd_kernel"}
    for record in found:
        assert (record["scene"], record["target"]) == ("tile", target)
        assert sum(record["by_class"].values()) == record["warp_instructions"] > 0
        assert lanes / 2 < record["lanes_per_instruction"] <= lanes
        assert record["kept_bytes"] > 0
        assert (record["stall_cycles"] is None) == target.startswith("gfx")
    assert ("stall cycles" in capsys.readouterr().out) == target.startswith("sm")


def test_peer_needs_the_target_that_it_is_compiled_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--target", "gfx942", "--peer", "gsplat"])
    with pytest.raises(SystemExit, match="2"):
        dynamic_cost.main()
    assert "--peer: gsplat is compiled for sm_80 only, found --target gfx942" in capsys.readouterr().err
