"""Rendering of a model: `rasterization` applied to :class:`Gaussians`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..config import Backend, CameraModel, RenderMode
from ..rasterization import rasterization
from ..scene.capture.views import Color
from ..scene.gaussians import Gaussians

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def render_views(
    gaussians: Gaussians,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    *,
    camera_model: CameraModel = "pinhole",
    background: Color = (0.0, 0.0, 0.0),
    sh_degree: int | None = None,
    render_mode: RenderMode = "RGB",
    absgrad: bool = False,
    group: ProcessGroup | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Renders views of a model, without clamping.

    Differentiable with respect to the raw parameters of the Gaussians and `viewmats`. Rendering is antialiased if
    `gaussians.antialiased` is set.

    Args:
        viewmats: [C, 4, 4] world to camera, on the device of the Gaussians.
        Ks: [C, 3, 3] intrinsics in pixels, on the same device.
        width, height: Image size in pixels.
        background: RGB in [0, 1]; used by render modes with RGB.
        sh_degree: Highest degree of spherical harmonics to use; all of the Gaussians' where None.
        camera_model, render_mode, absgrad: As in :func:`tsplat.rasterization`.
        group: Process group over which Gaussians and cameras are distributed; None for a single process.

    Returns:
        Images [C, height, width, D] with the channels of `render_mode`, alphas [C, height, width, 1], and the `meta`
        of :func:`tsplat.rasterization` with `packed=False`.

    Raises:
        ArgumentError, BackendError: As :func:`tsplat.rasterization`.
    """
    degree = gaussians.sh_degree if sh_degree is None else sh_degree
    backgrounds = None
    if "RGB" in render_mode:
        backgrounds = gaussians.means.new_tensor(background).expand(len(viewmats), 3)
    return rasterization(
        gaussians.means,
        gaussians.quats,
        gaussians.scales,
        gaussians.opacities,
        gaussians.sh_coeffs(degree),
        viewmats,
        Ks,
        width,
        height,
        sh_degree=degree,
        backgrounds=backgrounds,
        packed=False,
        render_mode=render_mode,
        rasterize_mode="antialiased" if gaussians.antialiased else "classic",
        absgrad=absgrad,
        camera_model=camera_model,
        distributed=group is not None,
        group=group,
        backend=backend,
    )


def render(
    gaussians: Gaussians,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    *,
    camera_model: CameraModel = "pinhole",
    background: Color = (0.0, 0.0, 0.0),
    sh_degree: int | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Renders one view in RGB, [height, width, 3], without clamping; see :func:`render_views`.

    Args:
        viewmat: [4, 4] world to camera.
        K: [3, 3] intrinsics in pixels.

    Example::

        import torch
        from tsplat.scene import Gaussians, intrinsics
        from tsplat.viewing import look_at_all, render

        gaussians = Gaussians.from_points(torch.rand(100, 3), torch.rand(100, 3))
        viewmat, _ = look_at_all(gaussians, 160, 120, fov=50)
        image = render(gaussians, viewmat, intrinsics(160, 120, fov=50), 160, 120)  # [120, 160, 3]
    """
    return render_views(
        gaussians,
        viewmat[None],
        K[None],
        width,
        height,
        camera_model=camera_model,
        background=background,
        sh_degree=sh_degree,
        backend=backend,
    )[0][0]
