"""Targets that the emulator's own tests run on."""

import pytest

QUICK = [("cuda:80", "ptx"), ("cuda:80", "sass"), ("hip:gfx942", "amdgcn"), ("hip:gfx1100", "amdgcn")]
SLOW = [("cuda:90", "ptx"), ("cuda:90", "sass"), ("cuda:120", "ptx")]


def _parameter(target, *marks):
    return pytest.param(*target, marks=marks, id="-".join(target))


each_target = pytest.mark.parametrize(
    ("target", "code"), [*map(_parameter, QUICK), *(_parameter(target, pytest.mark.slow) for target in SLOW)]
)
"""Runs a test on every target; those of `SLOW`, whose front ends are shared with others, are marked slow."""
