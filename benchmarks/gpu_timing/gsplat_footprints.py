"""gsplat's compositing kernels by footprint: their files, their arguments, and their results by tsplat's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .scenes import Composited

TILE_SIZE = 16
PIXELS = TILE_SIZE**2

PINHOLE = """
    constexpr auto camera_model_type = CameraModelType::PINHOLE;
    constexpr auto rs_type = ShutterType::GLOBAL;
    constexpr const float *viewmats1 = nullptr, *radial_coeffs = nullptr, *tangential_coeffs = nullptr;
    constexpr const float *thin_prism_coeffs = nullptr;
"""
"""Constants in place of arguments, so that the kernel has no code for lenses and shutters that are not used."""
CONSTANTS = (
    "const CameraModelType camera_model_type", "const ShutterType rs_type", "const scalar_t *__restrict__ viewmats1",
    "const scalar_t *__restrict__ radial_coeffs", "const scalar_t *__restrict__ tangential_coeffs",
    "const scalar_t *__restrict__ thin_prism_coeffs",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Lists:
    """gsplat's lists of the tiles of an image: the start of each tile's list, and the row of each entry."""

    starts: Tensor
    ids: Tensor
    width: int
    height: int

    def arguments(self) -> tuple[Any, ...]:
        return self.width, self.height, TILE_SIZE, -(-self.width // TILE_SIZE), -(-self.height // TILE_SIZE)


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The two kernels of a footprint.

    Attributes:
        file, kernel: Names without the direction: ``{file}Fwd.cu`` and ``{kernel}_fwd_kernel``.
        shared: Bytes of shared memory per pixel of both kernels, without features in the second.
        channels: Returns the number of channels that gsplat blends as colors, given tsplat's number of channels.
        run: Takes tsplat's inputs of compositing and the lists; returns the arguments of both kernels, and all results
            by the names of :meth:`.scenes.Composited.results`.
        edit: Edits the source.
    """

    file: str
    kernel: str
    shared: tuple[int, int]
    channels: Callable[[int], int]
    run: Callable[[Composited, Lists], tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Tensor]]]
    edit: Callable[[str], str] = str


def _images(composited: Composited, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns empty colors, alphas and last ids."""
    shape = composited.colors.shape[:3]
    return torch.zeros(*shape, channels), torch.zeros(*shape, 1), torch.zeros(shape, dtype=torch.int32)


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) for t in tensors)


def _run_ellipse(composited: Composited, lists: Lists) -> Any:
    splats = composited.splats
    means2d, conics, opacities, colors = map(_fp32, (*splats[:3], splats.colors))
    images = _images(composited, colors.shape[-1])
    given = (
        1, 0, len(lists.ids), True, means2d, conics, colors, opacities, composited.backgrounds, None,
        *lists.arguments(), lists.starts[:-1].int(), lists.ids,
    )  # fmt: skip
    v_images = _fp32(composited.v_colors), _fp32(composited.v_alphas)
    v_means2d, v_conics, v_colors, v_opacities = v = _like(means2d, conics, colors, opacities)
    results = dict(
        colors=images[0], alphas=images[1], v_means2d=v_means2d, v_conics=v_conics, v_opacities=v_opacities,
        v_features=v_colors,
    )  # fmt: skip
    return (*given, *images), (*given, *images[1:], *v_images, None, *v), results


def _run_ray(composited: Composited, lists: Lists) -> Any:
    splats = composited.splats
    assert composited.cameras is not None
    means, quats, scales = (_fp32(splats.shapes[:, columns]) for columns in (slice(3), slice(3, 7), slice(7, 10)))
    opacities, colors = _fp32(splats.opacities), _fp32(splats.colors)
    images = _images(composited, colors.shape[-1])
    viewmats, Ks = map(_fp32, composited.cameras)
    given = (
        1, 1, len(means), len(lists.ids), False, means, quats, scales, colors, opacities, composited.backgrounds, None,
        *lists.arguments(), viewmats, None, Ks, 0, bytes(20), 4, None, None, None, bytes(68), lists.starts[:-1].int(),
        lists.ids,
    )  # fmt: skip
    v_images = _fp32(composited.v_colors), _fp32(composited.v_alphas)
    v = _like(means, quats, scales, colors, opacities)
    results = dict(
        colors=images[0], alphas=images[1], v_means=v[0], v_quats=v[1], v_scales=v[2], v_opacities=v[4],
        v_features=v[3],
    )  # fmt: skip
    return (*given, *images), (*given, *images[1:], *v_images, *v), results


def _run_surfel(composited: Composited, lists: Lists) -> Any:
    """Returns arguments and results for 2D Gaussians; tsplat's channels are normals, colors, depth and distortion."""
    splats = composited.splats
    assert splats.colors is not None and splats.depths is not None
    means2d, transforms, opacities = map(_fp32, splats[:3])
    normals = _fp32(splats.colors[:, :3])
    colors = _fp32(torch.cat([splats.colors[:, 3:], splats.depths[:, None]], -1))
    image, alphas, last_ids = _images(composited, colors.shape[-1])
    of_normals, distortions = _images(composited, 3)[0], _images(composited, 1)[0]
    medians, median_ids = _like(distortions, last_ids)
    shared = (*lists.arguments(), lists.starts[:-1].int(), lists.ids)
    sizes = (1, 0, len(lists.ids), True)
    forward = (
        *sizes, means2d, transforms, colors, opacities, normals, None, None, *shared, image, alphas, of_normals,
        distortions, medians, last_ids, median_ids,
    )  # fmt: skip
    v_images = composited.v_colors
    v_normals, v_colors, v_distortions = map(_fp32, (v_images[..., :3], v_images[..., 3:-1], v_images[..., -1:]))
    v = _like(means2d, transforms, colors, opacities, normals, means2d)
    backward = (
        *sizes, means2d, transforms, colors, normals, opacities, None, None, *shared, image, alphas, last_ids,
        median_ids, v_colors, _fp32(composited.v_alphas), v_normals, v_distortions, torch.zeros_like(medians), None, *v,
    )  # fmt: skip
    results = dict(
        colors=image, alphas=alphas, normals=of_normals, distortions=distortions, v_means2d=v[0], v_transforms=v[1],
        v_opacities=v[3], v_features=v[2], v_normals=v[4],
    )  # fmt: skip
    return forward, backward, results


def _fp32(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.float().contiguous()


def _only_pinhole(source: str) -> str:
    for parameter in CONSTANTS:
        assert source.count(parameter) == 1, parameter
        source = source.replace(parameter, parameter.rsplit(" ", 1)[0])
    head, begin, body = source.partition(") {\n")
    return f'#include "Cameras.h"\n{head}{begin}{PINHOLE}{body}'


FOOTPRINTS = {
    "ellipse": Footprint(
        "RasterizeToPixels3DGS", "rasterize_to_pixels_3dgs", (28, 28), lambda n: n, _run_ellipse
    ),
    "ray": Footprint(
        "RasterizeToPixelsFromWorld3DGS", "rasterize_to_pixels_from_world_3dgs", (56, 48), lambda n: n, _run_ray,
        _only_pinhole,
    ),
    "surfel": Footprint(
        "RasterizeToPixels2DGS", "rasterize_to_pixels_2dgs", (52, 64), lambda n: n - 4, _run_surfel
    ),
}  # fmt: skip
"""gsplat's kernels, by tsplat's name of the footprint."""
