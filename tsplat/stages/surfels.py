"""2D Gaussians: their projection, and the arguments and images of a call that renders them."""

from __future__ import annotations

from torch import Tensor

from ..arguments import check_bool, check_choice, check_culling, check_numerics, check_size, compute_dtype
from ..config import Backend, CameraSettings, NumericsName
from ..data import Cameras, Gaussians3D, ProjectionSettings
from ..errors import ArgumentError
from ..precision import differentiable, inverse, product
from .compilation import eager, with_plain_tensors
from .depth_maps import depth_to_normals
from .inputs import check_scene, flatten_batches, in_dtype
from .meta import Rendering
from .projection import project
from .request import Request
from .settings import Options
from .sparse_gradients import SparseGradients


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
    gaussians = in_dtype(Gaussians3D(means, quats, scales, None, None), dtype)
    projected, _ = project(gaussians, flatten_batches(cameras, len(batch), dtype), settings, batch)
    if sparse_gradients is not None:
        sparse_gradients.set_visible(projected)
    transforms = projected.conics.view(-1, 3, 3)
    assert projected.normals is not None
    outputs = (projected.radii, projected.means2d, projected.depths, transforms, projected.normals)
    if packed:
        return *projected.ids(), *outputs
    shape, own_shapes = (*batch, n_cameras, n_gaussians), ((2,), (2,), (), (3, 3), (3,))
    return tuple(t.view(*shape, *own) for t, own in zip(outputs, own_shapes))


def check_modes(options: Options, distloss: bool, depth_mode: str) -> None:
    """Checks what only 2D Gaussians have, and that the backend renders them."""
    check_choice("depth_mode", depth_mode, ("expected", "median"))
    check_choice("backend", options.backend, ("auto", "triton", "torch"))
    if check_bool("distloss", distloss) and not options.renders_depth:
        raise ArgumentError(f"render_mode: expected one with depth, as distloss is True, found {options.render_mode!r}")


def arrange_images(
    request: Request, rendering: Rendering, *, median_depth: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """The images as ``rasterization_2dgs`` returns them."""
    options, images, colors, leading = request.options, rendering.surfels, rendering.colors, request.image_shape[:-2]
    assert images is not None and rendering.cameras is not None
    cameras = request.own(rendering.cameras)
    to_world = differentiable(inverse, cameras.viewmats).view(*leading, 4, 4)
    normals = product(images.normals, to_world[..., None, :3, :3].transpose(-1, -2))
    surface = None
    if options.renders_depth and options.renders_color:
        depths = images.medians if median_depth else colors[..., -1:]
        surface = depth_to_normals(depths, to_world, cameras.Ks.view(*leading, 3, 3)).squeeze(0)
    colors = (colors if options.renders_depth else colors[..., :-1]).contiguous()
    return colors, images.alphas, normals, surface, images.distortions, images.medians
