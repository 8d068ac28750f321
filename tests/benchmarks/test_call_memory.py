"""What a call allocates: what is counted, and budgets of a small scene."""

import json

import pytest
import torch

from tests.emulator.targets import needs_emulator

pytest.importorskip("triton")
call_memory = pytest.importorskip("benchmarks.call_memory", reason="needs Triton")
memory_page = pytest.importorskip("benchmarks.memory_page")

MADE_WITH = "2.13."
"""Versions of PyTorch that budgets were made with. Operators of others may need other memory."""
MARGIN_ELSEWHERE = 1.05


class Doubling:
    """An implementation whose call allocates 4,000, 4,000 and 40 bytes, and then gradients of 40."""

    def __init__(self):
        self.leaves = {"x": torch.ones(10, requires_grad=True)}
        self.v = torch.ones(10)

    def outputs(self):
        torch.empty(1000)  # released at once
        return [self.leaves["x"] * torch.ones(1000)[0]]

    def gradients_of(self, outputs):
        return [self.v]


def test_the_most_bytes_at_one_time():
    found = call_memory.count(Doubling())
    assert found.forward == 4000 + 40 and found.total == 4000 + 4000 + 40
    # Autograd keeps the view of the ones, and with it all of them.
    assert found.call == 4000 + 40 + 40
    assert found.loop == found.forward


@needs_emulator
@pytest.mark.slow
def test_calls_are_within_budgets(monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # takes memory of its own
    budgets, found = json.loads(call_memory.BUDGETS.read_text()), call_memory.budgeted()
    assert found.keys() == budgets.keys(), "run python -m benchmarks.call_memory --write-budgets"
    margin = 1.0 if torch.__version__.startswith(MADE_WITH) else MARGIN_ELSEWHERE
    above = [
        f"{name}: {found[name]:,} bytes, budget {limit:,}"
        for name, limit in budgets.items()
        if found[name] > margin * limit
    ]
    assert not above, "\n".join(above)


def test_page_has_a_row_for_each_device():
    def record(**labels):
        return {
            "scene": "cloud",
            "forward": 1_000_000,
            "call": 3_000_000,
            "loop": 2_000_000,
            "total": 5_000_000,
        } | labels

    layouts = [("packed", state) for state in call_memory.STATES] + [("capacity", "replayed")]
    records = [
        record(device=device, layout=layout, state=state) for device in call_memory.DEVICES for layout, state in layouts
    ]
    records.append(record(implementation="gsplat 1.5.3"))
    measured = [{"scene": "cloud", "implementation": "gsplat", "peak_bytes": 7_000_000}]
    rows = memory_page.table(records, measured).splitlines()[2:]
    assert rows == [
        f"| cloud | {device} | 2.0 | 2.0 | 2.0 | 2.0 | 1.0 | 2.0 | 1.0 | 5.0 | 7.0 |" for device in ("CPU", "sm_80")
    ]
