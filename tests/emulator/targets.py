"""Targets that the emulator's own tests run on.

With `EMULATE` in the environment, as in `make emulate`, all run on that target. Without it, as in `make test`, they run
on one target of each kind, and those that compile for long do not run.
"""

import os

import pytest

from emulator import build
from emulator.emulation import target_of

KINDS = [("cuda:80", "ptx"), ("cuda:80", "sass"), ("hip:gfx942", "amdgcn"), ("hip:gfx1100", "amdgcn")]
"""PTX, NVIDIA's machine code, AMD's with 64 and with 32 lanes per wave."""


def selected(default):
    """Returns the (target, code) of `EMULATE` and `EMULATE_CODE`, or the default."""
    if "EMULATE" not in os.environ:
        return default
    target = target_of(os.environ["EMULATE"])
    code = "amdgcn" if target.backend == "hip" else os.environ.get("EMULATE_CODE") or "ptx"
    return [(f"{target.backend}:{target.arch}", code)]


def _parametrized(targets):
    return pytest.mark.parametrize(("target", "code"), targets, ids=["-".join(target) for target in targets])


each_target = _parametrized(selected(KINDS))
"""Runs a test on every target."""
one_target = _parametrized(selected(KINDS[:1]))
"""Runs a test on PTX for sm_80 only."""
one_of_nvidia_and_amd = _parametrized(selected([KINDS[0], KINDS[2]]))
"""Runs a test on PTX for sm_80, and on gfx942."""
needs_emulator = pytest.mark.skipif(
    build.missing() is not None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="the emulator needs gcc and compiled kernels",
)
"""Skips tests of other folders where the emulator cannot run."""
compiles_long = pytest.mark.skipif("EMULATE" not in os.environ, reason="compiles for long: make emulate runs it")
