"""`tsplat doctor`: what is installed and what works."""

import importlib.metadata

import pytest
import torch

from tsplat import cli
from tsplat.cli import doctor


def test_doctor_reports_versions_and_devices(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch       {torch.__version__.partition('+')[0]}" in out
    assert "cpu: backend " in out
    assert "works" in out


def test_doctor_reports_what_triton_lacks_on_a_gpu(monkeypatch, tmp_path):
    pytest.importorskip("triton")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (line,) = (line for line in doctor._advice([], has_gpu=True) if "GPU" in line)
    assert "no C compiler is found (gcc or clang)" in line and "apt-get install gcc python3-dev" in line
    compiler = tmp_path / "clang"
    compiler.touch(mode=0o755)
    monkeypatch.setattr("sysconfig.get_paths", lambda _: {"include": str(tmp_path)})
    (line,) = (line for line in doctor._advice([], has_gpu=True) if "GPU" in line)
    assert f"Python.h is not in {tmp_path}" in line
    (tmp_path / "Python.h").touch()
    assert not [line for line in doctor._advice([], has_gpu=True) if "GPU" in line]
    monkeypatch.setenv("CC", "icc")
    assert "no C compiler is found (icc)" in "".join(doctor._advice([], has_gpu=True))


def test_doctor_reports_failures_and_missing_packages(monkeypatch, capsys):
    def fail(**_):
        raise OSError("no compiler\nfound")

    def version(package):
        if package == "pillow":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(doctor, "rasterization", fail)
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILS: OSError: no compiler found" in out
    assert "pillow      missing" in out
    assert "no pillow: demo, render and train need pip install 'tsplat[train]'" in out
