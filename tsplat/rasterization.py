"""``rasterization()`` and ``rasterization_2dgs()``, and ``render()``, the pipeline of stages that both call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .config import (
    Backend,
    CameraModel,
    Capacity,
    DepthMode,
    NumericsName,
    RasterizeMode,
    RenderMode,
    RollingShutterType,
    UnscentedTransformParameters,
    Validate,
)
from .data import Splats
from .passes import replayed
from .precision import in_full_precision
from .runtime.compilation import eager, in_graphs
from .stages.call import Call, check_call
from .stages.eval3d import unit_rays
from .stages.exchange import exchange, gather_cameras
from .stages.graph_results import GRAPH_RESULTS
from .stages.intersection import intersect
from .stages.meta import Rendering, describe_reference, describe_render, rows_of_meta
from .stages.overflow_checks import check_capacity
from .stages.primitives import composite_maps, prepare_rows
from .stages.projection import project
from .stages.shading import shade
from .stages.surfels import arrange_images

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["rasterization", "rasterization_2dgs"]


def render(call: Call) -> Rendering:
    """Renders a checked call: runs the stages in order."""
    options, settings = call.options, call.settings
    # Inputs: the Gaussians and the cameras of all ranks, converted to the compute dtype, with invalid ones marked.
    gaussians = call.gaussians()
    cameras = gather_cameras(call.ranks, call.local_cameras(), call.means.device)
    gaussians, cameras, centers = call.prepare_inputs(gaussians, cameras)
    # Project: one row per Gaussian and camera, or per visible one; usually with their colors from spherical harmonics.
    projected, colors = project(gaussians, cameras, settings.projection, call.batch, call.fused_harmonics(centers))
    if call.sparse_gradients is not None:
        call.sparse_gradients.set_visible(projected)
    # Shade: the features of each row, to be blended. `shaped` are the rows with the shapes that compositing evaluates.
    features = shade(call, gaussians.means, centers, projected, colors)
    shaped, features, extra = prepare_rows(call, gaussians, cameras, projected, features)
    # Exchange: receive the rows of this rank's cameras. A single rank keeps all rows.
    received, features = exchange(call.ranks, shaped, features, absgrad=options.absgrad)
    projected = rows_of_meta(call, projected)
    del shaped, colors  # what was sent is only needed for meta
    # Intersect: list the rows of each tile, front to back.
    splats = Splats.of(received, features, with_depths=options.renders_depth or options.surfels)
    on_tiles, periods = call.tile_inputs(received, cameras)
    budget = call.memory_budget(splats)
    intersections = intersect(
        on_tiles, call.grid, settings.intersection, budget, call.explain_memory, call.ranks, periods
    )
    # Composite: blend the features of these rows at each pixel.
    maps = composite_maps(call, splats, intersections, cameras)
    check_capacity(intersections.whole, options.capacity, call.grid, call.ranks)
    meta = describe_render(call, gaussians.valid, projected, received, intersections, maps, extra)
    return Rendering(maps, meta, cameras)


# A call runs in one of three ways, tried in this order: as an operator in a graph of torch.compile; as a replay of the
# passes of an earlier call with the same options, shapes and dtypes; by the body of the function.
@in_graphs(GRAPH_RESULTS)
@replayed
@in_full_precision
def rasterization(
    means: Tensor, quats: Tensor | None, scales: Tensor | None, opacities: Tensor, colors: Tensor | None,
    viewmats: Tensor, Ks: Tensor | None, width: int, height: int,
    near_plane: float = 0.01, far_plane: float = 1e10, radius_clip: float = 0.0, eps2d: float = 0.3,
    sh_degree: int | None = None, packed: bool = True, tile_size: int | None = 16,
    backgrounds: Tensor | None = None, render_mode: RenderMode = "RGB",
    sparse_grad: bool = False, absgrad: bool = False, rasterize_mode: RasterizeMode = "classic",
    channel_chunk: int = 32, distributed: bool = False, camera_model: CameraModel = "pinhole", segmented: bool = False,
    covars: Tensor | None = None, with_ut: bool = False, with_eval3d: bool = False,
    radial_coeffs: Tensor | None = None, tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None, ftheta_coeffs: object | None = None,
    rolling_shutter: RollingShutterType | str = RollingShutterType.GLOBAL, viewmats_rs: Tensor | None = None,
    *,
    backend: Backend = "auto", numerics: NumericsName = "gsplat-1.5", validate: Validate = "cull",
    memory_budget: int | None = None, capacity: Capacity = None, group: ProcessGroup | None = None,
    extra_signals: Tensor | None = None, extra_signals_sh_degree: int | None = None,
    ut_params: UnscentedTransformParameters | None = None, rays: Tensor | None = None,
    return_normals: bool = False, global_z_order: bool = True, lidar_coeffs: object | None = None,
    external_distortion_coeffs: object | None = None, renderer_config: object | None = None,
    shN: Tensor | None = None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:  # fmt: skip
    """Renders 3D Gaussians to images (Kerbl et al., "3D Gaussian Splatting", 2023). Drop-in for gsplat 1.5.3.

    Everything is computed and accumulated in fp32 (fp64 if any input is fp64), regardless of autocast. Gradients
    have the dtype of their input.

    Args:
        means: [..., N, 3] centers, world frame.
        quats: [..., N, 4] rotations wxyz, any norm above 1e-12.
        scales: [..., N, 3] standard deviations along the rotated axes, after exp.
        opacities: [..., N] after sigmoid, in [0, 1].
        colors: [..., N, D] or per camera [..., C, N, D], any D >= 1; with ``sh_degree``, spherical harmonics
            coefficients [..., N, K, D] or [..., C, N, K, D]. Half precision is read without a copy. May be None if
            only depth is rendered.
        shN: [..., N, K - 1, D] coefficients of degrees above 0, if ``colors`` holds the coefficients of degree 0 only,
            [..., N, 1, D]. Equivalent to passing ``torch.cat([colors, shN], -2)`` as ``colors``. With three channels,
            neither the coefficients nor their gradients are copied.
        extra_signals: [..., N, E] or [..., C, N, E], rendered like colors into ``meta["render_extra_signals"]``, and
            differentiable.
        extra_signals_sh_degree: Like ``sh_degree``, for extra signals [..., N, K, E] or [..., C, N, K, E]. The signal
            is spherical harmonics + 0.5, without a clamp.
        viewmats: [..., C, 4, 4] world to camera; cameras look along +z, x points right, y down (OpenCV).
        Ks: [..., C, 3, 3] intrinsics in pixels (see ``camera_model``); pixel centers are at +0.5. Not differentiable.
            May be None for equirectangular cameras, which then render full panoramas.
        width, height: Image size in pixels.
        near_plane, far_plane: Gaussians outside these camera-space depths z are culled. Pinhole cameras see nothing
            behind z = 0.
        radius_clip: Gaussians whose radii along both image axes are at most this many pixels are culled.
        eps2d: Added to the diagonal of the screen covariance, pixels^2.
        sh_degree: Highest degree of spherical harmonics to use, 0 to 4; None if ``colors`` are colors.
        packed: Whether ``meta`` holds packed tensors, with rows for visible Gaussians only. Does not change the image.
        tile_size: Side length of a tile in pixels: 4, 8 or 16. None chooses as gsplat 1.6 does: 8 with ``with_eval3d``
            if the image has fewer than 1,080 rows or columns, otherwise 16. Does not change the image, except with
            ``with_eval3d``.
        backgrounds: [..., C, D], or [..., C, D + E] with ``extra_signals``. A single image also accepts [D]. Depth
            always has background 0.
        render_mode: ``"RGB"`` for colors; ``"D"`` for accumulated depth, the sum of w z; ``"ED"`` for expected depth,
            accumulated depth divided by alpha; ``"RGB+D"`` or ``"RGB+ED"`` for colors with depth as the last channel.
            With ``with_eval3d`` also ``"d"``, ``"Ed"``, ``"RGB-d"`` and ``"RGB-Ed"``: depth is then the distance along
            the ray of the pixel to the maximum of each Gaussian.
        sparse_grad: Whether the gradients of means, quats, scales and covars are sparse COO tensors with a row for
            each visible Gaussian, in ascending order, as ``torch.optim.SparseAdam`` takes them. Requires ``packed`` and
            no batch dimensions. The other gradients are dense.
        absgrad: Whether the backward pass sets ``meta["means2d"].absgrad``, the sum over pixels of absolute gradients
            (AbsGS, arXiv 2404.10484), in pixel units. Has no effect with ``with_eval3d``, as ``means2d`` then has no
            gradient.
        rasterize_mode: ``"classic"``, or ``"antialiased"`` (Mip-Splatting, arXiv 2311.16493), which multiplies
            opacities by sqrt(det S / det(S + ``eps2d`` I)), with S the screen covariance.
        channel_chunk: Number of channels to accumulate at once, which bounds memory. Results may differ by rounding.
        segmented: Whether to sort the intersections of each image separately. Does not change the image.
        covars: [..., N, 3, 3] covariances instead of quats and scales; the upper triangle is read.
        backend: ``"triton"`` for kernels, on a GPU or compiled for the CPU; ``"torch"`` for vectorized PyTorch on any
            device; ``"reference"`` for a dense, slow implementation; ``"auto"`` for the fastest that runs.
        numerics: The rasterizer whose constants to use: ``"gsplat-1.5"``, ``"gsplat-1.6"`` or ``"inria"``.
        validate: How to handle invalid values. A Gaussian is invalid if a value is not finite or exceeds 1e12 in
            magnitude, or if its quaternion has a norm below 1e-12. A camera is invalid if it is not finite or singular.
            ``"cull"`` leaves invalid Gaussians out, with gradients of exactly zero, and counts them; an invalid camera
            sees nothing. ``"error"`` raises for invalid values, negative scales, opacities outside [0, 1], and scales
            far larger than the scene; it warns if nothing is visible because of ``near_plane``, ``far_plane``, poses or
            opacities. ``"off"`` does not check: invalid values may reach the pixels that they touch.
        memory_budget: Bytes that intersections may take in either pass; by default 80 % of the free memory of the
            device. If they need more, the image is rendered in bands of tile rows, with the same bits.
        capacity: Number of intersections to allocate memory for, so that the call does not wait for the device to count
            them. ``"auto"`` counts in the first call with a device, number of images and size, then follows the counts
            of earlier calls. None always counts. With a capacity and ``packed=False``, forward passes wait only to
            count for ``"auto"``, with ``validate="error"``, and with ``distributed``. On a GPU, the backward pass of a
            replayed call with many intersections waits until the forward pass has counted its slots.
            If there are more intersections than the capacity, the image shows the background only,
            ``meta["overflow"]`` is true, and :class:`CapacityError` is raised: on a CPU, by this call; with
            ``distributed``, by this call on all ranks; otherwise, on a GPU, by a later call of the same thread or by
            :func:`tsplat.check_overflow`, whichever is first.
        distributed: Whether the ranks of a process group render together (docs/distributed.md). Each rank passes its
            own Gaussians and cameras, any number of either, and gets the images of its cameras with the Gaussians of
            all ranks. Gradients go back to the rank that holds a Gaussian. Does not support batch dimensions, or colors
            and extra signals per camera.
        group: The process group; by default all processes.
        camera_model: How a point (x, y, z) of the camera frame appears in the image, with the focal lengths and
            principal point of ``Ks``: ``"pinhole"`` at fx x/z + cx; ``"ortho"`` at fx x + cx, focal lengths in pixels
            per world unit; ``"fisheye"`` at fx theta x/r + cx, with r = sqrt(x^2 + y^2) and the angle theta from the
            optical axis in radians (equidistant, without distortion); and likewise for y. ``near_plane`` may be
            negative for ortho, and for fisheye with a field of view beyond 180 degrees. ``"ftheta"`` requires
            ``with_ut`` and ``ftheta_coeffs``, and reads only the principal point of ``Ks``. ``"equirectangular"``, for
            panoramas, requires ``with_ut``: fx atan2(x, z) + cx, and fy atan2(y, sqrt(x^2 + z^2)) + cy. Its columns
            wrap. Sorting, planes and depths use the distance from the camera; with ``with_eval3d``, ``"D"`` is ``"d"``.
            Close to the poles, a Gaussian is not close to an ellipse; ``with_eval3d`` is exact there. ``"lidar"``
            requires ``with_ut``, ``with_eval3d`` and ``lidar_coeffs``, which determine the size of the image. See
            docs/cameras.md.
        with_ut: Whether to project by the unscented transform (3DGUT, arXiv 2412.12507) instead of EWA splatting. The
            arguments about lenses and shutters below require it. Takes ``quats`` and ``scales``. Gaussians behind a
            camera, or outside the domain of its lens, are culled; see docs/cameras.md. Unlike gsplat's, it is
            differentiable.
        radial_coeffs: [..., C, 6] k1 to k6 of pinhole lenses, or [..., C, 4] k1 to k4 of fisheye lenses, as defined by
            OpenCV. Differentiable, as are tangential_coeffs and thin_prism_coeffs.
        tangential_coeffs, thin_prism_coeffs: [..., C, 2] p1, p2, and [..., C, 4] s1 to s4, of pinhole lenses.
        ftheta_coeffs: An :class:`FThetaCameraDistortionParameters`, or gsplat's, of all cameras; see docs/cameras.md.
        external_distortion_coeffs: A :class:`BivariateWindshieldModelParameters`, or gsplat's: a windshield in front of
            all cameras. All camera models but ortho and equirectangular support it; see docs/cameras.md.
        rolling_shutter: A :class:`RollingShutterType` or its name: the direction in which rows or columns are read.
        viewmats_rs: [..., C, 4, 4] poses at the end of the readout of a rolling shutter; ``viewmats`` are then the
            poses at its start. Rotations must be orthonormal. Both are differentiable as rotations.
        ut_params: An :class:`UnscentedTransformParameters`; None for its defaults.
        with_eval3d: Whether to evaluate Gaussians in 3D, at their maximum along the ray of the pixel (3DGUT, section
            4.3), instead of on the image plane. Exact for wide Gaussians and all lenses. Takes ``quats`` and
            ``scales``; ``means2d`` then has no gradient. As in gsplat, tiles are chosen by the projection of the
            Gaussian, so the image depends slightly on ``tile_size``.
        rays: [..., C, H, W, 6] or [..., C, H * W, 6], or a shape that broadcasts to one of these: origins and
            directions of the rays of pixels in the world frame, for ``with_eval3d``, instead of the rays of the
            cameras. Directions may have any length. Gaussians are still projected by the cameras. A pixel whose ray has
            an invalid value, or a direction shorter than 1e-18, shows the background. Differentiable.
        return_normals: Whether to render normals with ``with_eval3d``: third axes, negated if they point along the ray.
        global_z_order: Whether Gaussians are sorted by z of the camera frame. If False, which requires ``with_ut``,
            depth is the distance from the camera: for sorting, for ``"D"``, and for the planes of f-theta cameras.
            F-theta cameras then also see behind the camera if their largest angle is above 90 degrees.
        lidar_coeffs: A :class:`RowOffsetStructuredSpinningLidarModelParameters`, or gsplat's, for ``"lidar"`` cameras.
            The image has its rows and columns; ``width``, ``height`` and ``Ks`` are ignored. ``viewmats`` map to the
            frame of the lidar, x forward, y left and z up; with ``viewmats_rs``, they are the poses at the first and
            the last column. The angles are differentiable.
        renderer_config: None, or gsplat 1.6's kernel configuration,
            ``tsplat.compat.gsplat.RendererConfig_MixedBatch()``, or with ``with_eval3d``
            ``RendererConfig_ParallelBatch()``. Does not change the image: tsplat has one kernel.

    Returns:
        ``render_colors`` [..., C, H, W, X], ``render_alphas`` [..., C, H, W, 1] and a dictionary ``meta`` with gsplat's
        keys: ``batch_ids``, ``camera_ids``, ``gaussian_ids`` [nnz] int64 (None if not packed), ``radii`` [nnz, 2] or
        [..., C, N, 2] int32, ``means2d``, ``depths``, ``conics``, ``opacities`` (compensated), ``tile_width``,
        ``tile_height``, ``tiles_per_gauss``, ``isect_ids``, ``flatten_ids``, ``isect_offsets`` [..., C, tile_height,
        tile_width], ``width``, ``height``, ``tile_size``, ``n_batches``, ``n_cameras``. Entries of culled Gaussians are
        zero. Beyond gsplat's keys: ``n_invalid`` int64 [], the number of Gaussians that ``validate`` left out, or None;
        ``overflow`` bool [], whether a ``capacity`` was too small, or None; and ``memory``, a dictionary of
        ``n_intersections``, ``bands``, ``peak_bytes``, the peak memory of intersections, and ``budget``, None if the
        call needed so little that it did not query the free memory. With several bands, ``tiles_per_gauss``,
        ``isect_ids``, ``flatten_ids`` and ``isect_offsets`` are None. ``backend="reference"`` is never packed and has
        no keys about tiles or memory. With ``extra_signals``, ``render_extra_signals`` [..., C, H, W, E]. With
        ``return_normals``, ``normals`` [..., C, H, W, 3] in the world frame, summed with the weights of colors.
        With ``distributed``, packed tensors and ``n_invalid`` describe this rank's Gaussians on the cameras of all
        ranks: ``camera_ids`` are global, ``gaussian_ids`` are local to this rank. ``n_cameras``, ``memory`` and tiles
        describe what this rank composites, the Gaussians in ``received``: a dictionary of ``camera_ids`` (local),
        ``gaussian_ids`` (global), ``radii``, ``means2d``, ``depths``, ``conics`` (not with ``with_eval3d``) and
        ``opacities``, always packed if there are several ranks.

        The images and the floating-point entries of ``meta`` are differentiable with respect to means, quats, scales,
        covars, opacities, colors, viewmats, backgrounds, rays, and lens coefficients except those of f-theta lenses and
        windshields. ``meta["means2d"].retain_grad()`` works.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: An option is not implemented (the message names it); ``Ks`` requires a gradient; a tensor
            is fake, sparse, nested or quantized; or the call is inside of tracing, forward-mode AD or ``torch.func``.
            ``torch.compile`` works, see docs/howto/compile.md.
        BackendError: ``backend="triton"`` cannot run.
        InvalidValueError: ``validate="error"`` and a value is invalid.
        DisagreementError: With ``distributed``, the ranks passed different settings; raised on all ranks.
        PeerError: With ``distributed``, another rank rejected its arguments or exceeded its budget; the message says
            which rank and why.
        CapacityError: This call or an earlier call of this thread needed more intersections than its ``capacity``.
        MemoryBudgetError: The images do not fit into the free memory; or the intersections of a single row of tiles
            exceed the budget, and the message says the likely cause.

    Example::

        import torch
        from tsplat import rasterization

        n, width, height = 1000, 160, 120
        viewmats = torch.eye(4)[None].clone()
        viewmats[0, 2, 3] = 5.0  # the world origin is 5 units in front of the camera
        means = torch.randn(n, 3, requires_grad=True)
        image, alpha, meta = rasterization(
            means,
            quats=torch.randn(n, 4),
            scales=torch.full((n, 3), 0.05),
            opacities=torch.full((n,), 0.8),
            colors=torch.rand(n, 3),
            viewmats=viewmats,
            Ks=torch.tensor([[[200.0, 0, width / 2], [0, 200, height / 2], [0, 0, 1]]]),
            width=width,
            height=height,
            render_mode="RGB+ED",
        )
        colors, depth = image[..., :3], image[..., 3]  # [1, 120, 160, 3] and [1, 120, 160]
        colors.mean().backward()
        assert means.grad.shape == (n, 3)
    """
    call = check_call(locals())  # the arguments: nothing else may be assigned before
    rendering = _render_reference(call) if backend == "reference" else render(call)
    colors = rendering.maps["colors"]
    if call.extra_signals is not None:
        colors, rendering.meta["render_extra_signals"] = call.split_signals(colors)
    return colors, rendering.maps["alphas"], rendering.meta


@eager
@replayed
@in_full_precision
def rasterization_2dgs(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor,
    viewmats: Tensor, Ks: Tensor, width: int, height: int,
    near_plane: float = 0.01, far_plane: float = 1e10, radius_clip: float = 0.0, eps2d: float = 0.3,
    sh_degree: int | None = None, packed: bool = False, tile_size: int = 16,
    backgrounds: Tensor | None = None, render_mode: RenderMode = "RGB",
    sparse_grad: bool = False, absgrad: bool = False,
    distloss: bool = False, depth_mode: DepthMode = "expected",
    *,
    backend: Backend = "auto", numerics: NumericsName = "gsplat-1.5", validate: Validate = "cull",
    memory_budget: int | None = None, capacity: Capacity = None,
    distributed: bool = False, group: ProcessGroup | None = None, shN: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor, dict[str, Any]]:  # fmt: skip
    """Renders 2D Gaussians (Huang et al., "2D Gaussian Splatting", arXiv 2403.17888). Drop-in for gsplat 1.5.3.

    Args:
        means, quats, scales: As in :func:`fully_fused_projection_2dgs`.
        opacities, colors, viewmats, Ks, width, height, near_plane, far_plane, radius_clip: As in
            :func:`tsplat.rasterization`, for pinhole cameras.
        eps2d: Must be a finite number; has no effect, as in gsplat.
        sh_degree, packed, tile_size, render_mode, sparse_grad: As in :func:`tsplat.rasterization`. As in gsplat, tiles
            are chosen by the bounding box of the Gaussian, so the image depends slightly on ``tile_size``.
        backgrounds: [..., C, D]; with ``render_mode`` ``"D"`` and ``"ED"`` [..., C, 1], depths. Otherwise, depth has
            background 0.
        absgrad: Whether the backward pass sets ``meta["means2d"].absgrad``, the sum over pixels of absolute gradients,
            where the low-pass filter applies. Supports up to 11 colors.
        distloss: If true, ``render_mode`` must render depth, as in gsplat. Distortion is always rendered.
        depth_mode: Which depth to compute ``surf_normals`` from: ``"expected"`` for the depth of ``render_mode``, or
            ``"median"``. The depth of a Gaussian is that of its center at all pixels, as in gsplat. With ``"ray"``
            (expected) and ``"ray-median"``, its depth is where the ray of the pixel meets its plane, in expected depth,
            median and distortion; where the ray misses the disc, but the low-pass filter shows the Gaussian, up to 2.4
            pixels around the center, its depth is that of its center.
        backend, numerics, validate, memory_budget, capacity, distributed, group, shN: As in
            :func:`tsplat.rasterization`, without ``backend="reference"``.

    Returns:
        A tuple of seven. ``render_colors`` [..., C, H, W, X]. ``render_alphas`` [..., C, H, W, 1]. ``render_normals``
        [..., C, H, W, 3] in the world frame, summed with the weights of colors. ``surf_normals``, the normals of the
        depth map (:func:`depth_to_normals`), [H, W, 3] for one camera; None unless ``render_mode`` is ``"RGB+D"`` or
        ``"RGB+ED"``. ``render_distort`` and ``render_median`` [..., C, H, W, 1], computed from depths in every
        ``render_mode``; see :func:`rasterize_to_pixels_2dgs`. A dictionary ``meta`` like that of
        :func:`tsplat.rasterization`, with ``ray_transforms`` [..., 3, 3] instead of ``conics``, ``normals`` in the
        camera frame, ``render_distort``, and ``gradient_2dgs``: zeros in the layout of ``means2d`` whose ``grad`` is
        the gradient of projected centers in pixels, the ``key_for_gradient`` of densification.

        All are differentiable with respect to means, quats, scales, opacities, colors, viewmats and backgrounds.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: ``backend="reference"``, ``Ks`` requires a gradient, or ``absgrad`` with more than 11
            colors.
        BackendError, CapacityError, DisagreementError, InvalidValueError, MemoryBudgetError, PeerError: As in
            :func:`tsplat.rasterization`.

    Example::

        import torch
        from tsplat import rasterization_2dgs

        n, width, height = 500, 80, 48
        means = torch.randn(n, 3) + torch.tensor([0, 0, 5.0])
        colors, alphas, normals, surf_normals, distort, median, meta = rasterization_2dgs(
            means, torch.randn(n, 4), torch.full((n, 3), 0.1), torch.full((n,), 0.8), torch.rand(n, 3),
            torch.eye(4)[None], torch.tensor([[[100.0, 0, 40], [0, 100, 24], [0, 0, 1]]]), width, height,
            render_mode="RGB+ED",
        )
        assert colors.shape == (1, height, width, 4) and surf_normals.shape == (height, width, 3)
    """
    call = check_call(locals(), surfels=True)  # the arguments: nothing else may be assigned before
    rendering = render(call)
    return *arrange_images(call, rendering), rendering.meta


def _render_reference(call: Call) -> Rendering:
    """Renders with the dense reference, which is never packed and has no tiles."""
    from .reference import rasterize

    o, settings, camera = call.options, call.settings, call.settings.projection.camera
    given = dict(
        means=call.means, quats=call.quats, scales=call.scales, opacities=call.opacities, colors=call.all_colors(),
        covars=call.covars, backgrounds=call.backgrounds, extra_signals=call.extra_signals,
        rays=None if call.rays is None else unit_rays(call.rays.to(call.dtype)), **call.cameras._asdict(),
    )  # fmt: skip
    tensors: dict[str, Any] = {name: None if t is None else t.to(call.dtype) for name, t in given.items()}
    rendered = rasterize(
        **tensors,
        width=camera.width, height=camera.height, near_plane=o.near_plane, far_plane=o.far_plane,
        radius_clip=o.radius_clip, eps2d=o.eps2d, sh_degree=o.sh_degree, render_mode=o.render_mode,
        rasterize_mode=o.rasterize_mode, camera_model=o.camera_model, numerics=settings.numerics,
        cull=o.validate != "off", extra_signals_sh_degree=o.extra_signals_sh_degree,
        unscented=settings.projection.unscented, readout=o.rolling_shutter, with_eval3d=o.with_eval3d,
        tile_size=o.tile_size, return_normals=o.return_normals, lidar=None if call.lidar is None else call.lidar.tables,
    )  # fmt: skip
    return Rendering({"colors": rendered.colors, "alphas": rendered.alphas}, describe_reference(call, rendered))
