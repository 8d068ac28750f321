"""``tsplat doctor``: reports installed packages and usable devices, and how to fix problems."""

import json
import platform
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from .. import __version__, rasterization
from ..runtime.backend import choose, cpu_compiler_problem, gpu_driver, triton_is_interpreted, triton_problem
from ..scene.cameras import Camera, rasterization_arguments
from ..support.extras import installed_version

CORE = ("torch", "triton", "numpy", "einops")
OPTIONAL = ("pillow", "rich", "scipy", "matplotlib", "pycolmap")
"""Packages of the extra `train` without which `demo`, `render` or `train` fails."""

VIEWER = "viser"


def doctor(arguments: Namespace) -> int:
    """Prints the report, line by line or as one JSON object; returns 0 if rendering works on any device, else 1."""
    show = (lambda _line: None) if arguments.json else print
    show(f"tsplat {__version__}, Python {platform.python_version()}, {platform.platform()}")
    packages = _find_packages(show)
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    devices += [torch.device("mps")] if torch.backends.mps.is_available() else []
    has_gpu = torch.cuda.is_available()
    driver, driver_problem = gpu_driver() if has_gpu else (None, None)
    if driver is not None:
        show(f"  GPU driver  {driver}")
    checked = _check_devices(devices, show)
    works = any(device["ok"] for device in checked)
    missing = [package for package, version in packages.items() if version is None]
    advice = _advice(missing, has_gpu=len(devices) > 1, driver_problem=driver_problem)
    show("what to do" if advice else "nothing is missing")
    for line in advice:
        show(f"  {line}")
    if arguments.json:
        report = {
            "ok": works,
            "tsplat": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": packages,
            "gpu_driver": driver,
            "devices": checked,
            "what_to_do": advice,
        }
        print(json.dumps(report))
    return 0 if works else 1


def _find_packages(show: Callable[[str], object]) -> dict[str, str | None]:
    """Shows and returns the versions of packages; None for those that are not installed."""
    versions = {package: installed_version(package) for package in (*CORE, "llvmlite", *OPTIONAL, VIEWER)}
    for package, version in versions.items():
        show(f"  {package:11} {version or 'missing'}")
    return versions


def _check_devices(devices: list[torch.device], show: Callable[[str], object]) -> list[dict[str, Any]]:
    """Shows and returns, for each device, its backend, the reason for this choice, and whether it works (`ok`)."""
    show("devices")
    checked = []
    for device in devices:
        backend, reason = choose(device)
        problem = _find_problem(device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        title = f"{device} ({name})" if name else f"{device}"
        show(f"  {title}: backend {backend} ({reason}); {'works' if problem is None else f'FAILS: {problem}'}")
        report = {"device": str(device), "name": name, "backend": backend, "reason": reason}
        checked.append({**report, "ok": problem is None, "problem": problem})
    return checked


def _advice(missing: list[str], has_gpu: bool, driver_problem: str | None = None) -> list[str]:
    """Returns advice on what to install or change, as lines."""
    advice = []
    if not has_gpu:
        advice.append(
            "no GPU: PyTorch does not find one; check the driver (nvidia-smi or rocminfo)"
            if torch.version.cuda or torch.version.hip
            else "no GPU: this PyTorch has no CUDA or ROCm; on a machine with a GPU, install one from pytorch.org"
        )
    if problem := triton_problem():
        advice.append(f"no triton: {problem}; without it GPUs use the slower torch backend")
    else:
        if problem := cpu_compiler_problem():
            advice.append(f"no compiled kernels on the CPU: {problem}")
        if driver_problem:
            advice.append(f"no kernels on the GPU: {driver_problem}; or use backend='torch', which is slower")
    if triton_is_interpreted():
        advice.append("TRITON_INTERPRET is set: kernels run in Python, which is meant for tests; unset it")
    optional = [package for package in missing if package in OPTIONAL]
    if optional:
        advice.append(f"no {', '.join(optional)}: demo, render and train need pip install 'tsplat[train]'")
    if VIEWER in missing:
        advice.append(f"no {VIEWER}: view and train --view need pip install 'tsplat[viewer]'")
    return advice


def _find_problem(device: torch.device) -> str | None:
    """Renders one Gaussian on a device. Returns a description of the problem, or None if it is visible."""
    try:
        K = torch.tensor([[16.0, 0.0, 8.0], [0.0, 16.0, 8.0], [0.0, 0.0, 1.0]], device=device, dtype=torch.float32)
        camera = Camera(torch.eye(4, device=device, dtype=torch.float32), K, width=16, height=16)
        colors, _, _ = rasterization(
            means=torch.tensor([[0.0, 0.0, 1.0]], device=device, dtype=torch.float32),
            quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]], device=device, dtype=torch.float32),
            scales=torch.full((1, 3), 0.1, device=device, dtype=torch.float32),
            opacities=torch.ones(1, device=device, dtype=torch.float32),
            colors=torch.ones(1, 3, device=device, dtype=torch.float32),
            **rasterization_arguments([camera]),
        )
        is_visible = float(colors[0, 8, 8, 0]) > 0.5
    except Exception as error:  # any error is a finding
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None if is_visible else "the image stays black"
