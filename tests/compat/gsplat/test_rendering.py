"""Rendering under gsplat's names."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, reference
from tsplat.compat import gsplat
from tsplat.config import PRESETS

NAMES = ("rasterization", "fully_fused_projection", "isect_tiles", "isect_offset_encode", "rasterize_to_pixels")
STRUCTURE = scenes.Structure(n=25, cameras=2, sh_degree=2, width=20, height=16, seed=11)


def test_functions_of_tsplat_are_its_own():
    for name in NAMES:
        assert getattr(gsplat, name) is getattr(tsplat, name)
    assert gsplat.RollingShutterType is tsplat.RollingShutterType


def make_scene(dtype=torch.float64):
    scene = scenes.make(STRUCTURE, dtype)
    del scene["camera_model"]
    return {name: value for name, value in scene.items() if value is not None}


def test_inria_wrapper_matches_reference():
    scene = make_scene()
    image, alphas, meta = gsplat.rasterization_inria_wrapper(**scene)
    expected = reference.rasterize(**scene, far_plane=100.0, numerics=PRESETS["inria"])
    assert_exact("colors", image, expected.colors)
    assert alphas is None
    assert meta == {}


def test_inria_wrapper_refuses_other_arguments():
    with pytest.raises(ArgumentError, match=r"expected none, found \['packed'\]"):
        gsplat.rasterization_inria_wrapper(**make_scene(), packed=False)


def test_settings_of_distortion_can_be_made_but_not_used():
    from tsplat.compat.gsplat.cuda._wrapper import FThetaCameraDistortionParameters, FThetaPolynomialType

    polynomial = (0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    coeffs = FThetaCameraDistortionParameters(
        FThetaPolynomialType.PIXELDIST_TO_ANGLE, polynomial, polynomial, 1.0, (1.0, 0.0, 0.0)
    )
    with pytest.raises(NotImplementedError, match="ftheta_coeffs"):
        gsplat.rasterization(**make_scene(torch.float32), ftheta_coeffs=coeffs)
