"""Fixtures of the tests of runs."""

import pytest

from tests.support.plain_results import simplify

WITH_CHARTS = {"test_demo", "test_native_cameras", "test_report"}
"""Tests of charts and of fitted poses."""


@pytest.fixture(autouse=True)
def _plain_results(request, monkeypatch):
    if request.path.stem not in WITH_CHARTS:
        simplify(monkeypatch.setattr)
