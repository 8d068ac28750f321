"""The unscented transform and evaluation in 3D, with the arguments of gsplat 1.6."""

from typing import Any

import torch
from torch import Tensor

from .... import RollingShutterType, config
from .... import fully_fused_projection_with_ut as project
from ....arguments import check_bool
from ....functional.compositing import RayInputs, ray_inputs
from ....runtime.compilation import eager, with_plain_tensors
from ....stages.options import check_renderer_config
from ...contributions import Contributions
from ._distortion import UnscentedTransformParameters
from ._range_images import ElementTiles, element_inputs, project_to_angles

DEFAULTS = UnscentedTransformParameters()


@eager
@with_plain_tensors
def fully_fused_projection_with_ut(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor | None, viewmats: Tensor, Ks: Tensor | None,
    width: int, height: int, eps2d: float = 0.3,
    near_plane: float = 0.01, far_plane: float = 1e10, radius_clip: float = 0.0, calc_compensations: bool = False,
    camera_model: config.CameraModel = "pinhole", ut_params: config.UnscentedTransformParameters | None = DEFAULTS,
    radial_coeffs: Tensor | None = None, tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None, ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL, viewmats_rs: Tensor | None = None,
    *,
    global_z_order: bool = True, lidar_coeffs: object | None = None, external_distortion_coeffs: object | None = None,
    backend: config.Backend = "auto", numerics: config.NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Projects 3D Gaussians to the image plane with the unscented transform.

    Args:
        means to viewmats_rs, and the others: As for :func:`tsplat.fully_fused_projection_with_ut`. lidar_coeffs: As in
        :func:`tsplat.rasterization`, for ``camera_model="lidar"``; ``viewmats`` then transform to the frame of the
        lidar. ``Ks``, ``width``, ``height``, ``global_z_order`` and the margin of ``ut_params`` are not read: Gaussians
        are sorted and culled by distance.

    Returns:
        ``(radii, means2d, depths, conics, compensations)`` with shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3], and [..., C, N] or None, differentiable as in that function. Culled Gaussians are zero. For
        lidars, means are azimuths, up to multiples of 360 degrees, and elevations, in 1,024 pixels per radian, and
        depths are distances.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options conflict.
    """
    if lidar_coeffs is not None or camera_model == "lidar":
        return project_to_angles(locals())
    return project(
        means, quats, scales, opacities, viewmats, Ks, width, height, eps2d, near_plane, far_plane, radius_clip,
        calc_compensations, camera_model, ut_params, radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs,
        rolling_shutter, viewmats_rs, global_z_order=global_z_order,
        external_distortion_coeffs=external_distortion_coeffs, backend=backend, numerics=numerics,
    )  # fmt: skip


@eager
@with_plain_tensors
def rasterize_to_pixels_eval3d(
    means: Tensor, quats: Tensor, scales: Tensor, colors: Tensor, opacities: Tensor, viewmats: Tensor,
    Ks: Tensor | None, image_width: int, image_height: int, tile_size: int, isect_offsets: Tensor, flatten_ids: Tensor,
    backgrounds: Tensor | None = None, masks: Tensor | None = None,
    camera_model: config.CameraModel = "pinhole", ut_params: config.UnscentedTransformParameters | None = DEFAULTS,
    radial_coeffs: Tensor | None = None, tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None, ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL, viewmats_rs: Tensor | None = None,
    *,
    lidar_coeffs: object | None = None, external_distortion_coeffs: object | None = None, rays: Tensor | None = None,
    use_hit_distance: bool = False, return_normals: bool = False, renderer_config: object | None = None,
    backend: config.Backend = "auto", numerics: config.NumericsName = "gsplat-1.5",
) -> tuple[Tensor, ...]:  # fmt: skip
    """Composites 3D Gaussians along the rays of pixels.

    Args:
        means to viewmats_rs, and the others: As for :func:`tsplat.rasterize_to_pixels_eval3d`.
        lidar_coeffs: As in :func:`tsplat.rasterization`, with a ``tiling``. ``isect_offsets``, ``flatten_ids`` and
            ``masks`` refer to its tiles, as :func:`isect_tiles_lidar` returns them. ``image_width`` and
            ``image_height`` are the numbers of columns and rows of the lidar; ``Ks`` are not read. The square of
            ``tile_size`` must be at least the number of elements of any tile.
        renderer_config: As in :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., C, H, W, D] and ``render_alphas`` [..., C, H, W, 1]; with ``return_normals`` also
        normals [..., C, H, W, 3]. Differentiable as in that function, and with respect to the angles of lidars.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options conflict.
        NotImplementedError: Another ``renderer_config``.
    """
    return _images(*_inputs(locals()))


@eager
@with_plain_tensors
def rasterize_to_pixels_eval3d_extra(
    means: Tensor, quats: Tensor, scales: Tensor, colors: Tensor, opacities: Tensor, viewmats: Tensor,
    Ks: Tensor | None, image_width: int, image_height: int, tile_size: int, isect_offsets: Tensor, flatten_ids: Tensor,
    backgrounds: Tensor | None = None, masks: Tensor | None = None,
    camera_model: config.CameraModel = "pinhole", ut_params: config.UnscentedTransformParameters | None = None,
    rays: Tensor | None = None,
    radial_coeffs: Tensor | None = None, tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None, ftheta_coeffs: object | None = None,
    lidar_coeffs: object | None = None, external_distortion_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL, viewmats_rs: Tensor | None = None,
    return_sample_counts: bool = False, use_hit_distance: bool = False, return_normals: bool = False,
    renderer_config: object | None = None, return_last_ids: bool = True, unsafe_masked_tile_outputs: bool = False,
    *, backend: config.Backend = "auto", numerics: config.NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Composites 3D Gaussians along the rays of pixels, and finds the Gaussians that contribute to each pixel.

    The order of arguments is that of gsplat 1.6; gsplat 1.5.3 has no such function. Last Gaussians and counts are
    computed in plain PyTorch, so a Gaussian whose alpha is about 1/255 may be counted but not composited.

    Args:
        means to numerics: As for :func:`rasterize_to_pixels_eval3d`. return_sample_counts: Whether to count the
        Gaussians that contribute to each pixel. return_last_ids: Whether to find the last contributing Gaussian of each
        pixel. unsafe_masked_tile_outputs: Whether tiles that ``masks`` excludes may have undefined values. It has no
        effect: these tiles always show the background, without Gaussians and normals.

    Returns:
        ``render_colors`` [..., C, H, W, D]; ``render_alphas`` [..., C, H, W, 1]; last Gaussians as indices into
        ``flatten_ids``, -1 if there are none, and counts, int32 [..., C, H, W] each; and normals [..., C, H, W, 3]. The
        last three are None unless requested. Images are differentiable as in :func:`rasterize_to_pixels_eval3d`.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options conflict.
        NotImplementedError: Another ``renderer_config``.
    """
    arguments = locals()
    names = ("return_last_ids", "return_sample_counts", "unsafe_masked_tile_outputs")
    finds_last, counts, _ = (check_bool(name, arguments.pop(name)) for name in names)
    tiles, inputs = _inputs(arguments)
    render_colors, render_alphas, *normals = _images(tiles, inputs)
    last_ids = sample_counts = None
    if finds_last or counts:
        with torch.no_grad():
            contributions = Contributions.along_rays(inputs)
            last_ids = contributions.find_last() if finds_last else None
            sample_counts = contributions.count()[0] if counts else None
        if tiles is not None:
            last_ids, sample_counts = (
                None if image is None else tiles.range_image(image[..., None])[..., 0]
                for image in (last_ids, sample_counts)
            )
    return render_colors, render_alphas, last_ids, sample_counts, normals[0] if return_normals else None


def _inputs(arguments: dict[str, Any]) -> tuple[ElementTiles | None, RayInputs]:
    """Checks the arguments of :func:`rasterize_to_pixels_eval3d`, given by name.

    Returns the positions of a lidar's elements in the composited image, None for other cameras; and the inputs of
    compositing.
    """
    check_renderer_config(arguments["renderer_config"], with_eval3d=True)
    if arguments["lidar_coeffs"] is not None or arguments["camera_model"] == "lidar":
        return element_inputs(arguments)
    return None, ray_inputs(arguments)


def _images(tiles: ElementTiles | None, inputs: RayInputs) -> tuple[Tensor, ...]:
    """Composites the results of :func:`_inputs`."""
    images = inputs.images()
    return images if tiles is None else tuple(map(tiles.range_image, images))
