"""Fixtures of the tests of runs."""

import pytest
import torch

from tests.support.plain_results import simplify

WITH_CHARTS = {"test_demo", "test_native_cameras", "test_report"}
"""Tests of charts and of fitted poses."""


@pytest.fixture
def no_gpu(monkeypatch):
    """Runs commands on the CPU, so that results are the same on every machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(autouse=True, scope="module")
def _plain_results(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in WITH_CHARTS:
            simplify(patch.setattr)
        yield
