"""`tsplat doctor`: what is installed and what works."""

import importlib.metadata
import json

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


def test_doctor_asks_the_gpus_driver(monkeypatch, capsys):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("tsplat.gpu_driver.version", lambda: ("CUDA 13.0", None))
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert "GPU driver  CUDA 13.0" in out and "kernels on the GPU" not in out
    monkeypatch.setattr("tsplat.gpu_driver.version", lambda: (None, "cuInit failed: no device; update it"))
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert "GPU driver" not in out
    assert "no kernels on the GPU: cuInit failed: no device; update it; or use backend='torch'" in out


def fail(**_):
    raise OSError("no compiler\nfound")


def version_of_others(package):
    if package in ("pillow", "viser"):
        raise importlib.metadata.PackageNotFoundError(package)
    return "1.0"


def test_doctor_reports_failures_and_missing_packages(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "rasterization", fail)
    monkeypatch.setattr(importlib.metadata, "version", version_of_others)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILS: OSError: no compiler found" in out
    assert "pillow      missing" in out
    advice = "no pillow: demo, render and train need pip install 'tsplat[train]'"
    assert advice in out
    assert "no viser: view and train --view need pip install 'tsplat[viewer]'" in out
    assert cli.main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["packages"]["torch"], report["packages"]["pillow"]) == ("1.0", None)
    assert advice in report["what_to_do"]
    assert (report["ok"], report["devices"][0]["ok"]) == (False, False)
    assert report["devices"][0]["problem"] == "OSError: no compiler found"


def test_doctor_prints_json(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    device = report["devices"][0]
    assert report["ok"] is True
    assert (device["device"], device["ok"], device["problem"]) == ("cpu", True, None)
    assert report["packages"]["torch"].startswith(torch.__version__.partition("+")[0])
