"""Random scenes for tests. A structure contains sizes, options and a seed; the seed determines all numbers."""

import dataclasses
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tsplat.config import CameraModel

DIFFERENTIABLE = ("means", "quats", "scales", "covars", "opacities", "colors", "viewmats", "backgrounds")


@dataclasses.dataclass(frozen=True)
class Structure:
    """Sizes and options of a scene, and the seed of its numbers."""

    n: int = 12
    cameras: int = 2
    batch: tuple[int, ...] = ()
    channels: int = 3
    sh_degree: int | None = None
    spare_bases: int = 0
    per_camera_colors: bool = False
    covars: bool = False
    backgrounds: bool = True
    width: int = 21
    height: int = 19
    size: float = 3.0
    """Typical standard deviation on screen, pixels."""
    seed: int = 0
    camera_model: CameraModel = "pinhole"


def make(structure: Structure, dtype: torch.dtype = torch.float64, device: str = "cpu") -> dict[str, Any]:
    """Returns keyword arguments of `rasterization`: a cloud of Gaussians in front of cameras with various poses and
    intrinsics.

    Means are [*batch, N, 3], viewmats [*batch, C, 4, 4]. Some means lie outside of the image and a few behind the
    camera; one opacity in six is 1, so that alpha is clamped. For camera models other than pinhole, half of the means
    are behind the camera. Fisheye cameras have a field of view of 229 degrees along the longer edge. The first camera
    of a scene is the identity, and some means lie on or close to its axis.
    """
    s = structure
    generator = torch.Generator().manual_seed(s.seed)

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    b = s.batch
    focal = 0.9 * max(s.width, s.height)
    behind = 0.05 if s.camera_model == "pinhole" else 0.5
    depth = uniform(*b, s.n, low=2.0, high=6.0)
    xy = uniform(*b, s.n, 2, low=-0.7, high=0.7) * torch.tensor([s.width, s.height]) / focal * depth[..., None]
    depth = torch.where(uniform(*b, s.n) < behind, -depth, depth)
    if s.camera_model == "fisheye":
        off_axis = torch.tensor([0.0, 1e-6, 1e-3, 1.0, 4.0, 4.0])[torch.arange(s.n) % 6]
        xy = xy * torch.where(depth > 0, off_axis, 4.0)[..., None]
        focal *= 0.25 / 0.9
    means = torch.cat([xy, depth[..., None]], -1)
    scales = (s.size / focal * depth.abs())[..., None] * (0.5 * normal(*b, s.n, 3)).exp()
    quats = normal(*b, s.n, 4) * uniform(*b, s.n, 1, low=0.2, high=3.0)
    viewmats = torch.eye(4, dtype=torch.float64).repeat(*b, s.cameras, 1, 1)
    viewmats[..., :3, :3] = _small_rotations(0.1 * normal(*b, s.cameras, 3))
    viewmats[..., :3, 3] = 0.1 * normal(*b, s.cameras, 3)
    if s.camera_model == "fisheye":
        viewmats[..., :1, :, :] = torch.eye(4, dtype=torch.float64)
    elif s.camera_model == "ortho":
        focal /= 4.0  # pixels per world unit
    Ks = torch.zeros(*b, s.cameras, 3, 3, dtype=torch.float64)
    Ks[..., 0, 0] = focal * uniform(*b, s.cameras, low=0.8, high=1.2)
    Ks[..., 1, 1] = focal * uniform(*b, s.cameras, low=0.8, high=1.2)
    Ks[..., 0, 2] = s.width * uniform(*b, s.cameras, low=0.35, high=0.65)
    Ks[..., 1, 2] = s.height * uniform(*b, s.cameras, low=0.35, high=0.65)
    Ks[..., 2, 2] = 1.0
    leading = (*b, s.cameras, s.n) if s.per_camera_colors else (*b, s.n)
    if s.sh_degree is None:
        colors = uniform(*leading, s.channels)
    else:
        colors = 0.3 * normal(*leading, (s.sh_degree + 1) ** 2 + s.spare_bases, 3)
    scene: dict[str, Any] = dict(
        means=means,
        quats=quats,
        scales=scales,
        opacities=uniform(*b, s.n, low=0.05, high=1.2).clamp_max(1.0),
        colors=colors,
        viewmats=viewmats,
        Ks=Ks,
        backgrounds=uniform(*b, s.cameras, colors.shape[-1]) if s.backgrounds else None,
        covars=None,
    )
    if s.covars:
        m = _small_rotations(quats[..., 1:]) * scales[..., None, :]
        scene.update(covars=m @ m.transpose(-1, -2), quats=None, scales=None)
    scene = {name: None if t is None else t.to(device, dtype) for name, t in scene.items()}
    return scene | dict(width=s.width, height=s.height, sh_degree=s.sh_degree, camera_model=s.camera_model)


def _small_rotations(axis_angle: Tensor) -> Tensor:
    zero = torch.zeros_like(axis_angle[..., 0])
    x, y, z = axis_angle.unbind(-1)
    generator = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    return torch.linalg.matrix_exp(generator)


@st.composite
def structures(draw: st.DrawFn, *, max_pixels: int = 24, max_n: int = 20, channels: int = 5) -> Structure:
    """Draws structures with any combination of options."""
    sh_degree = draw(st.none() | st.integers(0, 4))
    return Structure(
        n=draw(st.integers(0, max_n)),
        cameras=draw(st.integers(1, 3)),
        batch=draw(st.sampled_from([(), (1,), (2,), (2, 1)])),
        channels=3 if sh_degree is not None else draw(st.integers(1, channels)),
        sh_degree=sh_degree,
        spare_bases=draw(st.integers(0, 2)),
        per_camera_colors=draw(st.booleans()),
        covars=draw(st.booleans()),
        backgrounds=draw(st.booleans()),
        width=draw(st.integers(1, max_pixels)),
        height=draw(st.integers(1, max_pixels)),
        size=draw(st.sampled_from([0.3, 1.0, 3.0, 8.0])),
        seed=draw(st.integers(0, 2**31)),
        camera_model=draw(st.sampled_from(["pinhole", "ortho", "fisheye"])),
    )


@st.composite
def modes(draw: st.DrawFn) -> dict[str, Any]:
    """Draws settings of `rasterization` that change the image."""
    return dict(
        render_mode=draw(st.sampled_from(["RGB", "D", "ED", "RGB+D", "RGB+ED"])),
        rasterize_mode=draw(st.sampled_from(["classic", "antialiased"])),
        numerics=draw(st.sampled_from(["gsplat-1.5", "gsplat-1.6", "inria"])),
        eps2d=draw(st.sampled_from([0.1, 0.3, 1.0])),
        radius_clip=draw(st.sampled_from([0.0, 3.0])),
        near_plane=draw(st.sampled_from([0.01, 2.5, -10.0])),
        far_plane=draw(st.sampled_from([5.0, 1e10])),
    )


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Draws settings of `rasterization` that do not change the image."""
    return dict(
        packed=draw(st.booleans()),
        tile_size=draw(st.sampled_from([4, 8, 16])),
        channel_chunk=draw(st.sampled_from([1, 2, 32])),
    )


def leaves(scene: dict[str, Any]) -> dict[str, Any]:
    """Copies the differentiable inputs of a scene to leaf tensors that require a gradient."""
    return {
        name: value.detach().clone().requires_grad_() if name in DIFFERENTIABLE and value is not None else value
        for name, value in scene.items()
    }


def random_like(outputs: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    """Returns random incoming gradients, one for each image."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype) for t in outputs)
