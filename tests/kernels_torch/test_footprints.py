"""Footprints in PyTorch are those of the Triton kernels."""

import pytest

from tsplat.kernels_torch.footprints import FOOTPRINTS


def test_footprints_are_those_of_the_kernels():
    pytest.importorskip("triton")
    from tsplat.kernels.compositing import footprints

    assert FOOTPRINTS.keys() == footprints.FOOTPRINTS.keys()
    for name, footprint in FOOTPRINTS.items():
        assert footprint.SUMS == footprints.FOOTPRINTS[name].SUMS, name
