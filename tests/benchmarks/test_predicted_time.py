"""Predicted times and executed counts of whole scenes."""

import json
import re
import sys
from unittest import mock

import pytest

from benchmarks import dynamic_cost, predicted_time
from benchmarks.gpu_timing import peer, scenes
from emulator.counters import CLASSES
from emulator.timing.model import A100, VARIATIONS
from tests.emulator.targets import needs_emulator

part_lists = pytest.importorskip("tsplat.kernels.compositing.part_lists", reason="needs Triton")

pytestmark = [needs_emulator, pytest.mark.long]
RECORD = {
    "scene", "pass", "gpu", "warp_instructions", "load_sectors", "store_sectors", "predicted_us", "idle_tail",
    "kernels",
}  # fmt: skip
TIME = re.compile(r"\d\s*(?:[num]s|µs|s|seconds|cycles)\b")


@pytest.fixture(scope="module")
def runs():
    """A cloud with 10 and with 200 more Gaussians in one of its tiles, whose lists are not cut."""
    with mock.patch.object(part_lists, "CUT", 1e9):
        return [
            scenes.execute(scenes.dense_tile(sparse=60, dense=dense, width=64, height=48), traced=True)
            for dense in (10, 200)
        ]


def _records(run, *variation):
    return predicted_time.records("tile", run, "a100", A100, *variation)


def test_only_compositing_kernels_run_in_both_passes(runs):
    for run in runs:
        assert {executed.phase for executed in run.launches} == {"forward", "backward"}
        assert not any("projection" in executed.kernel or "tile_" in executed.kernel for executed in run.launches)


def test_scene_has_one_dense_tile(runs):
    short, long = (run.list_lengths for run in runs)
    assert max(long) - max(short) > 150
    assert sorted(long)[-2] < max(long) / 5


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_longer_list_gives_longer_tail(runs, phase):
    short, long = (record for run in runs for record in _records(run) if record["pass"] == phase)
    assert long["predicted_us"] > 1.5 * short["predicted_us"]
    tail = [record["idle_tail"] * record["predicted_us"] for record in (short, long)]
    assert tail[1] > 1.5 * tail[0]
    assert long["idle_tail"] > short["idle_tail"]


def test_records(runs):
    for record in _records(runs[0]):
        assert record.keys() >= RECORD
        assert record["kept_bytes"] == runs[0].kept_bytes > 0
        assert not any(key.startswith("ratio") for key in record)
        kernels = record["kernels"].values()
        for field in ("warp_instructions", "load_sectors", "store_sectors", "predicted_us"):
            assert record[field] == pytest.approx(sum(kernel[field] for kernel in kernels))
        assert 0 < record["idle_tail"] < 1
        for kernel in kernels:
            assert sum(kernel["waited"].values()) == pytest.approx(1)
            assert kernel["registers"] > 0 and kernel["launches"] > 0
        json.dumps(record)


def test_counts_agree_with_predicted_launches(runs):
    counted = dynamic_cost.records("tile", runs[0])
    predicted = {
        (record["pass"], kernel): found for record in _records(runs[0]) for kernel, found in record["kernels"].items()
    }
    assert {(record["pass"], record["kernel"]) for record in counted} == set(predicted)
    for record in counted:
        found = predicted[record["pass"], record["kernel"]]
        for field in ("warp_instructions", "load_sectors", "store_sectors", "registers", "launches"):
            assert record[field] == found[field]
        assert sum(record["by_class"].values()) == record["warp_instructions"]
        assert set(record["by_class"]) <= set(CLASSES)
        assert 0 < record["lanes_per_instruction"] <= 32
        assert record["bank_conflicts"] >= 0
        assert record["stall_cycles"] > record["warp_instructions"]


@pytest.fixture
def tiny(runs, monkeypatch, tmp_path):
    """One scene that was executed before; another whose file does not exist. Returns where records go."""
    monkeypatch.setattr(scenes, "SCENES", {"tile": lambda data: {}, "garden-648x420": scenes.SCENES["garden-648x420"]})
    monkeypatch.setattr(scenes, "execute", lambda scene, traced, target: runs[0])
    monkeypatch.setattr(sys, "argv", ["", "--garden", str(tmp_path / "missing.npz"), "--json", str(tmp_path / "out")])
    return tmp_path / "out"


def test_every_line_with_a_time_says_predicted(tiny, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--gpu", "a100", "--sensitivity"])
    predicted_time.main()
    printed = capsys.readouterr().out.splitlines()
    times = [line for line in printed if TIME.search(line)]
    assert len(times) > 2 * len(VARIATIONS)
    assert all("predicted" in line for line in times)
    assert any("skipped" in line and "missing.npz does not exist" in line for line in printed)
    records = [json.loads(line) for line in tiny.read_text().splitlines()]
    assert [record["variation"] for record in records[::2]] == [None, *VARIATIONS]
    assert {record["pass"] for record in records} == {"forward", "backward"}


@pytest.fixture
def with_peer(tiny, runs, monkeypatch):
    """The other run stands in for the peer's."""
    monkeypatch.setattr(peer, "prepare", lambda name: "wheel")
    monkeypatch.setattr(peer, "execute", lambda run, wheel, traced: runs[1])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--peer", "gsplat"])
    return tiny


def test_predictions_have_ratios_to_a_peer(with_peer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--gpu", "a100", "--sensitivity"])
    predicted_time.main()
    printed = capsys.readouterr().out.splitlines()
    assert all("predicted" in line for line in printed if TIME.search(line))
    records = [json.loads(line) for line in with_peer.read_text().splitlines()]
    both = list(zip(records[::2], records[1::2]))
    assert [ours["variation"] for _, ours in both[::2]] == [None, *VARIATIONS]
    for theirs, ours in both:
        assert (theirs["implementation"], ours["peer"]) == ("gsplat 1.5.3", "gsplat 1.5.3")
        assert (theirs["pass"], theirs["variation"]) == (ours["pass"], ours["variation"])
        assert ours["ratio_instructions"] == ours["warp_instructions"] / theirs["warp_instructions"] < 1
        assert ours["ratio_load_sectors"] == ours["load_sectors"] / theirs["load_sectors"]
        assert ours["ratio_store_sectors"] == ours["store_sectors"] / theirs["store_sectors"]
        assert ours["ratio_predicted"] == ours["predicted_us"] / theirs["predicted_us"] < 1
    assert sum("tsplat / gsplat 1.5.3" in line for line in printed) == len(both)


def test_counts_have_ratios_to_a_peer(with_peer, capsys):
    dynamic_cost.main()
    printed = capsys.readouterr().out
    assert not any(TIME.search(line) for line in printed.splitlines())
    records = [json.loads(line) for line in with_peer.read_text().splitlines()]
    assert sum("implementation" in record for record in records) > 2
    ratios = [record for record in records if "peer" in record]
    assert [record["pass"] for record in ratios] == ["forward", "backward"]
    assert all(0 < record["ratio_instructions"] < 1 and "ratio_predicted" not in record for record in ratios)
    assert printed.count("tsplat / gsplat 1.5.3") == 2


def test_counts_are_printed_without_times(tiny, capsys):
    dynamic_cost.main()
    printed = capsys.readouterr().out
    assert "warp instructions" in printed and "bank conflicts" in printed
    assert not any(TIME.search(line) for line in printed.splitlines())
    assert {json.loads(line)["scene"] for line in tiny.read_text().splitlines()} == {"tile"}
