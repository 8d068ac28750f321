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
@pytest.mark.parametrize("name", ["projection_fwd", "composite_fwd", "composite_bwd", "composite_gradients"])
def test_kernels_that_cannot_be_compiled_fall_back_to_torch(name, monkeypatch):
    """With one warning, in the forward and the backward pass; only under backend="auto"."""
    from tsplat import kernels
    from tsplat.triton_cpu import UnsupportedOperationError

    def unsupported(*args, **kwargs):
        raise UnsupportedOperationError("tt.new", "a_kernel", "9.9", "not implemented")

    expected, meta = run(_scene(), backend="torch", absgrad=True)
    absgrad = meta["means2d"].absgrad
    monkeypatch.setattr(backend, "_fallback_reason", None)
    monkeypatch.setattr(kernels, name, unsupported)
    with pytest.warns(UserWarning, match="falls back to backend='torch'.*tt.new of Triton 9.9") as caught:
        found, meta = run(_scene(), backend="auto", absgrad=True)
    assert len(caught) == 1
    torch.testing.assert_close(meta["means2d"].absgrad, absgrad, rtol=1e-3, atol=1e-3)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-3, atol=1e-3)
    assert_same_bits(run(_scene(), backend="auto", absgrad=True)[0], expected)
    with pytest.raises(UnsupportedOperationError, match=r"tt\.new"):
        run(_scene(), backend="triton")


@pytest.mark.triton
def test_an_unknown_triton_falls_back_to_torch(monkeypatch, tmp_path):
    """With one warning, where its frontend has changed."""
    from tsplat.triton_cpu import launcher

    def changed(*args):
        raise AttributeError("module 'triton._C.libtriton.ir' has no attribute 'context'")

    expected, _ = run(_scene(), backend="torch")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(backend, "_fallback_reason", None)
    monkeypatch.setattr(launcher, "_launchers", {})
    monkeypatch.setattr("tsplat.kernels.launch._prepared", {})
    monkeypatch.setattr(launcher, "make_ttir", changed)
    with pytest.warns(UserWarning, match=r"falls back to backend='torch'.*no attribute 'context'") as caught:
        found, _ = run(_scene(), backend="auto")
    assert len(caught) == 1
    assert_same_bits(found, expected)
