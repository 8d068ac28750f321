"""Tests of how results of commands are judged if their output cannot be written."""

import pytest

from tests.support.model_files import random_gaussians
from tests.tools.bad_disks import COMMANDS, N_NEW, N_OLD, Cases
from tsplat.scene import write_model

COMMAND = COMMANDS["sog"]


@pytest.fixture
def out(tmp_path):
    pytest.importorskip("PIL")
    write_model(tmp_path / "disk" / "out", random_gaussians(N_OLD), format="sog")
    return tmp_path / "disk" / "out"


@pytest.fixture
def cases(tmp_path):
    def run(words):
        write_model(words.split()[2], random_gaussians(N_NEW), format="sog")
        return 0, ""

    return Cases(tmp_path, run, run)


def test_results_and_error_messages_are_right(cases, out):
    assert cases.problem(COMMAND, out, 2, "tsplat: error: out: No space left", True) is None
    write_model(out, random_gaussians(N_NEW), format="sog")
    assert cases.problem(COMMAND, out, 0, "wrote 30 Gaussians", True) is None


@pytest.mark.parametrize(("status", "output"), [(-6, "terminate called"), (1, "Traceback (most recent"), (2, "")])
def test_exits_without_error_message_are_wrong(cases, out, status, output):
    assert cases.problem(COMMAND, out, status, output, True) == "no error message"


def test_incomplete_results_and_temporary_files_are_wrong(cases, out):
    assert cases.problem(COMMAND, out, 0, "wrote 30 Gaussians", True) == "the result is not complete"
    (out / ".0123abcd").mkdir()
    assert cases.problem(COMMAND, out, 2, "an error", True) == "['.0123abcd'] are left"
    (out / "meta.json").unlink()
    cases.check("lost", COMMAND, out, (2, "an error"))
    assert cases.counts == {"wrong": 1}
