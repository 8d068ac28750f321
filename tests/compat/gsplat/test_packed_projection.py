"""Packed projections in the forms of gsplat 1.5.3 and 1.6."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tsplat.compat import gsplat


@pytest.mark.parametrize("surfels", [False, True])
@pytest.mark.parametrize("batch", [(), (1, 2)])
def test_numerics_of_1_6_return_where_images_start(batch, surfels):
    scene = scenes.make(scenes.Structure(n=9, cameras=3, batch=batch, width=16, height=12, seed=3), torch.float32)
    scene["viewmats"] = scene["viewmats"].clone()
    scene["viewmats"][..., 1, 2, 3] = -100.0  # the second camera sees nothing
    shapes = [scene[name] for name in ("means", "quats", "scales")]
    given = *(shapes if surfels else (shapes[0], None, *shapes[1:])), scene["viewmats"], scene["Ks"], 16, 12
    name = "fully_fused_projection_2dgs" if surfels else "fully_fused_projection"
    function, own = getattr(gsplat, name), getattr(tsplat, name)
    for numerics, packed, n_values in (("gsplat-1.5", True, 8), ("gsplat-1.6", True, 9), ("gsplat-1.6", False, 5)):
        found = function(*given, packed=packed, numerics=numerics)
        expected = own(*given, packed=packed, numerics=numerics)
        assert len(found) == n_values
        for one, other in zip((*found[:3], *found[3 + n_values - len(expected) :]), expected):
            assert (one is None and other is None) or torch.equal(one, other)
        if n_values == 9:
            images = found[0] * 3 + found[1]
            counts = torch.bincount(images, minlength=scene["viewmats"].shape[:-2].numel())
            assert found[3].dtype == torch.int32 and found[3].tolist() == [0, *counts.cumsum(0).tolist()]
            assert (counts[1::3] == 0).all() and counts.sum() > 9
