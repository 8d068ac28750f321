"""Rasterization: the pipeline of stages, and the two functions that call it, for 3D and for 2D Gaussians."""

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
from .stages.capacity import check_capacity
from .stages.exchange import exchange, gather_cameras
from .stages.intersection import intersect
from .stages.meta import GRAPH_RESULTS, Rendering, describe_reference, describe_render
from .stages.primitives import composite_maps, with_shapes
from .stages.projection import project
from .stages.shading import shade
from .stages.surfels import arrange_images

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["rasterization", "rasterization_2dgs"]


def render(call: Call) -> Rendering:
    """Renders the Gaussians of a checked call by the stages, in their order."""
    options, settings = call.options, call.settings
    # Inputs: means, quats, scales and opacities as given, and the cameras of all ranks, converted and checked.
    gaussians = call.gaussians()
    cameras = gather_cameras(call.ranks, call.local_cameras(), call.means.device)
    gaussians, cameras, centers = call.prepare_inputs(gaussians, cameras)
    # Project: a row for each Gaussian and camera, or for visible ones only. Most colors are evaluated with it.
    projected, colors = project(gaussians, cameras, settings.projection, call.batch, call.fused_harmonics(centers))
    if call.sparse_gradients is not None:
        call.sparse_gradients.set_visible(projected)
    # Shade: the features of each row, which are blended. `shaped` are the rows with what compositing evaluates.
    features = shade(call, gaussians.means, centers, projected, colors)
    shaped, features, extra = with_shapes(call, gaussians, cameras, projected, features)
    # Exchange: the rows of this rank's cameras; on a single rank, these are all.
    received, features = exchange(call.ranks, shaped, features, absgrad=options.absgrad)
    # Intersect: the rows that each tile has to composite.
    splats = Splats.of(received, features, with_depths=options.renders_depth or options.surfels)
    on_tiles, periods = call.tile_inputs(received, cameras)
    budget = call.memory_budget(splats)
    intersections = intersect(
        on_tiles, call.grid, settings.intersection, budget, call.explain_memory, call.ranks, periods
    )
    # Composite: the features of these rows, blended at each pixel.
    maps = composite_maps(call, splats, intersections, cameras)
    check_capacity(intersections.whole, options.capacity, call.grid, call.ranks)
    meta = describe_render(call, gaussians.valid, projected, received, intersections, maps, extra)
    return Rendering(maps, meta, cameras)


# A call is an operator in a graph of torch.compile, or it replays passes if its kind is known. Otherwise the body runs.
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
    rolling_shutter: object = RollingShutterType.GLOBAL, viewmats_rs: Tensor | None = None,
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

    Everything is computed and accumulated in fp32 (fp64 if any input is fp64), whatever the autocast state. Gradients
    have the dtype of their input.

    Args:
        means: [..., N, 3] centers, world frame.
        quats: [..., N, 4] rotations wxyz, any norm above 1e-12.
        scales: [..., N, 3] standard deviations along the rotated axes, after exp.
        opacities: [..., N] after sigmoid, in [0, 1].
        colors: [..., N, D] or per camera [..., C, N, D], any D >= 1; with ``sh_degree``, spherical harmonics
            coefficients [..., N, K, D] or [..., C, N, K, D]. Half precision is read without a copy. May be None if
            only depth is rendered.
        shN: [..., N, K - 1, D] coefficients of degrees above 0, if ``colors`` holds those of degree 0 only,
            [..., N, 1, D]. The result is that of ``torch.cat([colors, shN], -2)`` as ``colors``; of three channels,
            neither the coefficients nor their gradients are copied.
        extra_signals: [..., N, E] or [..., C, N, E], rendered like colors into ``meta["render_extra_signals"]``, and
            differentiable.
        extra_signals_sh_degree: Like ``sh_degree``, for extra signals [..., N, K, E] or [..., C, N, K, E]: spherical
            harmonics + 0.5, which are not clamped.
        viewmats: [..., C, 4, 4] world to camera; cameras look along +z, x points right, y down (OpenCV).
        Ks: [..., C, 3, 3] intrinsics in pixels (see ``camera_model``); pixel centers are at +0.5. Not differentiable.
            None for full panoramas of equirectangular cameras.
        width, height: Image size in pixels.
        near_plane, far_plane: Gaussians outside these camera-space depths z are culled. Pinhole cameras see nothing
            behind z = 0.
        radius_clip: Gaussians whose radii along both image axes are at most this, in pixels, are culled.
        eps2d: Added to the diagonal of the screen covariance, pixels^2.
        sh_degree: Highest degree of spherical harmonics to use, 0 to 4; None if ``colors`` are colors.
        packed: Whether ``meta`` holds packed tensors, of visible Gaussians only. The image is the same.
        tile_size: Edge of a tile in pixels, 4, 8 or 16; None for 16, with ``with_eval3d`` and fewer than 1,080 rows or
            columns for 8, as in gsplat 1.6. The image is the same.
        backgrounds: [..., C, D], with ``extra_signals`` [..., C, D + E]; of a single image also [D]. Depth always has
            background 0.
        render_mode: ``"RGB"``; ``"D"`` accumulated depth, the sum of w z; ``"ED"`` expected depth, divided by alpha;
            ``"RGB+D"``, ``"RGB+ED"`` with depth as the last channel. With ``with_eval3d`` also ``"d"``, ``"Ed"``,
            ``"RGB-d"``, ``"RGB-Ed"``, distances along the rays of pixels to where Gaussians are highest.
        sparse_grad: Whether the gradients of means, quats, scales and covars are sparse COO tensors with a row for
            each visible Gaussian, in ascending order, as ``torch.optim.SparseAdam`` takes them. Requires ``packed`` and
            no batch dimensions. The other gradients are dense.
        absgrad: Whether the backward pass sets ``meta["means2d"].absgrad``, the sum over pixels of absolute gradients
            (AbsGS, arXiv 2404.10484), in pixel units. Of no effect with ``with_eval3d``: ``means2d`` has no gradient.
        rasterize_mode: ``"classic"``, or ``"antialiased"`` (Mip-Splatting, arXiv 2311.16493), which scales opacities by
            what ``eps2d`` added to the screen area.
        channel_chunk: Upper bound of the channels accumulated at once. Bounds memory, does not change the result.
        segmented: Whether to sort the intersections of each image on their own. The image is the same.
        covars: [..., N, 3, 3] covariances in place of quats and scales; the upper triangle is read.
        backend: ``"triton"`` kernels, on a GPU or compiled for the CPU; ``"torch"``, vectorized PyTorch on any device;
            ``"reference"``, dense and slow; ``"auto"``, the fastest that runs.
        numerics: Whose constants to follow: ``"gsplat-1.5"``, ``"gsplat-1.6"`` or ``"inria"``.
        validate: What to do about invalid Gaussians, those with a value that is not finite or beyond 1e12 in magnitude,
            or with a quaternion norm below 1e-12. ``"cull"`` leaves them out, with gradients of exactly zero, and
            counts them; a non-finite or singular camera sees nothing. ``"error"`` raises for both, and for negative
            scales, opacities outside [0, 1], and scales far larger than the scene; and warns if nothing is visible
            because of ``near_plane``, ``far_plane``, poses or opacities. ``"off"`` does not check; invalid values may
            then reach the pixels that they touch.
        memory_budget: Bytes that intersections may take, in either pass; by default 80 % of the free memory of the
            device. If more are needed, the image is rendered in bands of tile rows, with the same bits.
        capacity: Number of intersections to allocate memory for, so that the call does not wait for the device to count
            them. ``"auto"`` counts once for images of each size, and then follows what calls need. None counts always.
            With ``packed=False``, forward passes then never wait. On a GPU, the backward pass of a replayed call waits
            until the forward pass has counted the slots that it needs, if there are many intersections. If there are
            more intersections than the capacity, the image shows the background only, and :class:`CapacityError` is
            raised: by this call on a CPU; by this call of all ranks with ``distributed``; otherwise, on a GPU, by a
            later call of the same thread or by :func:`tsplat.check_overflow`, whichever is first, and
            ``meta["overflow"]`` is true.
        distributed: Whether the ranks of a process group render together (docs/distributed.md). Each passes its own
            Gaussians and cameras, any number of either, and gets the images of its cameras with the Gaussians of all
            ranks. Gradients go back to the rank that holds a Gaussian. No batch dimensions, no colors or extra signals
            per camera.
        group: The process group; by default all processes.
        camera_model: How a point (x, y, z) of the camera frame appears in the image, with the focal lengths and
            principal point of ``Ks``: ``"pinhole"`` at fx x/z + cx; ``"ortho"`` at fx x + cx, focal lengths in pixels
            per world unit; ``"fisheye"`` at fx theta x/r + cx, with r = sqrt(x^2 + y^2) and the angle theta from the
            optical axis in radians (equidistant, without distortion). y is alike. ``near_plane`` may be negative for
            ortho, and for fisheye with a field of view beyond 180 degrees. ``"ftheta"`` requires ``with_ut`` and
            ``ftheta_coeffs``, and reads only the principal point of ``Ks``. ``"equirectangular"`` requires ``with_ut``,
            and is for panoramas: fx atan2(x, z) + cx, and fy atan2(y, sqrt(x^2 + z^2)) + cy. Columns wrap, and sorting,
            planes and depths are by distance; with ``with_eval3d``, ``"D"`` is ``"d"``. Close to poles, no
            ellipse has the shape of a Gaussian; ``with_eval3d`` is exact. ``"lidar"`` requires ``with_ut``,
            ``with_eval3d`` and ``lidar_coeffs``, which determine the size of the image. See docs/cameras.md.
        with_ut: Whether to project by the unscented transform (3DGUT, arXiv 2412.12507) instead of EWA splatting, which
            the arguments below need. Takes ``quats`` and ``scales``. Gaussians behind a camera, or outside of what its
            lens sees, are culled; see docs/cameras.md. Unlike gsplat's, it is differentiable.
        radial_coeffs: [..., C, 6] k1 to k6 of pinhole, or [..., C, 4] k1 to k4 of fisheye lenses, as OpenCV defines
            them. Differentiable, as those below.
        tangential_coeffs, thin_prism_coeffs: [..., C, 2] p1, p2, and [..., C, 4] s1 to s4, of pinhole lenses.
        ftheta_coeffs: An :class:`FThetaCameraDistortionParameters`, or gsplat's, of all cameras; see docs/cameras.md.
        external_distortion_coeffs: A :class:`BivariateWindshieldModelParameters`, or gsplat's: a windshield in front of
            all cameras, of any model but ortho and equirectangular; see docs/cameras.md.
        rolling_shutter: A :class:`RollingShutterType`, or its name: the direction in which rows or columns are read.
        viewmats_rs: [..., C, 4, 4] poses at the end of the readout, of a rolling shutter; ``viewmats`` are those at its
            start. Rotations must be orthonormal. Both are differentiable, as rotations.
        ut_params: An :class:`UnscentedTransformParameters`; None for its defaults.
        with_eval3d: Whether to evaluate Gaussians in 3D, at the point of a pixel's ray where they are highest (3DGUT,
            section 4.3), instead of on the image plane. Exact for wide Gaussians and every lens. Takes ``quats`` and
            ``scales``; ``means2d`` then has no gradient. As in gsplat, the tiles of a Gaussian are those of its
            projection, so that the image depends slightly on ``tile_size``.
        rays: [..., C, H, W, 6] or [..., C, H * W, 6], or a shape that broadcasts to one of these: the rays of pixels
            for ``with_eval3d`` in place of the cameras', origins and directions of any length in the world frame.
            Gaussians are still projected by the cameras. A pixel whose ray is not finite or has no direction shows the
            background. Differentiable.
        return_normals: Whether to render normals with ``with_eval3d``: third axes, negated where they point along rays.
        global_z_order: Whether Gaussians are sorted by z of the camera frame. False, with ``with_ut``, is for distances
            from the camera, which are then the depths of ``"D"``, and what planes of f-theta cameras cull by. These
            then see behind the camera, too, if their largest angle is above 90 degrees.
        lidar_coeffs: A :class:`RowOffsetStructuredSpinningLidarModelParameters`, or gsplat's, of ``"lidar"`` cameras:
            an image has its rows and columns, whatever ``width``, ``height`` and ``Ks`` are. ``viewmats`` lead to the
            frame of the lidar, x forward, y left and z up; with ``viewmats_rs`` they are the poses at the first and
            the last column. Its angles are differentiable.
        renderer_config: None, or gsplat 1.6's choice of a kernel, ``tsplat.compat.gsplat.RendererConfig_MixedBatch()``,
            or with ``with_eval3d`` ``RendererConfig_ParallelBatch()``. The image is the same, as there is one kernel.

    Returns:
        ``render_colors`` [..., C, H, W, X], ``render_alphas`` [..., C, H, W, 1] and a dictionary ``meta`` with gsplat's
        keys: ``batch_ids``, ``camera_ids``, ``gaussian_ids`` [nnz] int64 (None if not packed), ``radii`` [nnz, 2] or
        [..., C, N, 2] int32, ``means2d``, ``depths``, ``conics``, ``opacities`` (compensated), ``tile_width``,
        ``tile_height``, ``tiles_per_gauss``, ``isect_ids``, ``flatten_ids``, ``isect_offsets`` [..., C, tile_height,
        tile_width], ``width``, ``height``, ``tile_size``, ``n_batches``, ``n_cameras``. Entries of culled Gaussians are
        zero. Beyond gsplat's keys: ``n_invalid`` int64 [], the number of Gaussians that ``validate`` left out, or None;
        ``overflow`` bool [], whether a ``capacity`` was too small, or None; and ``memory``, a dictionary of
        ``n_intersections``, ``bands``, ``peak_bytes`` that intersections took at a time, and ``budget``, None if too
        little was needed to query free memory. With several bands, ``tiles_per_gauss``, ``isect_ids``, ``flatten_ids``
        and ``isect_offsets`` are None. ``backend="reference"`` is never packed and has no keys about tiles or memory.
        With ``extra_signals``, ``render_extra_signals`` [..., C, H, W, E]. With ``return_normals``, ``normals``
        [..., C, H, W, 3], sums weighted like colors, world frame.
        With ``distributed``, packed tensors and ``n_invalid`` are about this rank's Gaussians on the cameras of all
        ranks: ``camera_ids`` count over all ranks, ``gaussian_ids`` are this rank's. ``n_cameras``, ``memory`` and
        tiles are about what this rank composites, the Gaussians in ``received``: a dictionary of ``camera_ids`` (this
        rank's), ``gaussian_ids`` (over all ranks), ``radii``, ``means2d``, ``depths``, ``conics`` (not with
        ``with_eval3d``) and ``opacities``, always packed if there are several ranks.

        Differentiable with respect to means, quats, scales, covars, opacities, colors, viewmats, backgrounds, rays and
        coefficients of lenses but f-theta and windshields, from the images and from the differentiable entries of
        ``meta``; ``meta["means2d"].retain_grad()`` works.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: An option that is not implemented, which the message names; ``Ks`` that require a gradient;
            a tensor that is fake, sparse, nested or quantized; or tracing, forward-mode AD, and ``torch.func``.
            ``torch.compile`` works: docs/howto/compile.md.
        BackendError: ``backend="triton"`` cannot run.
        InvalidValueError: ``validate="error"`` and values are invalid.
        DisagreementError: With ``distributed``, ranks passed different settings; raised on all of them.
        PeerError: With ``distributed``, another rank rejected its arguments, or exceeded its budget; the message says
            which and why.
        CapacityError: A call with a ``capacity``, this or an earlier one of this thread, needed more intersections.
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
        colors, rendering.meta["render_extra_signals"] = call.split(colors)
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
        means, quats, scales: As :func:`fully_fused_projection_2dgs`.
        opacities, colors, viewmats, Ks, width, height, near_plane, far_plane, radius_clip: As
            :func:`tsplat.rasterization`, of pinhole cameras.
        eps2d: Must be a finite number; of no effect, as in gsplat.
        sh_degree, packed, tile_size, render_mode, sparse_grad: As :func:`tsplat.rasterization`. As in gsplat, the tiles
            of a Gaussian are those of its box, so that the image depends slightly on ``tile_size``.
        backgrounds: [..., C, D]; of ``render_mode`` ``"D"`` and ``"ED"`` [..., C, 1], depths. Otherwise, depth has
            background 0.
        absgrad: Whether the backward pass sets ``meta["means2d"].absgrad``, the sum over pixels of absolute gradients,
            where the low-pass filter applies. Of up to 11 colors.
        distloss: If true, ``render_mode`` must render depth, as in gsplat. Distortion is rendered in any case.
        depth_mode: The depth of which ``surf_normals`` are: ``"expected"``, that of ``render_mode``, or ``"median"``.
            A Gaussian has the depth of its center at all pixels, as in gsplat. With ``"ray"`` and ``"ray-median"``, it
            has that of its plane where the ray of the pixel meets it, in expected depth, median and distortion; that
            of its center where the ray misses the disc, which the low-pass filter shows up to 2.4 pixels around.
        backend, numerics, validate, memory_budget, capacity, distributed, group, shN: As in
            :func:`tsplat.rasterization`, without ``backend="reference"``.

    Returns:
        ``render_colors`` [..., C, H, W, X]; ``render_alphas`` [..., C, H, W, 1]; ``render_normals`` [..., C, H, W, 3],
        sums weighted like colors, world frame; ``surf_normals``, those of the depth map (:func:`depth_to_normals`), of
        one camera [H, W, 3], or None unless ``render_mode`` is ``"RGB+D"`` or ``"RGB+ED"``; ``render_distort`` and
        ``render_median`` [..., C, H, W, 1], see :func:`rasterize_to_pixels_2dgs`, of depths in every ``render_mode``;
        and a dictionary ``meta`` as that of :func:`tsplat.rasterization`, with ``ray_transforms`` [..., 3, 3] in place
        of ``conics``, ``normals`` in the camera frame, ``render_distort``, and ``gradient_2dgs``, zeros in the layout
        of ``means2d`` whose ``grad`` is the gradient of projected centers, in pixels: the ``key_for_gradient`` of
        densification.

        Differentiable with respect to means, quats, scales, opacities, colors, viewmats and backgrounds.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: ``backend="reference"``, ``Ks`` that require a gradient, or ``absgrad`` with more colors.
        BackendError, CapacityError, DisagreementError, InvalidValueError, MemoryBudgetError, PeerError: As
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
        covars=call.covars, backgrounds=call.backgrounds, extra_signals=call.extra_signals, rays=call.rays,
        **call.cameras._asdict(),
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
