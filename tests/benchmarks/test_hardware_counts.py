"""Counts of ncu beside the emulator's."""

import json
import subprocess
import sys
from unittest import mock

import pytest

pytest.importorskip("triton")
hardware_counts = pytest.importorskip("benchmarks.hardware_counts", reason="needs Triton")

PRINTED = """==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "_pack_kernel" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","Block Size","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum","smsp__inst_executed.sum"
"","","","","sector","sector","inst"
"0","7","_pack_kernel","(128, 1, 1)","230","1,242","990"
"1","7","_composite_fwd_kernel","(32, 1, 1)","1390","1056","16727"
"2","7","_pack_kernel","(128, 1, 1)","30","8","10"
"""  # noqa: E501
COUNTED = {
    "_pack_kernel": {"warp_instructions": 1000, "load_sectors": 260, "store_sectors": 1250},
    "_composite_fwd_kernel": {"warp_instructions": 16727, "load_sectors": 1390, "store_sectors": 1056},
}


def test_launches_of_a_kernel_are_added():
    assert hardware_counts.parse(PRINTED) == COUNTED


def test_ncu_counts_the_kernels_that_the_emulator_executed():
    done = subprocess.CompletedProcess([], 0, PRINTED, "")
    with (
        mock.patch.object(hardware_counts.shutil, "which", return_value="/opt/ncu"),
        mock.patch.object(hardware_counts.torch.cuda, "is_available", return_value=True),
        mock.patch.object(hardware_counts.subprocess, "run", return_value=done) as run,
    ):
        assert hardware_counts.measured("tiny", ["_pack_kernel", "_composite_fwd_kernel"]) == COUNTED
    (command,) = run.call_args.args
    assert command[0] == "/opt/ncu"
    assert "regex:^(_pack_kernel|_composite_fwd_kernel)$" in command
    assert command[-2:] == ["--step", "tiny"]


@pytest.mark.parametrize(("code", "printed"), [(1, "ERR_NVGPUCTRPERM"), (0, "==WARNING== No kernels were profiled.")])
def test_failure_of_ncu_is_told(code, printed):
    done = subprocess.CompletedProcess([], code, printed, "")
    with (
        mock.patch.object(hardware_counts.shutil, "which", return_value="/opt/ncu"),
        mock.patch.object(hardware_counts.torch.cuda, "is_available", return_value=True),
        mock.patch.object(hardware_counts.subprocess, "run", return_value=done),
        pytest.raises(hardware_counts.UnavailableError, match=printed),
    ):
        hardware_counts.measured("tiny", ["_pack_kernel"])


@pytest.mark.parametrize("has_ncu", [True, False])
def test_both_counts_are_printed_and_recorded(has_ncu, monkeypatch, tmp_path, capsys):
    def measured(scene, kernels):
        if not has_ncu:
            raise hardware_counts.UnavailableError("ncu is not installed")
        return COUNTED

    monkeypatch.setattr(hardware_counts, "emulated", lambda scene, target: COUNTED)
    monkeypatch.setattr(hardware_counts, "measured", measured)
    monkeypatch.setattr(hardware_counts.build, "missing", lambda: None)
    monkeypatch.setattr(sys, "argv", ["", "--scene", "tiny", "--json", str(tmp_path / "out")])
    assert hardware_counts.main() == (0 if has_ncu else hardware_counts.UNAVAILABLE)
    printed = capsys.readouterr().out
    assert ("warp_instructions 1,000 / 1,000" in printed) == has_ncu
    assert ("only the emulator's counts, ncu is not installed" in printed) == (not has_ncu)
    record = json.loads((tmp_path / "out").read_text())
    assert (record["scene"], record["emulated"], record["ncu"]) == ("tiny", COUNTED, COUNTED if has_ncu else None)
    assert record.keys() >= {"device", "driver", "torch", "triton", "commit", "tests"}
