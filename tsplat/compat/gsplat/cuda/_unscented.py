"""Functions of the unscented transform, with the default parameters of gsplat."""

from torch import Tensor

from .... import RollingShutterType, config
from .... import fully_fused_projection_with_ut as project
from .... import rasterize_to_pixels_eval3d as rasterize
from ._distortion import UnscentedTransformParameters

DEFAULTS = UnscentedTransformParameters()


def fully_fused_projection_with_ut(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor | None, viewmats: Tensor, Ks: Tensor,
    width: int, height: int, eps2d: float = 0.3,
    near_plane: float = 0.01, far_plane: float = 1e10, radius_clip: float = 0.0, calc_compensations: bool = False,
    camera_model: config.CameraModel = "pinhole", ut_params: config.UnscentedTransformParameters | None = DEFAULTS,
    radial_coeffs: Tensor | None = None, tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None, ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL, viewmats_rs: Tensor | None = None,
    *,
    global_z_order: bool = True, external_distortion_coeffs: object | None = None,
    backend: config.Backend = "auto", numerics: config.NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Projects 3D Gaussians to the image plane by the unscented transform, with gsplat's default of `ut_params`.

    Args:
        ut_params: By default, Gaussians with an invalid sigma point are culled, whatever `numerics`.
        means to viewmats_rs, and the others: As for :func:`tsplat.fully_fused_projection_with_ut`.

    Returns:
        ``(radii, means2d, depths, conics, compensations)`` of shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3], and [..., C, N] or None, differentiable as there. Culled Gaussians are zero.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options do not fit each other.
    """
    return project(
        means, quats, scales, opacities, viewmats, Ks, width, height, eps2d, near_plane, far_plane, radius_clip,
        calc_compensations, camera_model, ut_params, radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs,
        rolling_shutter, viewmats_rs, global_z_order=global_z_order,
        external_distortion_coeffs=external_distortion_coeffs, backend=backend, numerics=numerics,
    )  # fmt: skip


def rasterize_to_pixels_eval3d(
    means: Tensor, quats: Tensor, scales: Tensor, colors: Tensor, opacities: Tensor, viewmats: Tensor, Ks: Tensor,
    image_width: int, image_height: int, tile_size: int, isect_offsets: Tensor, flatten_ids: Tensor,
    backgrounds: Tensor | None = None, masks: Tensor | None = None,
    camera_model: config.CameraModel = "pinhole", ut_params: config.UnscentedTransformParameters | None = DEFAULTS,
    radial_coeffs: Tensor | None = None, tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None, ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL, viewmats_rs: Tensor | None = None,
    *,
    external_distortion_coeffs: object | None = None, rays: Tensor | None = None,
    use_hit_distance: bool = False, return_normals: bool = False,
    backend: config.Backend = "auto", numerics: config.NumericsName = "gsplat-1.5",
) -> tuple[Tensor, ...]:  # fmt: skip
    """Composites 3D Gaussians along the rays of pixels, with gsplat's default of `ut_params`, which have no effect.

    Args:
        means to viewmats_rs, and the others: As for :func:`tsplat.rasterize_to_pixels_eval3d`.

    Returns:
        ``render_colors`` [..., C, H, W, D] and ``render_alphas`` [..., C, H, W, 1]; and with ``return_normals`` normals
        [..., C, H, W, 3]. Differentiable as there.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options do not fit each other.
    """
    return rasterize(
        means, quats, scales, colors, opacities, viewmats, Ks, image_width, image_height, tile_size, isect_offsets,
        flatten_ids, backgrounds, masks, camera_model, ut_params, radial_coeffs, tangential_coeffs, thin_prism_coeffs,
        ftheta_coeffs, rolling_shutter, viewmats_rs, external_distortion_coeffs=external_distortion_coeffs, rays=rays,
        use_hit_distance=use_hit_distance, return_normals=return_normals, backend=backend, numerics=numerics,
    )  # fmt: skip
