"""Compositing from tile lists that the caller passes, on the image plane and in 3D."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import (
    check_bool,
    check_devices,
    check_numerics,
    check_rolling_shutter,
    check_tensor,
    compute_dtype,
    converted_from,
)
from ..config import (
    Backend,
    CameraModel,
    CameraSettings,
    NumericsName,
    RollingShutterType,
    UnscentedTransformParameters,
)
from ..data import Cameras, CompositingSettings, Intersections, ProjectionSettings, Rays, Splats
from ..errors import ShapeError
from ..output_maps import HITS, OF_SURFELS, RAY_NORMALS
from ..runtime.compilation import eager, with_plain_tensors
from ..scalars import enum_name
from ..stages.compositing import composite
from ..stages.eval3d import camera_rays, check_rays, given_rays, ray_footprint, third_axes
from ..stages.inputs import check_scene, flatten_batch, flatten_batches
from ..stages.lens_models import (
    LensArguments,
    add_lens,
    check_camera_model,
    check_unscented,
    given_intrinsics,
)
from ..stages.surfel_pixels import composite_surfels, with_screen_gradient
from .tile_lists import TileLists


@eager
@with_plain_tensors
def rasterize_to_pixels(
    means2d: Tensor,
    conics: Tensor,
    colors: Tensor,
    opacities: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    packed: bool = False,
    absgrad: bool = False,
    *,
    subpixel_offset: Tensor | None = None,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Composites projected Gaussians into images. Same as gsplat 1.5.3, for any number of channels.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed.
        conics: [..., N, 3] upper triangles of the inverse screen covariances, or [nnz, 3]. Gaussians whose conic is not
            positive semidefinite are not rendered.
        colors: [..., N, D], or [nnz, D].
        opacities: [..., N] after sigmoid, or [nnz].
        image_width, image_height: Image size in pixels.
        tile_size: Side length of a tile in pixels: 4, 8 or 16.
        isect_offsets, flatten_ids: From :func:`isect_tiles` and :func:`isect_offset_encode`, [..., tile_height,
            tile_width] and [M].
        backgrounds: [..., D]; also [D] for a single image.
        masks: [..., tile_height, tile_width] bool; tiles that are false show the background.
        packed: Whether inputs are packed.
        absgrad: Whether the backward pass sets ``means2d.absgrad``, the sum over pixels of absolute gradients.
        subpixel_offset: [..., image_height, image_width, 2], the offset of the sample position of each pixel from its
            center, up to 0.5 pixels along each axis, as in Mip-Splatting (arXiv 2311.16493). None samples at the
            centers. Lists should then come from :func:`isect_tiles` without `conics`: with `conics`, it leaves out
            Gaussians that miss all pixel centers of a tile. Not differentiable.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., image_height, image_width, D] and ``render_alphas`` [..., image_height, image_width, 1],
        in at least fp32. Differentiable with respect to means2d, conics, colors, opacities and backgrounds.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: The tile size is not implemented.

    Example::

        import math

        import torch
        from tsplat import fully_fused_projection, isect_offset_encode, isect_tiles, rasterize_to_pixels

        n, width, height, tile_size = 100, 80, 60, 16
        opacities, colors = torch.full((n,), 0.8), torch.rand(1, n, 3)
        K = torch.tensor([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
        radii, means2d, depths, conics, _ = fully_fused_projection(
            torch.randn(n, 3) + torch.tensor([0, 0, 5.0]), None, torch.randn(n, 4), torch.full((n, 3), 0.1),
            torch.eye(4)[None], K[None], width, height,
        )
        tile_width, tile_height = math.ceil(width / tile_size), math.ceil(height / tile_size)
        _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, tile_size, tile_width, tile_height)
        offsets = isect_offset_encode(isect_ids, 1, tile_width, tile_height)
        image, alpha = rasterize_to_pixels(
            means2d, conics, colors, opacities[None], width, height, tile_size, offsets, flatten_ids
        )
        assert image.shape == (1, height, width, 3)
    """
    lists = TileLists.check(image_width, image_height, tile_size, isect_offsets, flatten_ids, masks)
    packed, absgrad = check_bool("packed", packed), check_bool("absgrad", absgrad)
    leading = lists.check_means(means2d, packed=packed)
    check_tensor("conics", conics, [*leading, 3], "[..., N, 3] as means2d")
    backgrounds = lists.check_rows(leading, colors, opacities, backgrounds)
    check_devices(dict(means2d=means2d, conics=conics))
    dtype = compute_dtype(means2d, conics, colors, opacities, backgrounds)
    rays = None if subpixel_offset is None else lists.positions(subpixel_offset, dtype)
    footprint = "ellipse" if rays is None else "shifted"
    settings = lists.settings(check_numerics(numerics), backend, absgrad=absgrad, footprint=footprint)
    centers = converted_from(means2d.to(dtype), means2d)
    return lists.composite(centers, conics.to(dtype).reshape(-1, 3), colors, opacities, backgrounds, settings, rays)


@eager
@with_plain_tensors
def rasterize_to_pixels_2dgs(
    means2d: Tensor,
    ray_transforms: Tensor,
    colors: Tensor,
    opacities: Tensor,
    normals: Tensor,
    densify: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    packed: bool = False,
    absgrad: bool = False,
    distloss: bool = False,
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, ...]:
    """Composites projected 2D Gaussians (Huang et al., arXiv 2403.17888). Same as gsplat 1.5.3, for any number of
    channels.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed: the centers of the bounding boxes. The low-pass filter is
            centered there.
        ray_transforms: [..., N, 3, 3], or [nnz, 3, 3], from :func:`fully_fused_projection_2dgs`. Gaussians whose
            transform is not finite, or has a last entry of zero, are not rendered.
        colors: [..., N, D], or [nnz, D]. Distortion and median use the last channel: append depths.
        opacities: [..., N] after sigmoid, or [nnz].
        normals: [..., N, 3], or [nnz, 3].
        densify: Zeros [..., N, 2], or [nnz, 2]. Receives the gradient with respect to the projected centers, in pixels,
            for densification. The values are not read.
        image_width, image_height, tile_size: As in :func:`rasterize_to_pixels`.
        isect_offsets, flatten_ids, backgrounds, masks, packed: As in :func:`rasterize_to_pixels`.
        absgrad: Whether the backward pass sets ``means2d.absgrad``, the sum over pixels of absolute gradients, where
            the low-pass filter applies. Requires at most 12 channels.
        distloss: Must be True or False. Distortion is always rendered, as in gsplat.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., H, W, D]; ``render_alphas`` [..., H, W, 1]; ``render_normals`` [..., H, W, 3], sums
        weighted like colors, without a background; ``render_distort`` [..., H, W, 1], the sum of w_i w_j abs(z_i - z_j)
        over all i and j, for ascending z; ``render_median`` [..., H, W, 1], z of the last Gaussian in front of which
        the transmittance exceeds 1/2, or 0. Differentiable with respect to means2d, ray_transforms, colors, opacities,
        normals and backgrounds; the median with respect to colors only.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: The tile size is not implemented, or ``absgrad`` has more than 12 channels.

    Example::

        import torch
        from tsplat import fully_fused_projection_2dgs, isect_offset_encode, isect_tiles, rasterize_to_pixels_2dgs

        n, width, height = 100, 80, 48
        means = torch.randn(n, 3) + torch.tensor([0, 0, 5.0])
        camera = torch.eye(4)[None], torch.tensor([[[100.0, 0, 40], [0, 100, 24], [0, 0, 1]]])
        radii, means2d, depths, transforms, normals = fully_fused_projection_2dgs(
            means, torch.randn(n, 4), torch.full((n, 3), 0.1), *camera, width, height
        )
        _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, 16, 5, 3)
        colors = torch.cat([torch.rand(1, n, 3), depths[..., None]], -1)
        images = rasterize_to_pixels_2dgs(
            means2d, transforms, colors, torch.full((1, n), 0.8), normals, torch.zeros_like(means2d), width, height, 16,
            isect_offset_encode(isect_ids, 1, 5, 3), flatten_ids,
        )
        assert [image.shape[-1] for image in images] == [4, 1, 3, 1, 1]
    """
    lists = TileLists.check(image_width, image_height, tile_size, isect_offsets, flatten_ids, masks)
    packed, absgrad = check_bool("packed", packed), check_bool("absgrad", absgrad)
    check_bool("distloss", distloss)
    leading = lists.check_means(means2d, packed=packed)
    check_tensor("ray_transforms", ray_transforms, [*leading, 3, 3], "[..., N, 3, 3] as means2d")
    check_tensor("normals", normals, [*leading, 3], "[..., N, 3] as means2d")
    check_tensor("densify", densify, [*leading, 2], "[..., N, 2] as means2d")
    backgrounds = lists.check_rows(leading, colors, opacities, backgrounds)
    dtype = compute_dtype(means2d, ray_transforms, colors, opacities, normals, backgrounds)
    n_colors = colors.shape[-1]
    given = dict(
        means2d=means2d.to(dtype), ray_transforms=ray_transforms, colors=colors, opacities=opacities, normals=normals,
        densify=densify, backgrounds=backgrounds,
    )  # fmt: skip
    arranged = lists.arrange(given, n_colors + 5)
    transforms = with_screen_gradient(ray_transforms.to(dtype).reshape(-1, 9), densify.to(dtype).reshape(-1, 2))
    preset = check_numerics(numerics)
    settings = lists.settings(preset, backend, absgrad=absgrad, footprint="surfel", outputs=OF_SURFELS)
    features = torch.cat([normals.to(dtype), colors.to(dtype)], -1).reshape(-1, n_colors + 3)
    centers = converted_from(means2d.to(dtype), means2d)
    flat = Splats(centers, transforms, opacities.to(dtype).reshape(-1), features[:, :-1], features[:, -1])
    backgrounds = None if backgrounds is None else backgrounds.to(dtype).reshape(-1, n_colors)
    maps = composite_surfels(flat, backgrounds, *arranged, settings)
    names = ("colors", "alphas", "normals", "distortions", "medians")
    return tuple(maps[name].reshape(*lists.size, maps[name].shape[-1]).contiguous() for name in names)


@eager
@with_plain_tensors
def rasterize_to_pixels_eval3d(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    colors: Tensor,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor | None,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    camera_model: CameraModel = "pinhole",
    ut_params: UnscentedTransformParameters | None = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL,
    viewmats_rs: Tensor | None = None,
    *,
    external_distortion_coeffs: object | None = None,
    rays: Tensor | None = None,
    use_hit_distance: bool = False,
    return_normals: bool = False,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, ...]:
    """Composites 3D Gaussians along the rays of pixels (3DGUT, arXiv 2412.12507, section 4.3). Same as gsplat 1.5.3.

    Args:
        means, quats, scales, viewmats, Ks: As in :func:`tsplat.rasterization`.
        colors: [..., C, N, D].
        opacities: [..., C, N] after sigmoid.
        image_width, image_height, tile_size: As in :func:`rasterize_to_pixels`.
        isect_offsets, flatten_ids, backgrounds, masks: As in :func:`rasterize_to_pixels`, for rows [..., C, N].
        camera_model, radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs, external_distortion_coeffs,
        rolling_shutter, viewmats_rs, rays, backend, numerics: As in :func:`tsplat.rasterization`.
        ut_params: Checked, but without effect, as in gsplat: rays do not depend on the projection of the Gaussians.
        use_hit_distance: Whether the last channel is the distance along the ray, as with ``render_mode="d"`` of
            :func:`tsplat.rasterization`. It replaces the last color, which is not read.
        return_normals: Whether to render normals, as in :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., C, H, W, D] and ``render_alphas`` [..., C, H, W, 1]; with ``return_normals`` also the
        normals [..., C, H, W, 3]. Differentiable with respect to means, quats, scales, colors, opacities, backgrounds,
        rays, viewmats, viewmats_rs, radial_coeffs, tangential_coeffs and thin_prism_coeffs.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options do not fit each other.

    Example::

        import torch
        from tsplat import isect_offset_encode, isect_tiles, rasterize_to_pixels_eval3d
        from tsplat import fully_fused_projection_with_ut

        n, width, height = 100, 80, 48
        means = torch.randn(n, 3) + torch.tensor([0, 0, 5.0])
        quats, scales = torch.randn(n, 4), torch.full((n, 3), 0.1)
        camera = torch.eye(4)[None], torch.tensor([[[100.0, 0, 40], [0, 100, 24], [0, 0, 1]]])
        radii, means2d, depths, _, _ = fully_fused_projection_with_ut(
            means, quats, scales, None, *camera, width, height
        )
        _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, 16, 5, 3)
        image, alpha = rasterize_to_pixels_eval3d(
            means, quats, scales, torch.rand(1, n, 3), torch.full((1, n), 0.8), *camera, width, height, 16,
            isect_offset_encode(isect_ids, 1, 5, 3), flatten_ids,
        )
        assert image.shape == (1, height, width, 3)
    """
    return ray_inputs(locals()).images()


class RayInputs(NamedTuple):
    """The checked arguments of :func:`rasterize_to_pixels_eval3d`, in the form that compositing takes.

    Attributes:
        lists: The tile lists that were passed.
        splats: One row for each image and Gaussian.
        backgrounds: Backgrounds of the channels other than distances, [I, D], or None.
        behind: Distances of the background, [I, 1, 1, 1], or None.
        arranged: Masks, the number of images, and intersections.
        settings: Settings of compositing.
        rays: Rays of all pixels.
    """

    lists: TileLists
    splats: Splats
    backgrounds: Tensor | None
    behind: Tensor | None
    arranged: tuple[Tensor | None, int, list[Intersections]]
    settings: CompositingSettings
    rays: Rays

    def images(self) -> tuple[Tensor, ...]:
        """Composites; returns what :func:`rasterize_to_pixels_eval3d` returns."""
        maps = composite(self.splats, self.backgrounds, *self.arranged, self.settings, self.rays)
        images, alphas, size = maps["colors"], maps["alphas"], self.lists.size
        if self.behind is not None:
            images = torch.cat([images[..., :-1], images[..., -1:] + (1 - alphas) * self.behind], -1)
        rendered = (images.reshape(*size, -1), alphas.view(*size, 1))
        return (*rendered, maps["normals"].reshape(*size, 3)) if self.settings.normals else rendered


def ray_inputs(
    arguments: dict[str, Any], rays_of: Callable[[Cameras, CameraSettings, bool], Rays] | None = None
) -> RayInputs:
    """Checks the arguments of :func:`rasterize_to_pixels_eval3d`, passed by name.

    If ``arguments["rays"]`` is None, ``rays_of`` computes the rays of the pixels. It takes cameras [B, C], their
    settings, and whether to normalize directions in the world frame. None for :func:`camera_rays`.
    """
    means, quats, scales, colors, opacities, viewmats, Ks, isect_offsets, backgrounds, rays = (
        arguments[name]
        for name in (
            "means", "quats", "scales", "colors", "opacities", "viewmats", "Ks", "isect_offsets", "backgrounds", "rays",
        )
    )  # fmt: skip
    names = ("image_width", "image_height", "tile_size", "isect_offsets", "flatten_ids", "masks")
    lists = TileLists.check(*(arguments[name] for name in names))
    camera_model = arguments["camera_model"]
    check_camera_model(camera_model, with_ut=True)
    Ks = given_intrinsics(Ks, camera_model, viewmats, (lists.width, lists.height))
    readout = enum_name(arguments["rolling_shutter"])
    check_rolling_shutter(readout)
    preset = check_numerics(arguments["numerics"])
    camera = CameraSettings(lists.width, lists.height, camera_model, readout=readout)
    batch, n_gaussians, n_cameras = check_scene(means, quats, scales, None, (6,), None, Cameras(viewmats, Ks))
    if lists.images != (*batch, n_cameras):
        raise ShapeError(
            f"isect_offsets: expected the leading dimensions {[*batch, n_cameras]} of viewmats, found "
            f"{list(isect_offsets.shape)}"
        )
    lens = LensArguments(*(arguments[name] for name in LensArguments._fields))
    unscented = check_unscented(True, arguments["ut_params"], preset)
    projection = ProjectionSettings(camera, unscented=unscented, numerics=preset)
    cameras = add_lens(Cameras(viewmats, Ks), lens, projection, batch, n_cameras)
    if rays is not None:
        rays = check_rays(rays, (*lists.size, 6))
    rows = torch.Size((*lists.images, n_gaussians))
    backgrounds = lists.check_rows(rows, colors, opacities, backgrounds)
    dtype = compute_dtype(means, quats, scales, colors, opacities, backgrounds, *cameras, rays)
    shapes = torch.cat([t.to(dtype) for t in (means, quats, scales)], -1)
    hits, normals = (check_bool(name, arguments[name]) for name in ("use_hit_distance", "return_normals"))
    outputs = (*((RAY_NORMALS,) if normals else ()), *((HITS,) if hits else ()))
    settings = lists.settings(
        preset, arguments["backend"], camera=camera, footprint=ray_footprint(camera_model, preset), outputs=outputs
    )
    if rays is None:
        flat = flatten_batches(cameras, len(batch), dtype)
        world_rays = camera_rays(flat, camera, unit=hits) if rays_of is None else rays_of(flat, camera, hits)
    else:
        world_rays = given_rays(flatten_batch(rays, len(batch), dtype).flatten(0, 1))
    features = colors.to(dtype)
    if normals:
        axes = third_axes(quats.to(dtype))[..., None, :, :]
        features = torch.cat([axes.expand(*rows, 3), features], -1)
    features, depths = features.reshape(-1, features.shape[-1]), None
    if hits:
        features, depths = features[:, :-1], features[:, -1]
    splats = Splats(
        shapes.new_zeros(features.shape[0], 2),
        shapes[..., None, :, :].expand(*rows, 10).reshape(-1, 10),
        opacities.to(dtype).reshape(-1),
        features if features.shape[-1] else None,
        depths,
    )
    given = {"means2d": splats.means2d, "colors": colors, "opacities": opacities, "backgrounds": backgrounds}
    arranged = lists.arrange(given, splats.n_features)
    behind = None
    if backgrounds is not None:
        backgrounds = backgrounds.to(dtype).reshape(-1, colors.shape[-1])
        if hits:
            backgrounds, behind = backgrounds[:, :-1], backgrounds[:, None, None, -1:]
    return RayInputs(lists, splats, backgrounds, behind, arranged, settings, world_rays)
