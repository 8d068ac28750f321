"""Runs tests on every CPU level that this machine has."""

import platform

import pytest

pytest.importorskip("triton")
llvm = pytest.importorskip("llvmlite.binding")

from tsplat.triton_cpu.target import LEVELS, host_features  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _this_machines_cpu_level():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TSPLAT_CPU", raising=False)
        yield


def _levels():
    if platform.machine() != "x86_64":
        return [""]
    return [cpu for cpu, features in LEVELS.items() if host_features() >= features]


@pytest.fixture(params=_levels())
def cpu(request, monkeypatch):
    """Runs the test for each level of CPU features."""
    if request.param:
        monkeypatch.setenv("TSPLAT_CPU", request.param)
        monkeypatch.setattr("tsplat.kernels.launch.compiled", {})
    return request.param
