"""Rendering under gsplat's names."""

import enum
import types

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import assert_exact
from tsplat import ArgumentError, reference
from tsplat.compat import gsplat
from tsplat.config import PRESETS

NAMES = ("rasterization", "isect_tiles", "isect_offset_encode", "rasterize_to_pixels")
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


def test_settings_of_an_ftheta_camera_are_those_of_tsplat_or_of_gsplat():
    from tsplat.compat.gsplat.cuda._wrapper import FThetaCameraDistortionParameters, FThetaPolynomialType

    assert FThetaCameraDistortionParameters is tsplat.FThetaCameraDistortionParameters
    own = FThetaCameraDistortionParameters(
        FThetaPolynomialType.ANGLE_TO_PIXELDIST, (0.0, 0.06, 0, 0, 0, 0), (0.0, 16.0, 0, 1, 0, 0), 1.4, (1.0, 0.0, 0.0)
    )
    other = enum.Enum("FThetaPolynomialType", dict(PIXELDIST_TO_ANGLE=0, ANGLE_TO_PIXELDIST=1))
    theirs = types.SimpleNamespace(**vars(own) | {"reference_poly": other.ANGLE_TO_PIXELDIST})
    options = make_scene(torch.float32) | dict(camera_model="ftheta", with_ut=True, packed=False)
    found, expected = (gsplat.rasterization(**options, ftheta_coeffs=each)[0] for each in (theirs, own))
    assert torch.equal(found, expected) and found.std() > 0.01


DEFAULTS_1_6 = dict(
    near_plane=0.01, far_plane=1e10, radius_clip=0.0, eps2d=0.3, packed=True, tile_size=None, backgrounds=None,
    render_mode="RGB", sparse_grad=False, absgrad=False, rasterize_mode="classic", channel_chunk=32, distributed=False,
    camera_model="pinhole", segmented=False, covars=None, with_ut=False, with_eval3d=False, return_normals=False,
    global_z_order=True, rays=None, radial_coeffs=None, tangential_coeffs=None, thin_prism_coeffs=None,
    ftheta_coeffs=None, lidar_coeffs=None, external_distortion_coeffs=None,
    rolling_shutter=gsplat.RollingShutterType.GLOBAL, viewmats_rs=None, ut_params=None, extra_signals=None,
    extra_signals_sh_degree=None, renderer_config=None,
)  # fmt: skip


def test_arguments_of_1_6_are_accepted_at_their_defaults():
    scene = make_scene(torch.float32)
    expected, found = gsplat.rasterization(**scene), gsplat.rasterization(**(DEFAULTS_1_6 | scene))
    assert torch.equal(expected[0], found[0])
