"""Zeros, infinities, NaN and huge values in poses, lenses and rays give finite images and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tsplat
from tests.support import lenses, lidars
from tests.support.scenes import random_like

VALUES = (0.0, math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, 1e-30, 1e-42, 1e12, -1e12, 1e-12, 1.0)
LEAVES = ("means", "quats", "scales", "opacities", "viewmats", "viewmats_rs", "radial_coeffs", "rays")


def make(case, seed, with_eval3d):
    """Returns a scene around a lidar, or with a case of lenses. A third of those with evaluation in 3D have rays."""
    if case is None:
        scene = lidars.make(seed, 12, torch.float32, sweeps=seed % 2 == 1)
        shape = (1, scene["lidar_coeffs"].n_rows, scene["lidar_coeffs"].n_columns, 6)
    else:
        scene = lenses.make(*case, seed, torch.float32, n=12, cameras=1, width=20, height=12) | {
            "with_eval3d": with_eval3d
        }
        shape = (1, 12, 20, 6)
    if scene["with_eval3d"] and seed % 3 == 0:
        scene["rays"] = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return scene | {"backgrounds": None}


@pytest.mark.parametrize("backend", [pytest.param("triton", marks=[pytest.mark.triton, pytest.mark.slow]), "torch"])
def test_special_values_give_finite_images_and_gradients(backend):
    @given(
        case=st.sampled_from([None, *lenses.CASES]),
        seed=st.integers(0, 20),
        with_eval3d=st.booleans(),
        changes=st.lists(
            st.tuples(st.sampled_from(LEAVES), st.sampled_from(VALUES), st.booleans(), st.integers(0, 2**20)),
            min_size=1,
            max_size=3,
        ),
        options=st.fixed_dictionaries(
            dict(
                numerics=st.sampled_from(["gsplat-1.5", "gsplat-1.6", "inria"]),
                packed=st.booleans(),
                render_mode=st.sampled_from(["RGB", "RGB+ED"]),
            )
        ),
    )
    def check(case, seed, with_eval3d, changes, options):
        scene = make(case, seed, with_eval3d)
        for name, value, whole_row, place in changes:
            if scene.get(name) is not None:
                rows = scene[name].flatten(0, -2) if scene[name].dim() > 1 else scene[name][:, None]
                scene[name] = scene[name].clone()
                rows = scene[name].view(rows.shape)
                row = place % len(rows)
                rows[row, slice(None) if whole_row else place // len(rows) % rows.shape[1]] = value
        leaves = {name: scene[name].requires_grad_() for name in LEAVES if scene.get(name) is not None}
        outputs = tsplat.rasterization(**scene, **options, backend=backend)[:2]
        assert all(output.isfinite().all() for output in outputs)
        if not outputs[0].requires_grad:
            return
        gradients = torch.autograd.grad(outputs, list(leaves.values()), random_like(outputs, 0), allow_unused=True)
        for name, gradient in zip(leaves, gradients):
            assert gradient is None or gradient.isfinite().all(), name

    check()
