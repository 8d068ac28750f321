"""2D Gaussians: their projection, and the arguments and images of a call that renders them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..arguments import (
    check_bool,
    check_choice,
    check_culling,
    check_numerics,
    check_size,
    compute_dtype,
)
from ..config import Backend, CameraSettings, NumericsName, RenderMode, Validate
from ..data import Cameras, Gaussians3D, ProjectionSettings
from ..errors import ArgumentError
from .backend import full_precision
from .capacity import Capacity
from .compilation import eager, with_plain_tensors
from .depth_maps import depth_to_normals
from .inputs import check_scene, flatten_batches
from .pipeline import Rendering, render
from .projection import project
from .request import Request, Scene, check_request
from .settings import Options
from .sparse_gradients import SparseGradients

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@eager
@with_plain_tensors
def fully_fused_projection_2dgs(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    packed: bool = False,
    sparse_grad: bool = False,
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:
    """Projects 2D Gaussians (Huang et al., "2D Gaussian Splatting", arXiv 2403.17888). Same as gsplat 1.5.3.

    Args:
        means, quats: [..., N, 3] centers, world frame, and [..., N, 4] rotations wxyz, any nonzero norm. Discs are in
            the plane of the first two rotated axes.
        scales: [..., N, 3] standard deviations along these axes, after exp; the third is not read.
        viewmats, Ks, width, height: As :func:`fully_fused_projection`, of pinhole cameras.
        eps2d: Must be a finite number; of no effect, as in gsplat: compositing filters by a circle.
        near_plane, far_plane, radius_clip: As :func:`fully_fused_projection`.
        packed: Whether to return visible Gaussians only, as packed tensors.
        sparse_grad: As in :func:`tsplat.rasterization`, for means, quats and scales.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``(radii, means2d, depths, ray_transforms, normals)`` of shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3, 3] and [..., C, N, 3]. Culled Gaussians are zero. Packed, ``(batch_ids, camera_ids,
        gaussian_ids, radii, means2d, depths, ray_transforms, normals)`` with [nnz] in place of [..., C, N]. A ray
        transform takes coordinates (u, v, 1) on the disc, in standard deviations, to z (x, y, 1) of the pixel (x, y).
        ``means2d`` are the centers of the boxes around the unit circles, not the projected means. Normals are in the
        camera frame and face the camera. All but radii (int32) and ids (int64) are differentiable with respect to
        means, quats, scales and viewmats.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: ``Ks`` that require a gradient.

    Example::

        import torch
        from tsplat import fully_fused_projection_2dgs

        means, quats = torch.tensor([[0.0, 0, 4]]), torch.tensor([[1.0, 0, 0, 0]])
        Ks = torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]])
        radii, means2d, depths, transforms, normals = fully_fused_projection_2dgs(
            means, quats, torch.full((1, 3), 0.1), torch.eye(4)[None], Ks, width=80, height=60
        )
        assert means2d[0, 0].tolist() == [40, 30] and normals[0, 0].tolist() == [0, 0, -1]
    """
    width, height = check_size("width", width), check_size("height", height)
    preset = check_numerics(numerics)
    near, far, radius_clip, _ = check_culling(near_plane, far_plane, radius_clip, eps2d, preset, "pinhole")
    packed, sparse_grad = check_bool("packed", packed), check_bool("sparse_grad", sparse_grad)
    cameras = Cameras(viewmats, Ks)
    batch, n_gaussians, n_cameras = check_scene(means, quats, scales, None, (6,), None, cameras)
    if sparse_grad and (not packed or batch):
        raise ArgumentError(f"sparse_grad: requires packed=True and no batch dimensions, found {packed}, {list(batch)}")
    sparse_gradients = SparseGradients() if sparse_grad else None
    if sparse_gradients is not None:
        means, quats, scales = map(sparse_gradients.attach, (means, quats, scales))  # type: ignore[assignment]
    dtype = compute_dtype(means, quats, scales, *cameras)
    camera = CameraSettings.of(width, height, "pinhole", near, far, preset)
    settings = ProjectionSettings(
        camera, radius_clip=radius_clip, packed=packed, numerics=preset, backend=backend, surfels=True
    )
    gaussians = flatten_batches(Gaussians3D(means, quats, scales, None, None), len(batch), dtype)
    projected = project(gaussians, flatten_batches(cameras, len(batch), dtype), settings, batch)
    if sparse_gradients is not None:
        sparse_gradients.set_visible(projected)
    transforms = projected.conics.view(-1, 3, 3)
    assert projected.normals is not None
    outputs = (projected.radii, projected.means2d, projected.depths, transforms, projected.normals)
    if packed:
        return *projected.ids(), *outputs
    shape, own_shapes = (*batch, n_cameras, n_gaussians), ((2,), (2,), (), (3, 3), (3,))
    return tuple(t.view(*shape, *own) for t, own in zip(outputs, own_shapes))


@eager
def rasterization_2dgs(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
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
    packed: bool = False,
    tile_size: int = 16,
    backgrounds: Tensor | None = None,
    render_mode: RenderMode = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    distloss: bool = False,
    depth_mode: Literal["expected", "median"] = "expected",
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
    validate: Validate = "cull",
    memory_budget: int | None = None,
    capacity: Capacity = None,
    distributed: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor, dict[str, Any]]:
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
            where the low-pass filter applies.
        distloss: If true, ``render_mode`` must render depth, as in gsplat. Distortion is rendered in any case.
        depth_mode: The depth of which ``surf_normals`` are: ``"expected"``, that of ``render_mode``, or ``"median"``.
        backend, numerics, validate, memory_budget, capacity, distributed, group: As in :func:`tsplat.rasterization`,
            without ``backend="reference"``.

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
        NotImplementedError: ``backend="reference"``, or ``Ks`` that require a gradient.
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
    check_choice("depth_mode", depth_mode, ("expected", "median"))
    check_choice("backend", backend, ("auto", "triton", "torch"))
    options = Options(
        width=width, height=height, near_plane=near_plane, far_plane=far_plane, radius_clip=radius_clip, eps2d=eps2d,
        sh_degree=sh_degree, extra_signals_sh_degree=None, packed=packed, tile_size=tile_size, render_mode=render_mode,
        absgrad=absgrad, rasterize_mode="classic", backend=backend, numerics=numerics, camera_model="pinhole",
        validate=validate, channel_chunk=32, memory_budget=memory_budget, sparse_grad=sparse_grad, segmented=False,
        capacity=capacity, surfels=True,
    )  # fmt: skip
    scene = Scene(means, quats, scales, opacities, colors, Cameras(viewmats, Ks), backgrounds, None)
    request = check_request(scene, options, {}, group, distributed)
    if check_bool("distloss", distloss) and not request.options.renders_depth:
        raise ArgumentError(f"render_mode: expected one with depth, as distloss is True, found {render_mode!r}")
    with full_precision(request.device):
        rendering = render(request)
        return *_arrange(request, rendering, median_depth=depth_mode == "median"), rendering.meta


def _arrange(
    request: Request, rendering: Rendering, *, median_depth: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """The images as ``rasterization_2dgs`` returns them."""
    options, images, colors, leading = request.options, rendering.surfels, rendering.colors, request.image_shape[:-2]
    assert images is not None
    cameras = request.own(rendering.cameras)
    to_world = torch.linalg.inv(cameras.viewmats).view(*leading, 4, 4)
    normals = images.normals @ to_world[..., None, :3, :3].transpose(-1, -2)
    surface = None
    if options.renders_depth and options.renders_color:
        depths = images.medians if median_depth else colors[..., -1:]
        surface = depth_to_normals(depths, to_world, cameras.Ks.view(*leading, 3, 3)).squeeze(0)
    colors = colors if options.renders_depth else colors[..., :-1]
    return colors, images.alphas, normals, surface, images.distortions, images.medians
