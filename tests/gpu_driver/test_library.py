"""Drivers' libraries: what is missing is said, and numbers and structures are those of the drivers' headers."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import triton

from emulator import build
from tsplat.gpu_driver import DriverError, cuda, gpus, hip
from tsplat.gpu_driver.cuda import CudaDriver
from tsplat.gpu_driver.hip import HipDriver
from tsplat.gpu_driver.library import Library

BACKENDS = Path(triton.__file__).parent / "backends"


@pytest.mark.parametrize(
    ("driver", "advice"), [(CudaDriver, "install NVIDIA's driver"), (HipDriver, "install AMD's ROCm")]
)
def test_a_missing_library_is_said(driver, advice, tmp_path):
    with pytest.raises(DriverError, match=f"the driver's library cannot be loaded .*{tmp_path}/none.*; {advice}"):
        driver(str(tmp_path / "none"))


@pytest.mark.parametrize("driver", [CudaDriver, HipDriver])
def test_a_driver_without_a_function_is_too_old(driver):
    libc = ctypes.CDLL(None)._name or "libc.so.6"
    with pytest.raises(DriverError, match=r"libc\S* has no function (cu|hip)\w+, so the driver is too old; install"):
        driver(libc)


@pytest.mark.parametrize(("driver", "init"), [(CudaDriver, "cuInit"), (HipDriver, "hipInit")])
def test_a_driver_that_does_not_start_is_said(driver, init, monkeypatch):
    function = Library.function

    def stub(self, name, *given, **named):
        found = function(self, name, *given, **named)
        return (lambda _flags: 1) if name == init else found

    monkeypatch.setattr(Library, "function", stub)
    with pytest.raises(DriverError, match=rf"{init} of /.* failed: ERROR_INVALID_VALUE.*; install"):
        driver(build.driver_library()._name)


def test_versions_and_errors_in_words():
    path = build.driver_library()._name
    for driver, version in ((CudaDriver(path), "13.0"), (HipDriver(path), "7.0")):
        assert driver.version == version
        with pytest.raises(DriverError, match=r"^launching failed: ERROR_INVALID_VALUE"):
            driver.check(1, "launching")
        with pytest.raises(DriverError, match=r"^launching failed: error 12345"):
            driver.check(12345, "launching")


def test_without_a_driver_there_is_no_version(monkeypatch):
    monkeypatch.setattr(cuda, "PATHS", ("libcuda-of-nobody.so",))
    gpus._driver.cache_clear()
    found, problem = gpus.version()
    assert found is None and "libcuda-of-nobody.so" in problem and "install NVIDIA's driver" in problem


def test_the_first_library_that_exists_is_taken():
    path = build.driver_library()._name
    assert Library(("libnone.so", path), "").path == path


def test_amds_library_is_the_one_that_is_loaded(monkeypatch, tmp_path):
    file = tmp_path / "libamdhip64.so.7"
    file.write_bytes(Path(build.driver_library()._name).read_bytes())
    loaded = ctypes.CDLL(str(file))
    assert hip.paths()[0] == loaded._name
    monkeypatch.setattr(triton.knobs.amd, "libhip_path", "/own/libamdhip64.so")
    assert hip.paths()[:2] == ["/own/libamdhip64.so", loaded._name]


CUDA_NUMBERS = {
    "CUDA_ERROR_INVALID_CONTEXT": cuda.INVALID_CONTEXT,
    "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": cuda.MAX_THREADS,
    "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": cuda.SHARED_SIZE,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": cuda.MAX_DYNAMIC_SHARED,
    "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED": cuda.NON_PORTABLE_CLUSTER,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": cuda.SHARED_PER_BLOCK_OPTIN,
    "CU_FUNC_CACHE_PREFER_SHARED": cuda.PREFER_SHARED,
    "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": cuda.COOPERATIVE,
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": cuda.CLUSTER_DIMENSION,
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE": cuda.CLUSTER_POLICY,
    "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": cuda.STREAM_SERIALIZATION,
    "CU_CLUSTER_SCHEDULING_POLICY_SPREAD": cuda.SPREAD,
    "sizeof(CUlaunchConfig)": ctypes.sizeof(cuda.Config),
    "offsetof(CUlaunchConfig, gridDimX)": cuda.Config.grid.offset,
    "offsetof(CUlaunchConfig, blockDimX)": cuda.Config.block.offset,
    "offsetof(CUlaunchConfig, sharedMemBytes)": cuda.Config.shared_bytes.offset,
    "offsetof(CUlaunchConfig, hStream)": cuda.Config.stream.offset,
    "offsetof(CUlaunchConfig, attrs)": cuda.Config.attributes.offset,
    "offsetof(CUlaunchConfig, numAttrs)": cuda.Config.n_attributes.offset,
    "sizeof(CUlaunchAttribute)": ctypes.sizeof(cuda.Attribute),
    "offsetof(CUlaunchAttribute, value)": cuda.Attribute.value.offset,
}
HIP_NUMBERS = {
    "HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": hip.MAX_THREADS,
    "hipDeviceAttributeMaxSharedMemoryPerBlock": hip.SHARED_PER_BLOCK,
}


@pytest.mark.parametrize(
    ("header", "flags", "numbers"),
    [
        ("cuda.h", [f"-I{BACKENDS}/nvidia/include"], CUDA_NUMBERS),
        ("hip/hip_runtime_api.h", [f"-I{BACKENDS}/amd/include", "-D__HIP_PLATFORM_AMD__"], HIP_NUMBERS),
    ],
    ids=["cuda", "hip"],
)
def test_numbers_are_those_of_the_headers(header, flags, numbers, tmp_path):
    """Triton brings the headers; they are not needed but here."""
    checks = "\n".join(f'_Static_assert(({name}) == {number}, "{name}");' for name, number in numbers.items())
    (tmp_path / "check.c").write_text(f"#include <stddef.h>\n#include <stdbool.h>\n#include <{header}>\n{checks}\n")
    made = subprocess.run(["gcc", "-w", "-fsyntax-only", *flags, tmp_path / "check.c"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
