"""Tests that pytest-xdist runs tests that share expensive fixtures in one process."""

import pytest


@pytest.mark.xdist_group("a group")
def test_pytest_xdist_groups_tests(request):
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("needs pytest-xdist with --dist loadgroup")
    problem = "this version of pytest-xdist ignores groups with this version of pytest; see constraints.txt"
    assert request.node.nodeid.endswith("@a group"), problem
