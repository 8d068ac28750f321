"""`tsplat doctor`: what is installed and what works."""

import importlib.metadata

import torch

from tsplat import cli
from tsplat.cli import doctor


def test_doctor_reports_versions_and_devices(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch       {torch.__version__.partition('+')[0]}" in out
    assert "cpu: backend " in out
    assert "works" in out


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
