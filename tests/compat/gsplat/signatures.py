"""Names of gsplat with their signatures, without annotations. Enumerations and types have their values instead."""

import enum
import functools
import importlib
import inspect
import typing

SIGNATURES = {
    "PngCompression": "(use_sort=True, verbose=True)",
    "DefaultStrategy": (
        "(prune_opa=0.005, grow_grad2d=0.0002, grow_scale3d=0.01, grow_scale2d=0.05, prune_scale3d=0.1, "
        "prune_scale2d=0.15, refine_scale2d_stop_iter=0, refine_start_iter=500, refine_stop_iter=15000, "
        "reset_every=3000, refine_every=100, pause_refine_after_reset=0, absgrad=False, revised_opacity=False, "
        "verbose=False, key_for_gradient='means2d')"
    ),
    "MCMCStrategy": (
        "(cap_max=1000000, noise_lr=500000.0, refine_start_iter=500, refine_stop_iter=25000, refine_every=100, "
        "min_opacity=0.005, verbose=False)"
    ),
    "Strategy": "()",
    "rasterization": (
        "(means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane=0.01, "
        "far_plane=10000000000.0, radius_clip=0.0, eps2d=0.3, sh_degree=None, packed=True, tile_size=16, "
        "backgrounds=None, render_mode='RGB', sparse_grad=False, absgrad=False, rasterize_mode='classic', "
        "channel_chunk=32, distributed=False, camera_model='pinhole', segmented=False, covars=None, "
        "with_ut=False, with_eval3d=False, radial_coeffs=None, tangential_coeffs=None, thin_prism_coeffs=None, "
        "ftheta_coeffs=None, rolling_shutter=<RollingShutterType.GLOBAL: 4>, viewmats_rs=None)"
    ),
    "rasterization_2dgs": (
        "(means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane=0.01, "
        "far_plane=10000000000.0, radius_clip=0.0, eps2d=0.3, sh_degree=None, packed=False, tile_size=16, "
        "backgrounds=None, render_mode='RGB', sparse_grad=False, absgrad=False, distloss=False, "
        "depth_mode='expected')"
    ),
    "rasterization_inria_wrapper": (
        "(means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane=0.01, far_plane=100.0,"
        " eps2d=0.3, sh_degree=None, backgrounds=None, **kwargs)"
    ),
    "spherical_harmonics": "(degrees_to_use, dirs, coeffs, masks=None)",
    "isect_offset_encode": "(isect_ids, n_images, tile_width, tile_height)",
    "isect_tiles": (
        "(means2d, radii, depths, tile_size, tile_width, tile_height, sort=True, segmented=False, packed=False, "
        "n_images=None, image_ids=None, gaussian_ids=None)"
    ),
    "proj": "(means, covars, Ks, width, height, camera_model='pinhole')",
    "fully_fused_projection": (
        "(means, covars, quats, scales, viewmats, Ks, width, height, eps2d=0.3, near_plane=0.01, "
        "far_plane=10000000000.0, radius_clip=0.0, packed=False, sparse_grad=False, calc_compensations=False, "
        "camera_model='pinhole', opacities=None)"
    ),
    "quat_scale_to_covar_preci": "(quats, scales, compute_covar=True, compute_preci=True, triu=False)",
    "rasterize_to_pixels": (
        "(means2d, conics, colors, opacities, image_width, image_height, tile_size, isect_offsets, flatten_ids, "
        "backgrounds=None, masks=None, packed=False, absgrad=False)"
    ),
    "world_to_cam": "(means, covars, viewmats)",
    "accumulate": (
        "(means2d, conics, opacities, colors, gaussian_ids, pixel_ids, image_ids, image_width, image_height)"
    ),
    "rasterize_to_indices_in_range": (
        "(range_start, range_end, transmittances, means2d, conics, opacities, image_width, image_height, "
        "tile_size, isect_offsets, flatten_ids)"
    ),
    "fully_fused_projection_2dgs": (
        "(means, quats, scales, viewmats, Ks, width, height, eps2d=0.3, near_plane=0.01, far_plane=10000000000.0,"
        " radius_clip=0.0, packed=False, sparse_grad=False)"
    ),
    "rasterize_to_pixels_2dgs": (
        "(means2d, ray_transforms, colors, opacities, normals, densify, image_width, image_height, tile_size, "
        "isect_offsets, flatten_ids, backgrounds=None, masks=None, packed=False, absgrad=False, distloss=False)"
    ),
    "rasterize_to_indices_in_range_2dgs": (
        "(range_start, range_end, transmittances, means2d, ray_transforms, opacities, image_width, image_height, "
        "tile_size, isect_offsets, flatten_ids)"
    ),
    "accumulate_2dgs": (
        "(means2d, ray_transforms, opacities, colors, normals, gaussian_ids, pixel_ids, image_ids, image_width, "
        "image_height)"
    ),
    "rasterization_2dgs_inria_wrapper": (
        "(means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane=0.01, far_plane=100.0,"
        " eps2d=0.3, sh_degree=None, backgrounds=None, depth_ratio=0, **kwargs)"
    ),
    "RollingShutterType": (
        "ROLLING_TOP_TO_BOTTOM=0, ROLLING_LEFT_TO_RIGHT=1, ROLLING_BOTTOM_TO_TOP=2, ROLLING_RIGHT_TO_LEFT=3, GLOBAL=4"
    ),
    "fully_fused_projection_with_ut": (
        "(means, quats, scales, opacities, viewmats, Ks, width, height, eps2d=0.3, near_plane=0.01, "
        "far_plane=10000000000.0, radius_clip=0.0, calc_compensations=False, camera_model='pinhole', "
        "ut_params=UnscentedTransformParameters(alpha=0.1, beta=2.0, kappa=0.0, in_image_margin_factor=0.1, "
        "require_all_sigma_points_valid=True), radial_coeffs=None, tangential_coeffs=None, "
        "thin_prism_coeffs=None, ftheta_coeffs=None, rolling_shutter=<RollingShutterType.GLOBAL: 4>, "
        "viewmats_rs=None)"
    ),
    "rasterize_to_pixels_eval3d": (
        "(means, quats, scales, colors, opacities, viewmats, Ks, image_width, image_height, tile_size, "
        "isect_offsets, flatten_ids, backgrounds=None, masks=None, camera_model='pinhole', "
        "ut_params=UnscentedTransformParameters(alpha=0.1, beta=2.0, kappa=0.0, in_image_margin_factor=0.1, "
        "require_all_sigma_points_valid=True), radial_coeffs=None, tangential_coeffs=None, "
        "thin_prism_coeffs=None, ftheta_coeffs=None, rolling_shutter=<RollingShutterType.GLOBAL: 4>, "
        "viewmats_rs=None)"
    ),
    "export_splats": "(means, scales, quats, opacities, sh0, shN, format='ply', save_to=None)",
    "__version__": "1.5.3",
    "SelectiveAdam": "(params, eps, betas)",
    "cuda._wrapper.UnscentedTransformParameters": (
        "(alpha=0.1, beta=2.0, kappa=0.0, in_image_margin_factor=0.1, require_all_sigma_points_valid=True)"
    ),
    "cuda._wrapper.FThetaPolynomialType": "PIXELDIST_TO_ANGLE=0, ANGLE_TO_PIXELDIST=1",
    "cuda._wrapper.FThetaCameraDistortionParameters": (
        "(reference_poly, pixeldist_to_angle_poly, angle_to_pixeldist_poly, max_angle, linear_cde)"
    ),
    "cuda._wrapper.adam": "(param, param_grad, exp_avg, exp_avg_sq, valid, lr, b1, b2, eps)",
    "cuda._wrapper.persp_proj": "(means, covars, Ks, width, height)",
    "cuda._torch_impl._quat_to_rotmat": "(quats)",
    "cuda._torch_impl._quat_scale_to_matrix": "(quats, scales)",
    "cuda._torch_impl._quat_scale_to_covar_preci": (
        "(quats, scales, compute_covar=True, compute_preci=True, triu=False)"
    ),
    "cuda._torch_impl._persp_proj": "(means, covars, Ks, width, height)",
    "cuda._torch_impl._fisheye_proj": "(means, covars, Ks, width, height)",
    "cuda._torch_impl._ortho_proj": "(means, covars, Ks, width, height)",
    "cuda._torch_impl._world_to_cam": "(means, covars, viewmats)",
    "cuda._torch_impl._fully_fused_projection": (
        "(means, covars, viewmats, Ks, width, height, eps2d=0.3, near_plane=0.01, far_plane=10000000000.0, "
        "calc_compensations=False, camera_model='pinhole')"
    ),
    "cuda._torch_impl._isect_tiles": "(means2d, radii, depths, tile_size, tile_width, tile_height, sort=True)",
    "cuda._torch_impl._isect_offset_encode": "(isect_ids, I, tile_width, tile_height)",
    "cuda._torch_impl._rasterize_to_pixels": (
        "(means2d, conics, colors, opacities, image_width, image_height, tile_size, isect_offsets, flatten_ids, "
        "backgrounds=None, batch_per_iter=100)"
    ),
    "cuda._torch_impl._eval_sh_bases_fast": "(basis_dim, dirs)",
    "cuda._torch_impl._spherical_harmonics": "(degrees_to_use, dirs, coeffs)",
    "cuda._torch_impl_2dgs._fully_fused_projection_2dgs": (
        "(means, quats, scales, viewmats, Ks, width, height, near_plane=0.01, far_plane=10000000000.0, eps=0)"
    ),
    "distributed.cli": "(fn, args, verbose=False)",
    "utils.save_ply": "(splats, dir, colors=None)",
    "utils.normalized_quat_to_rotmat": "(quat)",
    "utils.log_transform": "(x)",
    "utils.inverse_log_transform": "(y)",
    "utils.depth_to_points": "(depths, camtoworlds, Ks, z_depth=True)",
    "utils.depth_to_normal": "(depths, camtoworlds, Ks, z_depth=True)",
    "utils.get_projection_matrix": "(znear, zfar, fovX, fovY, device='cuda')",
    "PngCompression.compress": "(self, compress_dir, splats)",
    "PngCompression.decompress": "(self, compress_dir)",
    "compression.sort.sort_splats": "(splats, verbose=True)",
    "relocation.compute_relocation": "(opacities, scales, ratios, binoms)",
    "strategy.ops._multinomial_sample": "(weights, n, replacement=True)",
    "strategy.ops._update_param_with_optimizer": "(param_fn, optimizer_fn, params, optimizers, names=None)",
    "strategy.ops.duplicate": "(params, optimizers, state, mask)",
    "strategy.ops.split": "(params, optimizers, state, mask, revised_opacity=False)",
    "strategy.ops.remove": "(params, optimizers, state, mask)",
    "strategy.ops.reset_opa": "(params, optimizers, state, value)",
    "strategy.ops.relocate": "(params, optimizers, state, mask, binoms, min_opacity=0.005)",
    "strategy.ops.sample_add": "(params, optimizers, state, n, binoms, min_opacity=0.005)",
    "strategy.ops.inject_noise_to_position": "(params, optimizers, state, scaler)",
    "strategy.ops.normalized_quat_to_rotmat": "(quat)",
    "DefaultStrategy.initialize_state": "(self, scene_scale=1.0)",
    "DefaultStrategy.check_sanity": "(self, params, optimizers)",
    "DefaultStrategy.step_pre_backward": "(self, params, optimizers, state, step, info)",
    "DefaultStrategy.step_post_backward": "(self, params, optimizers, state, step, info, packed=False)",
    "MCMCStrategy.step_post_backward": "(self, params, optimizers, state, step, info, lr)",
    "MCMCStrategy.initialize_state": "(self)",
    "SelectiveAdam.step": "(self, visibility)",
    "Strategy.check_sanity": "(self, params, optimizers)",
}


_SPLATS = "means2d, conics, opacities"
_LAYOUT = "active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map"
_SIZES = "image_width, image_height, tile_size"
_GRID = f"{_SIZES}, tile_width, tile_height"

SIGNATURES_1_6 = {
    "CameraModel": "typing.Literal['pinhole', 'ortho', 'fisheye', 'ftheta', 'lidar']",
    "ExternalDistortionModelMeta": "typing.Literal['bivariate-windshield']",
    "ExternalDistortionModelParameters": "()",
    "FusedGaussianLosses": "(z_scale_threshold=0.0)",
    "LidarTiling": (
        "(n_bins_azimuth, n_bins_elevation, cdf_elevation, cdf_dense_ray_mask, tiles_pack_info, tiles_to_elements_map)"
    ),
    "RasterizeMode": "typing.Literal['classic', 'antialiased']",
    "RenderMode": "typing.Literal['RGB', 'd', 'Ed', 'D', 'ED', 'RGB-d', 'RGB-Ed', 'RGB+D', 'RGB+ED']",
    "RendererConfig": "()",
    "RendererConfig_MixedBatch": "()",
    "RendererConfig_ParallelBatch": "()",
    "RowOffsetStructuredSpinningLidarModelParameters": (
        "(row_elevations_rad, column_azimuths_rad, row_azimuth_offsets_rad, spinning_frequency_hz, spinning_direction, "
        "fov_eps_factor=4)"
    ),
    "RowOffsetStructuredSpinningLidarModelParametersExt": "(params, angles_to_columns_map, tiling)",
    "SpinningDirection": "CLOCKWISE=0, COUNTER_CLOCKWISE=1",
    "build_sparse_tile_layout": "(pixels, image_ids, n_images, tile_size, tile_width, tile_height)",
    "color_correct_affine": "(img, ref)",
    "color_correct_quadratic": "(img, ref, num_iters=5, eps=0.00196078431372549)",
    "compute_lidar_angles_to_columns_map": "(lidar, resolution_factor=4, dtype=torch.int32)",
    "compute_lidar_tiling": (
        "(lidar_params, n_bins_elevation=16, max_pts_per_tile=256, resolution_elevation=1600, "
        "densification_factor_azimuth=8)"
    ),
    "gaussian_density_reg": "(densities, visibility=None)",
    "gaussian_scale_reg": "(scales, visibility=None)",
    "gaussian_z_scale_reg": "(z_scales, threshold)",
    "has_2dgs": "()",
    "has_3dgs": "()",
    "has_3dgut": "()",
    "has_adam": "()",
    "has_camera_wrappers": "()",
    "has_losses": "()",
    "has_reloc": "()",
    "isect_tiles_lidar": (
        "(lidar, means2d, radii, depths, sort=True, segmented=False, packed=False, n_images=None, image_ids=None, "
        "gaussian_ids=None)"
    ),
    "isect_tiles_sparse": (
        "(means2d, radii, depths, tile_mask, active_tiles, n_images, tile_size, tile_width, tile_height, "
        "image_ids=None)"
    ),
    "out_of_bound_loss": "(positions, cuboid_dims)",
    "rasterize_contributing_gaussian_ids": (
        f"({_SPLATS}, tile_offsets, flatten_ids, {_SIZES}, num_contributing_gaussians)"
    ),
    "rasterize_contributing_gaussian_ids_sparse": f"({_SPLATS}, {_LAYOUT}, num_contributing_gaussians, {_GRID})",
    "rasterize_num_contributing_gaussians": f"({_SPLATS}, tile_offsets, flatten_ids, {_SIZES})",
    "rasterize_num_contributing_gaussians_sparse": f"({_SPLATS}, {_LAYOUT}, {_GRID})",
    "rasterize_to_pixels_sparse": (
        f"(means2d, conics, colors, opacities, image_ids, {_LAYOUT}, {_GRID}, backgrounds=None, masks=None, "
        "packed=False, absgrad=False)"
    ),
    "rasterize_top_contributing_gaussian_ids": f"({_SPLATS}, tile_offsets, flatten_ids, {_SIZES}, num_depth_samples)",
    "rasterize_top_contributing_gaussian_ids_sparse": f"({_SPLATS}, {_LAYOUT}, {_GRID}, num_depth_samples)",
    "spherical_harmonics_l0": "(sh0)",
    "spherical_harmonics_l1_plus": (
        "(degrees_to_use, means, viewmats, shN, masks=None, batch_ids=None, camera_ids=None, gaussian_ids=None, "
        "viewmats_rs=None)"
    ),
}
"""The names of ``gsplat.__all__`` of gsplat 1.6 (August 2026, unreleased) that gsplat 1.5.3 does not have."""


def find(package, path):
    """The object of a dotted path, the first parts of which may be modules of the package."""
    parts = path.split(".")
    module = importlib.import_module(package)
    while len(parts) > 1 and parts[0].islower():
        module = importlib.import_module(f"{module.__name__}.{parts.pop(0)}")
    return functools.reduce(getattr, parts, module)


def parameters(function):
    """The parameters of a function or class as text, without annotations."""
    found = inspect.signature(function).parameters.values()
    return [str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in found]


def describe(value):
    """What `SIGNATURES` says of a string, a type of literals, an enumeration, a function or a class."""
    if isinstance(value, str):
        return value
    if typing.get_origin(value) is typing.Literal:
        return str(value)
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return ", ".join(f"{member.name}={member.value}" for member in value)
    return f"({', '.join(parameters(value))})"
