"""Images of lenses are those of a pinhole camera, warped by OpenCV's formulas."""

import pytest
import torch
from torch.nn.functional import grid_sample

import tsplat
from tests.support.backends import BACKENDS
from tests.support.slow import slow_after

OVERSAMPLING = 6
FOCAL, WIDTH, HEIGHT = 40.0, 48, 36
RADIAL, TANGENTIAL, PRISM = (-0.15, 0.04, 0.01, 0.02, -0.01, 0.005), (0.01, -0.02), (0.01, 0.02, -0.01, 0.005)
FISHEYE = (0.08, -0.03, 0.01, -0.002)


def opencv(a, b):
    """Where OpenCV's pinhole lens shows x / z = a and y / z = b."""
    k1, k2, k3, k4, k5, k6 = RADIAL
    (p1, p2), (s1, s2, s3, s4) = TANGENTIAL, PRISM
    r2 = a * a + b * b
    gain = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
    u = a * gain + 2 * p1 * a * b + p2 * (r2 + 2 * a * a) + s1 * r2 + s2 * r2**2
    v = b * gain + p1 * (r2 + 2 * b * b) + 2 * p2 * a * b + s3 * r2 + s4 * r2**2
    return u, v


def opencv_fisheye(a, b):
    k1, k2, k3, k4 = FISHEYE
    r = torch.hypot(a, b).clamp_min(1e-12)
    theta = r.atan()
    bent = theta * (1 + k1 * theta**2 + k2 * theta**4 + k3 * theta**6 + k4 * theta**8)
    return a * bent / r, b * bent / r


def undistorted(lens):
    """x / z and y / z of what each pixel shows, by fixed-point iterations. [H, W, 2]"""
    y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
    x, y = ((t.double() - c) / FOCAL for t, c in ((x, WIDTH / 2), (y, HEIGHT / 2)))
    a, b = x, y
    for _ in range(300):
        u, v = lens(a, b)
        a, b = a + x - u, b + y - v
    return torch.stack([a, b], -1)


@pytest.mark.parametrize("with_eval3d", slow_after(1, [False, True]))
@pytest.mark.parametrize("lens", [opencv, opencv_fisheye])
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_are_warped_pinhole_images(backend, lens, with_eval3d):
    generator = torch.Generator().manual_seed(0)
    n = 60
    depth = 3 + torch.rand(n, generator=generator)
    directions = 1.6 * torch.rand(n, 2, generator=generator) - 0.8
    scene = dict(
        means=torch.cat([directions * depth[:, None], depth[:, None]], 1), quats=torch.randn(n, 4, generator=generator),
        scales=0.1 + 0.1 * torch.rand(n, 3, generator=generator), opacities=torch.full((n,), 0.9),
        colors=torch.rand(n, 3, generator=generator), viewmats=torch.eye(4)[None], with_ut=True, eps2d=0.0,
        with_eval3d=with_eval3d, backend=backend,
    )  # fmt: skip
    scene = {k: t.double() if isinstance(t, torch.Tensor) else t for k, t in scene.items()}
    side, focal = 100 * OVERSAMPLING, FOCAL * OVERSAMPLING
    wide = torch.tensor([[[focal, 0, side / 2], [0, focal, side / 2], [0, 0, 1]]], dtype=torch.float64)
    pinhole, _, _ = tsplat.rasterization(**scene, Ks=wide, width=side, height=side)
    grid = undistorted(lens) * focal / (side / 2)
    expected = grid_sample(pinhole.movedim(-1, 1), grid[None], align_corners=False)[0].movedim(0, -1)
    names = {
        "opencv": ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs"),
        "opencv_fisheye": ("radial_coeffs",),
    }
    values = (RADIAL, TANGENTIAL, PRISM) if lens is opencv else (FISHEYE,)
    coefficients = {k: torch.tensor([v], dtype=torch.float64) for k, v in zip(names[lens.__name__], values)}
    Ks = torch.tensor([[[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]]], dtype=torch.float64)
    model = "pinhole" if lens is opencv else "fisheye"
    found, _, _ = tsplat.rasterization(
        **scene, Ks=Ks, width=WIDTH, height=HEIGHT, camera_model=model, **coefficients, tile_size=16
    )
    difference = (found[0] - expected).abs()
    plain, _, _ = tsplat.rasterization(**scene, Ks=Ks, width=WIDTH, height=HEIGHT)
    assert expected.max() > 0.5 and (plain[0] - expected).abs().mean() > 0.02
    assert difference.mean() < (1e-3 if with_eval3d else 4e-3)
