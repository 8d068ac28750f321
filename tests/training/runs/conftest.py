"""Fixtures of the tests of runs."""

import pytest

from tests.support.plain_results import simplify

WITH_CHARTS = {"test_demo", "test_native_cameras", "test_report"}
"""Tests of charts and of fitted poses."""


@pytest.fixture(autouse=True, scope="module")
def _plain_results(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in WITH_CHARTS:
            simplify(patch.setattr)
        yield
