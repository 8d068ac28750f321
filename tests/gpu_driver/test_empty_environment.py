"""A GPU machine needs no C compiler and no Python headers: from an empty cache, with an empty PATH."""

import os
import subprocess
import sys

import pytest

from emulator import build
from tests.support.paths import ROOT

from .small_kernels import TARGETS

RENDER = """
import sys, sysconfig
import torch, triton

programs = set()
sys.addaudithook(lambda event, args: programs.add(str(args[0])) if event == "subprocess.Popen" else None)
paths, nowhere = sysconfig.get_paths, {"include": "/nowhere", "platinclude": "/nowhere"}
sysconfig.get_paths = lambda *given, **named: paths(*given, **named) | nowhere

from emulator.package import tsplat_emulated
from tests.support import scenes
from tests.support.closeness import assert_run_fp32

class NoDriver:
    def __getattr__(self, name):
        raise AssertionError(f"Triton's driver was asked for {name}")

structure = scenes.Structure(n=14, cameras=1, width=13, height=9, seed=3)
with tsplat_emulated(sys.argv[1]) as gpu:
    triton.runtime.driver._active = NoDriver()
    assert_run_fp32(scenes.make(structure, torch.float32), backend="triton")
assert len(gpu.counts) > 5, gpu.counts.keys()
print(*sorted(programs), sep="\\n")
"""


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_scenes_are_rendered_and_differentiated_without_a_compiler(target, tmp_path):
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "XDG_CACHE_HOME", "EMULATE")}
    for built_before in (build.nvidia_core, build.driver_library, *(lambda n=n: build.amd_core(n) for n in (32, 64))):
        built_before()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = kept | {"PATH": "", "TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", RENDER, target], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    # Triton's own programs, which are in its package, make machine code for NVIDIA's GPUs.
    assert all("triton" in program and "bin" in program for program in done.stdout.split()), done.stdout
    assert list((tmp_path / "cache").rglob("*.cubin" if target.startswith("sm") else "*.hsaco"))
    assert not list((tmp_path / "cache").rglob("*.so"))
