"""The way of a Gaussian: check, project, shade, (exchange between ranks,) intersect, composite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import arguments as checks
from .arguments import RollingShutterType
from .config import DEPTH_ALPHA_MIN, MAGNITUDE_MAX, NumericsName
from .data import TileGrid, flatten_batch
from .errors import ArgumentError
from .stages.backend import BACKENDS, Backend, full_precision
from .stages.compositing import CompositingSettings, composite
from .stages.exchange import agreeing, describe, exchange, gather_cameras, join
from .stages.intersection import count_tiles, depth_order, encode_ids, list_intersections, narrow_offsets
from .stages.memory import Bands
from .stages.projection import ProjectionSettings, project
from .stages.shading import shade
from .stages.validation import VALIDATE, Validate, explain_sizes, find_valid, raise_if_invalid, replace_invalid_cameras

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def rasterization(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int = 16,
    backgrounds: Tensor | None = None,
    render_mode: str = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: str = "classic",
    channel_chunk: int = 32,
    distributed: bool = False,
    camera_model: str = "pinhole",
    segmented: bool = False,
    covars: Tensor | None = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL,
    viewmats_rs: Tensor | None = None,
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
    validate: Validate = "cull",
    memory_budget: int | None = None,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Renders 3D Gaussians to images (Kerbl et al., "3D Gaussian Splatting", 2023); a drop-in for gsplat 1.5.3's.

    Everything is computed and accumulated in fp32 (fp64 if any input is), whatever the autocast state. Gradients come
    back in each input's own element type.

    Args:
        means: [..., N, 3] centers, world frame.
        quats: [..., N, 4] rotations wxyz, any norm above 1e-12.
        scales: [..., N, 3] standard deviations along the rotated axes, after exp.
        opacities: [..., N] after sigmoid, in [0, 1].
        colors: [..., N, D] or per camera [..., C, N, D], any D >= 1; or, with ``sh_degree``, spherical harmonics
            coefficients [..., N, K, 3] or [..., C, N, K, 3]. Half precision is read as it is, without a copy.
        viewmats: [..., C, 4, 4] world to camera; cameras look along +z, x right, y down.
        Ks: [..., C, 3, 3] intrinsics in pixels; pixel centers lie at +0.5. Not differentiable.
        width, height: Image size in pixels.
        near_plane, far_plane: Gaussians outside these camera-space depths are culled.
        radius_clip: Gaussians whose half width and height on screen are both at most this, in pixels, are culled.
        eps2d: Added to the diagonal of the screen covariance, pixels^2.
        sh_degree: Highest degree of spherical harmonics in use, 0 to 4; None where ``colors`` are colors.
        packed: Whether ``meta`` holds visible pairs of camera and Gaussian only. The picture is the same.
        tile_size: Pixels along a tile's edge, 4, 8 or 16. The picture is the same.
        backgrounds: [..., C, D]; depth always has background 0.
        render_mode: ``"RGB"``; ``"D"`` accumulated depth, the sum of w z; ``"ED"`` expected depth, divided by alpha;
            ``"RGB+D"``, ``"RGB+ED"`` with depth as the last channel.
        absgrad: Whether the backward pass sets ``meta["means2d"].absgrad``, the sum over pixels of the absolute
            gradients (AbsGS, arXiv 2404.10484), in pixel units.
        rasterize_mode: ``"classic"``, or ``"antialiased"`` (Mip-Splatting, arXiv 2311.16493), which scales opacities by
            what ``eps2d`` added to the screen area.
        channel_chunk: At most so many channels are accumulated in one pass; bounds memory in use, not the result.
        covars: [..., N, 3, 3] covariances in place of quats and scales; the upper triangle is read.
        backend: ``"triton"`` kernels on a GPU, ``"torch"`` vectorized on any device, ``"reference"`` dense and slow;
            ``"auto"`` takes the fastest that runs.
        numerics: Whose constants to follow: ``"gsplat-1.5"``, ``"gsplat-1.6"`` or ``"inria"``.
        validate: What to do about Gaussians that cannot be drawn: those with a number that is not finite or beyond
            1e12, or a quaternion below 1e-12. ``"cull"`` leaves them out, with gradients of exactly zero, and counts
            them; a camera with such numbers, or that maps all to one place, sees nothing. ``"error"`` raises for both,
            and for negative scales, opacities outside [0, 1], and scales far larger than the scene. ``"off"`` does not
            look; such numbers may then reach the pixels they touch.
        memory_budget: Bytes that pairs of Gaussian and tile may take, in either pass; by default 80 % of what is free
            on the device. Where more would be needed, the picture is made in bands of tile rows, to the same bits.
        distributed: Whether several ranks render together (docs/distributed.md): each passes its own Gaussians and its
            own cameras, of any number, and gets the pictures of its cameras with the Gaussians of all ranks. Gradients
            go back to the owners. No batch dimensions, no colors per camera.
        group: The process group of these ranks; by default of all processes.
        sparse_grad, camera_model, segmented, with_ut, with_eval3d, radial_coeffs, tangential_coeffs,
            thin_prism_coeffs, ftheta_coeffs, rolling_shutter, viewmats_rs: As in gsplat; only the defaults are there.

    Returns:
        ``render_colors`` [..., C, H, W, X], ``render_alphas`` [..., C, H, W, 1] and a dictionary ``meta`` with gsplat's
        keys: ``batch_ids``, ``camera_ids``, ``gaussian_ids`` [nnz] int64 (None if not packed), ``radii`` [nnz, 2] or
        [..., C, N, 2] int32, ``means2d``, ``depths``, ``conics``, ``opacities`` (compensated), ``tile_width``,
        ``tile_height``, ``tiles_per_gauss``, ``isect_ids``, ``flatten_ids``, ``isect_offsets`` [..., C, tile_height,
        tile_width], ``width``, ``height``, ``tile_size``, ``n_batches``, ``n_cameras``. Entries of culled Gaussians are
        zero. Beyond gsplat's keys, ``n_invalid`` int64 [], how many Gaussians ``validate`` left out, or None; and
        ``memory``, a dictionary: ``pairs`` listed, ``bands``, ``peak_bytes`` that pairs took at a time, and ``budget``,
        None where too little was needed to ask. Several bands leave no lists of pairs: ``tiles_per_gauss``,
        ``isect_ids``, ``flatten_ids`` and ``isect_offsets`` are None. ``backend="reference"`` is never packed and has
        no tiles, so no keys that speak of tiles or memory.
        With ``distributed``, rows and ``n_invalid`` are those of this rank's Gaussians on the cameras of all ranks;
        ``camera_ids`` count on from rank to rank, ``gaussian_ids`` are this rank's. ``n_cameras``, ``memory`` and what
        speaks of tiles are about what this rank draws, the rows in ``received``: a dictionary of ``camera_ids`` (this
        rank's), ``gaussian_ids`` (counted on from rank to rank), ``radii``, ``means2d``, ``depths``, ``conics`` and
        ``opacities``, always packed where there is more than one rank.

        Differentiable with respect to means, quats, scales, covars, opacities, colors, viewmats and backgrounds, from
        the images and from the differentiable entries of ``meta``; ``meta["means2d"].retain_grad()`` works.

    Raises:
        ArgumentError: A shape, element type, device or value that has no meaning.
        NotImplementedError: An option, named, that is not implemented; or ``Ks`` that require a gradient.
        BackendError: ``backend="triton"`` where it cannot run.
        InvalidValueError: ``validate="error"``, and there are values that cannot be drawn.
        DisagreementError: ``distributed``, and ranks were called with different settings; raised on all of them.
        PeerError: ``distributed``, and another rank's arguments were refused; the message says which and why.
        MemoryBudgetError: Not even one row of tiles fits into the budget; the message says what the likely cause is.
    """
    if group is not None and not distributed:
        raise ArgumentError("group: given, but distributed is False; pass distributed=True, or no group")
    ranks = join(group) if distributed else None
    settings_of_all = dict(
        width=width,
        height=height,
        near_plane=near_plane,
        far_plane=far_plane,
        radius_clip=radius_clip,
        eps2d=eps2d,
        sh_degree=sh_degree,
        packed=packed,
        tile_size=tile_size,
        render_mode=render_mode,
        absgrad=absgrad,
        rasterize_mode=rasterize_mode,
        backend=backend,
        numerics=numerics,
        validate=validate,
    )
    with agreeing(ranks, settings_of_all) as record:
        checks.check_absent(
            {
                "sparse_grad": (sparse_grad, False),
                "segmented": (segmented, False),
                "with_ut": (with_ut, False),
                "with_eval3d": (with_eval3d, False),
                "radial_coeffs": (radial_coeffs, None),
                "tangential_coeffs": (tangential_coeffs, None),
                "thin_prism_coeffs": (thin_prism_coeffs, None),
                "ftheta_coeffs": (ftheta_coeffs, None),
                "viewmats_rs": (viewmats_rs, None),
            }
        )
        checks.check_camera_model(camera_model)
        checks.check_rolling_shutter(rolling_shutter)
        checks.check_choice("render_mode", render_mode, checks.RENDER_MODES)
        checks.check_choice("rasterize_mode", rasterize_mode, checks.RASTERIZE_MODES)
        checks.check_choice("backend", backend, BACKENDS)
        checks.check_choice("validate", validate, VALIDATE)
        checks.check_tile_size(tile_size)
        checks.check_size("width", width)
        checks.check_size("height", height)
        checks.check_size("channel_chunk", channel_chunk)
        if memory_budget is not None:
            checks.check_size("memory_budget", memory_budget)
        preset = checks.check_numerics(numerics)
        batch, n_gaussians, n_cameras = checks.check_scene(
            means, quats, scales, covars, (3, 3), opacities, viewmats, Ks
        )
        channels = checks.check_colors(colors, sh_degree, batch, n_cameras, n_gaussians)
        if backgrounds is not None:
            checks.check_tensor(
                "backgrounds", backgrounds, [*batch, n_cameras, channels], "[..., C, D] as viewmats and colors"
            )
        checks.check_devices(dict(means=means, colors=colors, backgrounds=backgrounds))
        per_camera = colors.dim() == len(batch) + (3 if sh_degree is None else 4)
        upper = None
        if covars is not None:
            quats = scales = None
            upper = covars[..., (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)]
        dtype = checks.compute_dtype(means, quats, scales, covars, opacities, colors, viewmats, Ks, backgrounds)
        if backend == "reference":
            checks.check_absent({"absgrad": (absgrad, False), "memory_budget": (memory_budget, None)})
        if validate == "error":
            raise_if_invalid(
                means,
                quats,
                scales,
                upper,
                opacities,
                colors,
                viewmats,
                Ks,
                per_camera=per_camera,
                sh=sh_degree is not None,
            )
        if distributed:
            checks.check_distributed(batch, backend, per_camera=per_camera)
        if ranks is not None:
            describe(record, ranks, means, quats, scales, upper, opacities, colors, viewmats, dtype)
    if backend == "reference":
        return _by_reference(
            (means, quats, scales, opacities, colors, viewmats, Ks, backgrounds, covars),
            width=width,
            height=height,
            near_plane=near_plane,
            far_plane=far_plane,
            radius_clip=radius_clip,
            eps2d=eps2d,
            sh_degree=sh_degree,
            render_mode=render_mode,
            rasterize_mode=rasterize_mode,
            numerics=preset,
            cull=validate != "off",
        )
    # From here on batch dimensions are one, [B, ...]. Colors keep their type: half precision is read as it is.
    means, opacities = (flatten_batch(tensor, len(batch), dtype) for tensor in (means, opacities))
    colors = flatten_batch(colors, len(batch), colors.dtype)
    viewmats, Ks = (flatten_batch(tensor, len(batch), dtype) for tensor in (viewmats, Ks))
    quats, scales, upper = (flatten_batch(tensor, len(batch), dtype) for tensor in (quats, scales, upper))
    backgrounds = flatten_batch(backgrounds, len(batch), dtype)
    grid = TileGrid(viewmats.shape[0] * n_cameras, tile_size, -(-width // tile_size), -(-height // tile_size))

    with full_precision(means.device):
        if ranks is not None:
            viewmats, Ks = gather_cameras(ranks, viewmats, Ks)
        sound = None
        if validate != "off":
            sound = find_valid(means, quats, scales, upper, opacities, colors, per_camera=per_camera, backend=backend)
            viewmats, Ks = replace_invalid_cameras(viewmats, Ks)

        own = rows = project(
            means,
            quats,
            scales,
            upper,
            opacities,
            viewmats,
            Ks,
            sound,
            ProjectionSettings(
                width=width,
                height=height,
                eps2d=eps2d,
                near_plane=max(near_plane, preset.near_min),
                far_plane=min(far_plane, MAGNITUDE_MAX),
                radius_clip=radius_clip,
                compensate=rasterize_mode == "antialiased",
                packed=packed,
                numerics=preset,
                backend=backend,
            ),
        )
        batch_ids, camera_ids, gaussian_ids = own.indices()
        # The caller's rows: one dimension if packed, otherwise the dimensions they came with.
        shape = drawn_shape = (own.depths.numel(),) if packed else (*batch, viewmats.shape[1], n_gaussians)
        means2d = drawn_means2d = own.means2d.view(*shape, 2)

        features: Tensor | None = None
        feature_ids: Tensor | None = None
        if "RGB" in render_mode:
            if sh_degree is not None:
                features = shade(means, colors, viewmats, rows, sh_degree, preset, backend)
            else:
                features, feature_ids = colors.flatten(0, -2), rows.color_ids(per_camera=per_camera)
        if ranks is not None:
            rows, features = exchange(ranks, own, means2d, features, feature_ids, absgrad=absgrad)
            feature_ids, drawn_means2d, drawn_shape = None, rows.means2d, rows.depths.shape

        opacities2d = rows.opacities
        assert opacities2d is not None
        depths = rows.depths if "D" in render_mode else None
        if backgrounds is not None:
            backgrounds = backgrounds.flatten(0, 1) if features is not None else None

        order = depth_order(rows.radii, rows.depths)
        settings = CompositingSettings(
            width=width,
            height=height,
            tile_size=tile_size,
            channel_chunk=channel_chunk,
            absgrad=absgrad,
            numerics=preset,
            backend=backend,
        )
        bands = Bands(
            lambda band, admit: list_intersections(
                rows.means2d.detach(),
                rows.radii,
                rows.conics.detach(),
                opacities2d.detach(),
                order,
                rows.image_ids(),
                grid,
                band,
                numerics=preset,
                backend=backend,
                admit=admit,
            ),
            grid,
            means.device,
            memory_budget,
            settings.bytes_per_intersection(
                (0 if features is None else features.shape[-1]) + (depths is not None), dtype
            ),
            lambda: explain_sizes(means, scales, upper),
        )

        render_colors, render_alphas = composite(
            drawn_means2d,
            rows.conics,
            opacities2d,
            features,
            feature_ids,
            depths,
            backgrounds,
            None,
            grid.n_images,
            bands,
            settings,
        )
        size = (*batch, n_cameras, height, width)
        render_colors = render_colors.view(*size, render_colors.shape[-1])
        render_alphas = render_alphas.view(*size, 1)
        if render_mode in ("ED", "RGB+ED"):
            expected = render_colors[..., -1:] / render_alphas.clamp_min(DEPTH_ALPHA_MIN)
            render_colors = torch.cat([render_colors[..., :-1], expected], -1)

    own_opacities, pairs = own.opacities, bands.whole
    assert own_opacities is not None
    tile_counts = isect_ids = isect_offsets = None
    if pairs is not None and pairs.gaussian_major is not None:
        tile_counts = count_tiles(pairs.gaussian_major).view(drawn_shape)
        isect_ids = encode_ids(pairs, rows.depths, grid)
        isect_offsets = narrow_offsets(pairs.isect_offsets[:-1], pairs.flatten_ids.numel()).view(
            *batch, n_cameras, grid.tile_height, grid.tile_width
        )
    meta: dict[str, Any] = {
        "batch_ids": batch_ids,
        "camera_ids": camera_ids,
        "gaussian_ids": gaussian_ids,
        "radii": own.radii.view(*shape, 2),
        "means2d": means2d,
        "depths": own.depths.view(shape),
        "conics": own.conics.view(*shape, 3),
        "opacities": own_opacities.view(shape),
        "tile_width": grid.tile_width,
        "tile_height": grid.tile_height,
        "tiles_per_gauss": tile_counts,
        "isect_ids": isect_ids,
        "flatten_ids": None if pairs is None else pairs.flatten_ids,
        "isect_offsets": isect_offsets,
        "width": width,
        "height": height,
        "tile_size": tile_size,
        "n_batches": means.shape[0],
        "n_cameras": n_cameras,
        "n_invalid": None if sound is None else (~sound).sum(),
        "memory": bands.figures(),
    }
    if distributed:
        _, camera_ids, gaussian_ids = rows.indices()
        meta["received"] = {
            "camera_ids": camera_ids,
            "gaussian_ids": gaussian_ids,
            "radii": rows.radii.view(*drawn_shape, 2),
            "means2d": drawn_means2d,
            "depths": rows.depths.view(drawn_shape),
            "conics": rows.conics.view(*drawn_shape, 3),
            "opacities": opacities2d.view(drawn_shape),
        }
    return render_colors, render_alphas, meta


def _by_reference(tensors: tuple[Tensor | None, ...], **settings: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The same by `tsplat.reference`; rows are never packed, and there are no tiles."""
    from .reference import rasterize

    dtype = checks.compute_dtype(*tensors)
    names = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds", "covars")
    scene: dict[str, Any] = {name: None if t is None else t.to(dtype) for name, t in zip(names, tensors)}
    with full_precision(scene["means"].device):
        truth = rasterize(**scene, **settings)
    projection = truth.projection
    meta = {
        "batch_ids": None,
        "camera_ids": None,
        "gaussian_ids": None,
        "radii": projection.radii,
        "means2d": projection.means2d,
        "depths": projection.depths,
        "conics": projection.conics,
        "opacities": projection.opacities,
        "width": settings["width"],
        "height": settings["height"],
        "n_batches": math.prod(scene["means"].shape[:-2]),
        "n_cameras": scene["viewmats"].shape[-3],
        "n_invalid": None if truth.sound is None else (~truth.sound).sum(),
    }
    return truth.colors, truth.alphas, meta
