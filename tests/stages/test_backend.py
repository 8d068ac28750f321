"""Choice of the backend: errors where Triton kernels cannot run, and the fallback to PyTorch."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_same_bits, run
from tsplat.stages import backend


@pytest.fixture(autouse=True)
def _nothing_chosen_before(monkeypatch):
    monkeypatch.setattr(backend, "_chosen", {})


def _scene():
    return scenes.make(scenes.Structure(n=12, cameras=2), torch.float32)


def test_triton_on_cpu_without_llvmlite_raises(monkeypatch):
    monkeypatch.setattr(backend, "triton_is_interpreted", lambda: False)
    monkeypatch.setattr(backend, "cpu_compiler_problem", lambda: "llvmlite is not installed")
    with pytest.raises(tsplat.BackendError, match=r"'triton' cannot run on cpu: llvmlite is not installed; or use"):
        tsplat.rasterization(**_scene(), backend="triton")
    assert backend.choose(torch.device("cpu"))[0] == "torch"


def test_triton_without_the_package_raises(monkeypatch):
    monkeypatch.setattr(backend, "has_triton", lambda: False)
    with pytest.raises(tsplat.BackendError, match="the triton package is not installed: pip install triton"):
        tsplat.rasterization(**_scene(), backend="triton")
    assert backend.choose(torch.device("cpu"))[0] == "torch"


@pytest.mark.triton
def test_compiled_kernels_are_the_default_on_cpu():
    assert backend.choose(torch.device("cpu"))[0] == "triton"
    assert backend.choose(torch.device("meta"))[0] == "torch"


@pytest.mark.triton
def test_the_backend_of_a_device_is_chosen_once(monkeypatch):
    expected = backend.launchers(torch.device("cpu"))
    monkeypatch.setattr(backend, "choose", None)
    assert backend.launchers(torch.device("cpu")) is expected


@pytest.fixture
def nothing_compiled_before(monkeypatch, tmp_path):
    from tsplat.triton_cpu import launcher

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launcher, "_launchers", {})
    monkeypatch.setattr("tsplat.kernels.launch.prepared", {})
    monkeypatch.setattr(backend, "cpu_compiler_problem", backend.cpu_compiler_problem.__wrapped__)


@pytest.mark.triton
@pytest.mark.usefixtures("nothing_compiled_before")
def test_an_unknown_triton_falls_back_to_torch(monkeypatch):
    """With one warning, where its frontend has changed."""

    def changed(*args):
        raise AttributeError("module 'triton._C.libtriton.ir' has no attribute 'context'")

    monkeypatch.setattr("tsplat.triton_cpu.launcher.make_ttir", changed)
    expected, _ = run(_scene(), backend="torch", absgrad=True)
    with pytest.warns(UserWarning, match=r"falls back to backend='torch'.*no attribute 'context'") as caught:
        found, _ = run(_scene(), backend="auto", absgrad=True)
    assert len(caught) == 1
    assert_same_bits(found, expected)
    with (
        pytest.warns(UserWarning, match="slower"),
        pytest.raises(tsplat.BackendError, match=r"no attribute 'context'; or use backend='torch'"),
    ):
        run(_scene(), backend="triton")


@pytest.mark.triton
@pytest.mark.usefixtures("nothing_compiled_before")
def test_machine_code_that_computes_something_else_falls_back_to_torch(monkeypatch):
    monkeypatch.setattr("tsplat.triton_cpu.trial.launch", lambda *args: None)
    with pytest.warns(UserWarning, match=r"falls back to backend='torch'.* computes 0 instead of 380"):
        assert backend.choose(torch.device("cpu"))[0] == "torch"


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.usefixtures("nothing_compiled_before")
@pytest.mark.parametrize("name", ["auto", "triton"])
def test_a_kernel_that_cannot_be_compiled_is_a_typed_error(name, monkeypatch):
    """Others were, so the backend is chosen, and does not change in the middle of a pass."""
    from tsplat.triton_cpu import TritonCPUError, UnsupportedOperationError, launcher

    compiled = launcher.object_code

    def unsupported(kernel, *args):
        if kernel.__name__ == "_projection_bwd_kernel":
            raise UnsupportedOperationError("tt.new", kernel.__name__, "9.9", "not implemented")
        return compiled(kernel, *args)

    monkeypatch.setattr(launcher, "object_code", unsupported)
    message = r"^kernel _projection_bwd_kernel: .* tt\.new of Triton 9\.9.*; use backend='torch'$"
    with pytest.raises(TritonCPUError, match=message):
        run(_scene(), backend=name)
