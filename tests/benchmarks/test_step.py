"""Predicted calls and training steps: what is counted, assumed and reported."""

import json
from unittest import mock

import pytest
import torch

from benchmarks import report, step, step_page
from benchmarks.gpu_timing import counting, graphs, gsplat_step, host, scenes
from tests.emulator.targets import needs_emulator
from tsplat.kernels import small_sorts

PYTHON = host.Host(
    python_us=dict.fromkeys(counting.PHASES, 100.0),
    launches={"forward": 1, "loss": 0, "backward": 1, "adam": 1},
    launch_us=[4.0, 8.0],
    cpu_us=dict.fromkeys(counting.PHASES, 50.0),
    function_calls=dict.fromkeys(counting.PHASES, 10),
)
LAUNCHES = [
    counting.Launched("forward", "a", {"a100": 10.0}),
    counting.Launched("forward", "a", {"a100": 5.0}),
    counting.Launched("backward", "b", {"a100": 20.0}),
    counting.Launched("adam", "c", {"a100": 7.0}),
]


def test_operators_that_launch_wait_and_allocate():
    values = torch.rand(6)
    with counting.Operators() as operators:
        operators.phase = "forward"
        values.view(2, 3)
        torch.empty(4)
        values + 1
        values[values > 2]
        values.sum().item()
        values.tolist()
        values.to(torch.int16).sort()
    names = [operator.name for operator in operators.found]
    assert names == ["add", "gt", "index", "sum", "_local_scalar_dense", "tolist", "_to_copy", "sort"]
    assert [o.name for o in operators.found if o.waits] == ["index", "_local_scalar_dense", "tolist"]
    assert len(operators.allocations) == 7
    assert operators.found[-1].sort_passes == 2


def test_time_of_sorts_grows_with_keys_and_bits():
    small, long, wide = (
        counting.sort_operator("forward", n, bits, 4, 8).device_us("a100")
        for n, bits in ((1000, 32), (10**7, 32), (1000, 48))
    )
    assert small == pytest.approx(6 * counting.OPERATOR_US, rel=0.02)
    assert long - small == pytest.approx(1e7 * (4 + 2 * 4 * 12) / counting.BANDWIDTH["a100"], rel=0.01)
    assert wide - small == pytest.approx(2 * counting.OPERATOR_US, rel=0.05)


@pytest.mark.parametrize("replays", [True, False])
def test_record_adds_phases(replays, monkeypatch):
    monkeypatch.setattr(host, "REPLAYS", replays)
    operators = [counting.Operator("forward", "nonzero", waits=True), counting.Operator("adam", "add")]
    call, whole = (step.record(LAUNCHES, operators, PYTHON, phases, "a100") for phases in counting.PASSES.values())
    assert (call["launches"], call["operators"], call["waits"]) == (3, 1, 1)
    assert (whole["launches"], whole["operators"], whole["waits"]) == (4, 2, 1)
    assert call["device_us"] == pytest.approx(35 + counting.OPERATOR_US)
    # Two phases of Python, and four launches and operators below Python. The tiny scene has a launch less, whose Python
    # counts if it is not replayed.
    assert call["host_us"] == pytest.approx(200 + (0 if replays else 6) + 4 * host.LAUNCH_US)
    assert call["step_us"] == pytest.approx(max(call["host_us"], call["device_us"]) + step_page.WAIT_US)
    assert call["kernels"] == {"a": 15.0, "b": 20.0}


def test_recorded_results_are_of_all_recorded_modes(capsys):
    with pytest.raises(SystemExit):
        step.parse(["--mode", "capacity", "--write"])
    assert "--mode capacity: recorded results are of --mode eager graph" in capsys.readouterr().err


def test_graphs_take_the_place_of_a_call():
    around = graphs.Around(
        {"forward": 30.0, "backward": 20.0},
        {"forward": 40.0, "backward": 30.0},
        [counting.Operator("forward", "clone"), counting.Operator("forward", "nonzero", waits=True)],
    )
    predictor, operators = counting.Predictor([]), counting.Operators()
    predictor.found, operators.found = LAUNCHES, [counting.Operator("adam", "add")]
    eager = step.by_pass("capacity", predictor, operators, PYTHON, "a100")
    found = step.by_graphs(around, eager, "a100")
    call, whole = found["call"], found["step"]
    assert (call["launches"], call["operators"], call["waits"], call["mode"]) == (2, 2, 1, "graph")
    assert call["host_us"] == pytest.approx(50 + 4 * host.LAUNCH_US)
    assert call["device_us"] == pytest.approx(35 + 2 * counting.OPERATOR_US)
    assert call["step_us"] == pytest.approx(max(call["host_us"], call["device_us"]) + step_page.WAIT_US)
    assert call["cpu_target_us"] == 70
    for name in ("host_us", "launches", "operators", "cpu_target_us"):  # loss and Adam have no graph
        assert whole[name] - call[name] == pytest.approx(eager["step"][name] - eager["call"][name])


def test_a_captured_call_takes_the_time_of_the_device():
    predictor, operators = counting.Predictor([]), counting.Operators()
    predictor.found, operators.found = LAUNCHES, [counting.Operator("forward", "add", waits=True)]
    given = step.by_pass("capacity", predictor, operators, PYTHON, "a100")["call"]
    found = step.by_capture(given)
    assert (found["launches"], found["operators"], found["waits"]) == (1, 0, 0)
    assert found["step_us"] == found["device_us"] == given["device_us"] > host.LAUNCH_US


def test_write_replaces_scenes_and_keeps_others(tmp_path):
    record = {"gpu": "a100", "pass": "call"} | step.record(LAUNCHES, [], PYTHON, ("forward",), "a100")
    record |= {"allocations": 3, "mode": "eager"}
    records, page = tmp_path / "step.jsonl", tmp_path / "page.md"
    records.write_text("".join(json.dumps({"scene": name} | record) + "\n" for name in step.SCENES[:2]))
    with mock.patch.multiple(report, STEPS=records, PAGE=page):
        step.write([{"scene": step.SCENES[1]} | record | {"device_us": 123456.0}])
        found = [json.loads(text) for text in records.read_text().splitlines()]
        assert page.read_text() == report.page()
    assert [(r["scene"], r["device_us"]) for r in found] == [(step.SCENES[0], 15.0), (step.SCENES[1], 123456.0)]
    assert "123,456" in page.read_text()


def test_peer_has_recorded_compositing_of_every_scene():
    for scene in step.SCENES:
        assert gsplat_step.compositing_us(scene, "a100") > gsplat_step.compositing_us(scene, "h100") > 0
    assert gsplat_step.compositing_us("elsewhere", "a100") is None


@pytest.mark.parametrize("n", [20, small_sorts.ORDERED_MAX, small_sorts.ORDERED_MAX + 1])
def test_python_sorts_a_tiny_scene_as_the_scene(n):
    are_few = n <= small_sorts.ORDERED_MAX
    with host.sorting(n):
        assert bool(small_sorts.ORDERED_MAX) == bool(small_sorts.GATHERED_MAX) == are_few


@needs_emulator
@pytest.mark.long
def test_step_of_a_small_scene():
    scene = scenes.SCENES["cloud"](scenes.Data())
    records = step.records("cloud", host.tiny(scene), ["a100"], None, 3, step.RECORDED)
    found = {(r["pass"], r["mode"]): r for r in records}
    call, whole, graphed = found["call", "eager"], found["step", "eager"], found["call", "graph"]
    captured = found["call", "captured"]
    assert ("step", "captured") not in found
    assert 0 < call["launches"] < whole["launches"]
    assert {"_composite_fwd_kernel", "_composite_bwd_kernel", "_projection_bwd_kernel"} <= call["kernels"].keys()
    assert {"_adam_kernel", "_l1_ssim_fwd_kernel"} <= whole["kernels"].keys() - call["kernels"].keys()
    assert (call["launches"], call["operators"], call["waits"]) == (22, 1, 1)
    assert 0 < call["device_us"] < whole["device_us"] < whole["step_us"]
    assert 0 < call["python_us"] < call["host_us"] < whole["host_us"]
    assert (graphed["launches"], graphed["waits"]) == (2, 1)
    assert graphed["python_us"] > 0
    assert graphed["device_us"] > captured["device_us"] > graphed["operators_us"] > 0
