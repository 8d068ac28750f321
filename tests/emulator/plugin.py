"""pytest plugin: runs tests marked `gpu` or `triton` on the emulator.

    EMULATE=sm_80 python -m pytest -p tests.emulator.plugin -m gpu

| variable | |
| --- | --- |
| `EMULATE` | target: sm_80, sm_90, sm_120, gfx942, gfx1100 |
| `EMULATE_CODE` | ptx (unless said otherwise) or sass, for NVIDIA |
| `EMULATE_ORDER` | order of programs: forward (default), reverse or random; others than forward also shuffle warps |
| `EMULATE_JITTER` | seed of errors of one unit in the last place in approximate instructions |

What the emulator's checks find fails the test.
"""

import collections
import os
from collections.abc import Iterator
from typing import Any

import pytest

from emulator import build
from emulator.counters import total
from emulator.emulation import target_of
from emulator.package import tsplat_emulated

MARKERS = ("gpu", "triton")
TARGET = os.environ.get("EMULATE", "sm_80")
CODE: Any = os.environ.get("EMULATE_CODE")
ORDER: Any = os.environ.get("EMULATE_ORDER", "forward")
JITTER = int(os.environ.get("EMULATE_JITTER", "0"))
_totals: collections.Counter[str] = collections.Counter()


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise pytest.UsageError("the emulator needs compiled kernels: unset TRITON_INTERPRET")
    if reason := build.missing():
        raise pytest.UsageError(f"the emulator {reason}")
    target_of(TARGET)


def _is_emulated(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(marker) for marker in MARKERS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Removes the marks of tests that are skipped for want of a GPU or of a compiler for the CPU."""
    for item in items:
        if _is_emulated(item):
            item.own_markers = [marker for marker in item.own_markers if marker.name != "skip"]


@pytest.fixture(autouse=True)
def _emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not _is_emulated(request.node):
        yield
        return
    if hasattr(request.module, "DEVICE"):
        monkeypatch.setattr(request.module, "DEVICE", "cpu")
    shuffled = ORDER != "forward"
    with tsplat_emulated(TARGET, CODE, order=ORDER, shuffle_warps=shuffled, jitter=JITTER) as gpu:
        yield
        _totals.update(total(gpu.counts))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist
        session.config.workeroutput["emulated"] = dict(_totals)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds what a worker of pytest-xdist executed."""
    _totals.update(getattr(node, "workeroutput", {}).get("emulated", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    launches, instructions = _totals["launches"], _totals["instructions"]
    code = f" {CODE}" if CODE else ""
    terminalreporter.write_line(f"emulated {TARGET}{code}: {launches:,} launches, {instructions:,} warp instructions")
