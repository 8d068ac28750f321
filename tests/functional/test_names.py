"""The import paths that the documentation names."""

import pytest

import tsplat
from tsplat import functional, ops


@pytest.mark.parametrize("name", functional.__all__)
def test_functions_are_names_of_the_package(name):
    assert getattr(tsplat, name) is getattr(functional, name)


@pytest.mark.parametrize("name", ["depth_to_normals", "depth_to_points"])
def test_depth_maps_are_names_of_the_package_and_of_ops(name):
    assert getattr(tsplat, name) is getattr(ops, name)
