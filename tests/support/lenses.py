"""Scenes for tests of lenses and rolling shutters."""

import pytest
import torch

from tests.support import scenes
from tsplat import BivariateWindshieldModelParameters
from tsplat.config import FThetaCameraDistortionParameters, FThetaPolynomialType, RollingShutterType

CASES = [
    ("pinhole", "GLOBAL"),
    ("pinhole", "ROLLING_BOTTOM_TO_TOP"),
    ("distorted pinhole", "GLOBAL"),
    ("distorted pinhole", "ROLLING_TOP_TO_BOTTOM"),
    ("fisheye", "GLOBAL"),
    ("distorted fisheye", "GLOBAL"),
    ("distorted fisheye", "ROLLING_LEFT_TO_RIGHT"),
    ("ortho", "ROLLING_RIGHT_TO_LEFT"),
    ("windshield pinhole", "GLOBAL"),
    ("windshield distorted pinhole", "ROLLING_TOP_TO_BOTTOM"),
    ("windshield distorted fisheye", "GLOBAL"),
    ("windshield ftheta", "ROLLING_LEFT_TO_RIGHT"),
    ("ftheta", "GLOBAL"),
    ("ftheta", "ROLLING_TOP_TO_BOTTOM"),
    ("wide ftheta", "GLOBAL"),
    ("wide inverse ftheta", "ROLLING_RIGHT_TO_LEFT"),
    ("equirectangular", "GLOBAL"),
    ("partial equirectangular", "ROLLING_TOP_TO_BOTTOM"),
]
QUICK = (0, 3, 6, 7, 8, 15)
"""Cases that `make quick` runs."""
ALONE = CASES.index(("equirectangular", "GLOBAL"))
"""Index of the case with full panoramas. They have separate tests, because compiling their kernels takes long."""
PARAMETERS = [
    case if i in QUICK else pytest.param(*case, marks=pytest.mark.slow) for i, case in enumerate(CASES) if i != ALONE
]


def ftheta(kind, scale, max_angle=0.6):
    """Returns an f-theta lens with about ``scale`` pixels per radian; inverse kinds define angles by the polynomial."""
    polynomial = (0.0, 1.0, -0.03, 0.06, -0.04, 0.01)
    of_angles = tuple(scale * number for number in polynomial)
    of_distances = tuple(number / scale**degree for degree, number in enumerate(polynomial))
    reference = ("ANGLE_TO_PIXELDIST", "PIXELDIST_TO_ANGLE")[kind == "inverse ftheta"]
    return FThetaCameraDistortionParameters(
        FThetaPolynomialType[reference], of_distances, of_angles, max_angle, (1.02, 0.03, -0.02)
    )


def windshield(seed=0):
    """Returns a windshield whose polynomials have an exact inverse."""
    generator = torch.Generator().manual_seed(seed)
    a, b, c, d, e = (0.1 * torch.rand(5, generator=generator, dtype=torch.float64) - 0.05).tolist()
    # h = phi + a + b psi + c psi^2 + d psi^3 and v = (1 + e) psi, as polynomials of degree 3.
    s = 1 / (1 + e)
    inverse = torch.tensor([-a, 1, 0, 0, -b * s, 0, 0, -c * s**2, 0, -d * s**3], dtype=torch.float64)
    return BivariateWindshieldModelParameters(
        (a, 1.0, 0.0, 0.0, b, 0.0, 0.0, c, 0.0, d), (0.0, 0.0, 1 + e), inverse, (0.0, 0.0, s)
    )


def all_around(scene, seed, *, is_full):
    """Returns means in all directions, some at the seam, at poles or around the cameras; and intrinsics of panoramas.

    The panoramas are full, or show 230 by 130 degrees around another center and are mirrored.
    """
    means, Ks = scene["means"], scene["Ks"].clone()
    generator = torch.Generator().manual_seed(seed + 1)
    directions = torch.randn(means.shape, generator=generator, dtype=torch.float64)
    thin = torch.tensor([[1.0, 1, 1], [1, 1, 1], [0.02, 0.6, -1], [0.1, 1, 0.1], [0.15, -1, -0.1], [0.3, 0.3, 0.3]])
    directions = directions * thin.double()[torch.arange(means.shape[-2]) % 6]
    directions[..., 2::6, 2] = -directions[..., 2::6, 2].abs()  # across the seam
    distances = means.double().norm(dim=-1, keepdim=True)
    distances[..., 5::6, :] *= 0.1  # cameras are inside of some Gaussians
    means = (directions / directions.norm(dim=-1, keepdim=True)).to(means.device) * distances
    span = (2 * torch.pi, torch.pi) if is_full else (4.0, -2.3)
    for axis, size in enumerate((scene["width"], scene["height"])):
        Ks[..., axis, axis] = size / span[axis]
        Ks[..., axis, 2] = size * (0.5 if is_full else (1.9, 0.45)[axis])
    return dict(means=means.to(Ks), Ks=Ks)


def make(kind, readout="GLOBAL", seed=0, dtype=torch.float64, device="cpu", **structure):
    """Returns a scene in front of cameras with random coefficients, which move during the readout of a rolling
    shutter."""
    is_behind_glass, kind = kind.startswith("windshield"), kind.removeprefix("windshield ")
    is_wide, kind = kind.startswith("wide"), kind.removeprefix("wide ")
    model = kind.split()[-1]
    scene = scenes.make(scenes.Structure(**dict(n=15, seed=seed, camera_model=model) | structure), dtype, device)
    if model in ("fisheye", "ftheta"):
        scene["means"][..., 2].abs_()
    elif model == "equirectangular":
        scene |= all_around(scene, seed, is_full=kind == model)
    generator = torch.Generator().manual_seed(seed)
    *leading, _, _ = scene["viewmats"].shape

    def uniform(n, size):
        return (size * (2 * torch.rand(*leading, n, generator=generator, dtype=torch.float64) - 1)).to(device, dtype)

    options = dict(with_ut=True, rolling_shutter=RollingShutterType[readout])
    if is_wide:
        # Many Gaussians are behind the cameras, which see up to 126 degrees from the axis.
        scene["means"][..., 2] *= torch.linspace(-0.4, 0.6, scene["means"].shape[-2]).to(scene["means"])
        options["global_z_order"] = False
    if kind == "distorted pinhole":
        options |= dict(
            radial_coeffs=uniform(6, 0.05), tangential_coeffs=uniform(2, 0.01), thin_prism_coeffs=uniform(4, 0.01)
        )
    elif kind == "distorted fisheye":
        options |= dict(radial_coeffs=uniform(4, 0.05))
    elif model == "ftheta":
        scale, max_angle = (0.25, 2.2) if is_wide else (0.85, 0.6)
        options |= dict(ftheta_coeffs=ftheta(kind, scale * scene["width"], max_angle))
    if is_behind_glass:
        options |= dict(external_distortion_coeffs=windshield(seed))
    if readout != "GLOBAL":
        end = scene["viewmats"].clone()
        end[..., :3, :3] = scenes._small_rotations(uniform(3, 0.05).double()).to(dtype) @ end[..., :3, :3]
        end[..., :3, 3] += uniform(3, 0.05)
        options |= dict(viewmats_rs=end)
    return scene | options
