"""Description of the machine and the software of a measurement."""

import importlib.util
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import tsplat

TESTS_VARIABLE = "TSPLAT_GPU_TESTS"
"""Environment variable that `gpu.sh` sets to "passed" or "failed", the result of the tests of the same run."""
CPU_INFO = Path("/proc/cpuinfo")
AMD_DRIVER = Path("/sys/module/amdgpu/version")


def describe(device: torch.device, name: str | None = None) -> dict[str, str | None]:
    """Describes the device and the software; `name` replaces the name of the device.

    Returns `device`; `cpu`, its name and vector instructions, None on a GPU; `driver`, None on a CPU; `torch`,
    `triton`, `tsplat`; `commit`, which ends in "-dirty" if files differ from it; and `tests`, the result of the GPU
    tests of the same run, None if none ran.
    """
    on_gpu = device.type == "cuda"
    threads = torch.get_num_threads()
    own_name = torch.cuda.get_device_name(device) if on_gpu else f"{platform.machine()}, {threads} threads"
    return {
        "device": name or own_name,
        "cpu": None if on_gpu else _cpu(),
        "driver": _driver() if on_gpu else None,
        "torch": torch.__version__,
        "triton": metadata.version("triton") if importlib.util.find_spec("triton") else None,
        "tsplat": tsplat.__version__,
        "commit": _output("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"),
        "tests": os.environ.get(TESTS_VARIABLE),
    }


def counts(record: dict[str, Any]) -> bool:
    """Returns whether the figures of a record count: they do not if tests of the same run failed."""
    return record.get("tests") != "failed"


def _cpu() -> str:
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {torch.backends.cpu.get_cpu_capability()}"


def _driver() -> str | None:
    if torch.version.hip is not None:
        return AMD_DRIVER.read_text().strip() if AMD_DRIVER.exists() else None
    found = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found.splitlines()[0] if found else None


def _output(*command: str) -> str | None:
    """Returns the output of a command, or None if it does not exist or fails."""
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None
