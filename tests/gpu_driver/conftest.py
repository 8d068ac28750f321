"""Skips where no GPU can be emulated."""

import pytest

pytest.importorskip("triton")

from tests.emulator.conftest import _can_be_built  # noqa: F401
