"""Skips the emulator's own tests where it cannot be built."""

import os

import pytest

from emulator import build


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left out of make quick")


@pytest.fixture(autouse=True)
def _can_be_built():
    if reason := build.missing():
        pytest.skip(f"the emulator {reason}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the emulator needs compiled kernels")
