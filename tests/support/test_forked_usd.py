"""Tests that crashes and hangs of the USD process are detected if it is forked."""

import signal

import pytest

from tests.support.forked_usd import forked_usd
from tsplat.scene import FileError, read_usd
from tsplat.scene.formats.interchange import usd


def test_crashes_and_hangs_are_counted(tmp_path, monkeypatch):
    pytest.importorskip("pxr", reason="needs usd-core")
    path, script = tmp_path / "a.usda", tmp_path / "usd_process.py"
    path.write_text("#usda 1.0")
    with forked_usd(timeout=1) as statuses:
        with pytest.raises(FileError, match="has no Gaussians"):
            read_usd(path)
        assert statuses == {0: 1}
        monkeypatch.setattr(usd, "__file__", str(tmp_path / "usd.py"))
        for code in ("import os; os.kill(os.getpid(), 11)", "while True: pass"):
            script.write_text(code)
            with pytest.raises(FileError, match=r"a\.usda: USD cannot read it"):
                read_usd(path)
    assert statuses == {0: 1, -signal.SIGSEGV: 1, -signal.SIGALRM: 1}
