"""Choice of the backend: errors where Triton kernels cannot run, and the fallback to PyTorch."""

import builtins
import warnings

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_same_bits, run
from tsplat.runtime import backend
from tsplat.triton_cpu import MissingDependencyError, target


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
    monkeypatch.setattr(backend, "triton_problem", lambda: backend.NO_TRITON)
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
    monkeypatch.setattr("tsplat.kernels.launch.compiled", {})
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


def _chosen_with(monkeypatch, name, value):
    """The backend for CPU tensors, its reason, and warnings, of a process where a function is replaced."""
    for function in ("triton_problem", "cpu_compiler_problem"):
        monkeypatch.setattr(backend, function, getattr(backend, function).__wrapped__)
    monkeypatch.setattr(name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return *backend.choose(torch.device("cpu")), [str(warning.message) for warning in caught]


def _raising(error):
    def function(*args, **kwargs):
        raise error

    return function


LOAD_ERRORS = [
    OSError("GLIBCXX_3.4.29 not found"),
    ImportError("undefined symbol: x"),
    AttributeError("module 'triton' has no attribute 'knobs'"),
    RuntimeError("another version"),
]


@pytest.mark.parametrize("error", LOAD_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("package", ["triton", "llvmlite.binding", "tsplat.triton_cpu"])
def test_packages_that_cannot_be_loaded_fall_back_to_torch(monkeypatch, package, error):
    """With one warning, which says why."""
    real = builtins.__import__

    def load(name, globals=None, locals=None, fromlist=(), level=0):
        if name == package or (level == 2 and f"tsplat.{name}" == package):
            raise error
        return real(name, globals, locals, fromlist, level)

    if package == "llvmlite.binding":
        monkeypatch.setattr("tsplat.triton_cpu.target._target", lambda name: target.import_llvm())
    chosen, reason, said = _chosen_with(monkeypatch, "builtins.__import__", load)
    assert chosen == "torch"
    assert len(said) == 1
    assert all(f"{type(error).__name__}: {error}" in text for text in (reason, *said))


@pytest.mark.triton
def test_an_unknown_name_of_a_cpu_is_said(monkeypatch):
    monkeypatch.setenv("TSPLAT_CPU", "avx2")
    chosen, reason, said = _chosen_with(monkeypatch, "tsplat.runtime.backend._chosen", {})
    assert chosen == "torch"
    assert len(said) == 1
    assert all("TSPLAT_CPU: expected one of x86-64-v4, x86-64-v3, found 'avx2'" in text for text in (reason, *said))


@pytest.mark.triton
def test_packages_that_are_not_installed_are_no_warning(monkeypatch):
    missing = MissingDependencyError("needs llvmlite, which is not installed", not_installed=True)
    chosen, reason, said = _chosen_with(monkeypatch, "tsplat.triton_cpu.check_machine", _raising(missing))
    assert (chosen, said) == ("torch", [])
    assert "not installed" in reason


@pytest.mark.triton
@pytest.mark.usefixtures("nothing_compiled_before")
def test_machine_code_that_computes_something_else_falls_back_to_torch(monkeypatch):
    monkeypatch.setattr("tsplat.triton_cpu.trial.launch", lambda *args: None)
    with pytest.warns(UserWarning, match=r"falls back to backend='torch'.* returned 0 instead of 380"):
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
