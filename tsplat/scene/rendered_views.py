"""Renders views of a model: calls :func:`tsplat.rasterization` with :class:`Gaussians` and :class:`Camera`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..precision import fp64, in_full_precision
from ..rasterization import rasterization, rasterization_2dgs
from .cameras import Camera, rasterization_arguments
from .gaussians import Gaussians
from .option_types import Color

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@in_full_precision
def render_views(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    n_cameras: int | None = None,
    background: Color | Tensor | None = (0.0, 0.0, 0.0),
    sh_degree: int | None = None,
    group: ProcessGroup | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Renders views of a model without clamping colors.

    Differentiable with respect to the parameters of the Gaussians before activation, and the tensors of the cameras. If
    `gaussians.antialiased` is set, rendering is antialiased; if `gaussians.surfels` is set, it calls
    :func:`tsplat.rasterization_2dgs`.

    Args:
        gaussians: Model on the device to render on.
        cameras: C cameras of equal size and model, on any device.
        n_cameras: Number of cameras to render; all if None. With 0, a rank joins a collective call without a camera.
        background: RGB in [0, 1], or a tensor [3] on the device, if `render_mode` contains RGB. None renders on black
            without a tensor of backgrounds.
        sh_degree: Highest SH degree to use; None for the degree of the Gaussians.
        group: Process group over which Gaussians and cameras are distributed; None for a single process.
        options: Other arguments of :func:`tsplat.rasterization`, or of :func:`tsplat.rasterization_2dgs`, such as
            `render_mode` and `backend`.

    Returns:
        Images [C, height, width, D] with the channels of the render mode, alphas [C, height, width, 1], and the `meta`
        of :func:`tsplat.rasterization` with `packed=False`. With 2D Gaussians, `meta` also contains the images
        `render_normals`, `surf_normals`, `render_distort` and `render_median`.

    Raises:
        ArgumentError: The cameras differ in size or model, or an option is invalid.
        UnsupportedError: The Gaussians are 2D and the cameras are not pinhole cameras without distortion.
        BackendError: The backend is not available.
    """
    device = gaussians.means.device
    views = rasterization_arguments([camera.to(device) for camera in cameras], n_cameras, surfels=gaussians.surfels)
    degree = gaussians.sh_degree if sh_degree is None else sh_degree
    backgrounds = None
    if background is not None and "RGB" in options.get("render_mode", "RGB"):
        color = background if isinstance(background, Tensor) else fp64(background).to(gaussians.means)
        backgrounds = color.expand(len(cameras[:n_cameras]), 3)
    call: dict[str, Any] = {
        **gaussians.rasterization_arguments(degree),
        **views,
        "backgrounds": backgrounds,
        "packed": False,
        "distributed": group is not None,
        "group": group,
        **options,
    }
    if not gaussians.surfels:
        return rasterization(**call, rasterize_mode="antialiased" if gaussians.antialiased else "classic")
    colors, alphas, normals, surface, distortion, median, meta = rasterization_2dgs(**call)
    meta.update(render_normals=normals, surf_normals=surface, render_distort=distortion, render_median=median)
    return colors, alphas, meta


def render(gaussians: Gaussians, camera: Camera, **options: Any) -> Tensor:
    """Renders one view without clamping, by default in RGB, [height, width, 3].

    Args:
        options: Other arguments of :func:`render_views`.

    Example::

        import torch
        from tsplat.scene import Camera, Gaussians, intrinsics
        from tsplat.viewing import look_at_all, render

        gaussians = Gaussians.from_points(torch.rand(100, 3), torch.rand(100, 3))
        viewmat, _ = look_at_all(gaussians, 160, 120, fov=50)
        image = render(gaussians, Camera(viewmat, intrinsics(160, 120, fov=50), 160, 120))  # [120, 160, 3]
    """
    return render_views(gaussians, [camera], **options)[0][0]


def kind_of_call(camera: Camera) -> tuple[object, ...]:
    """Returns the properties that all cameras of one call must share, on all ranks, such as the size of the image."""
    lens = (camera.model, camera.distortion is None, camera.viewmat_end is None, camera.readout)
    return camera.width, camera.height, camera.near, *lens
