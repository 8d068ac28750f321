"""Pictures of Gaussians."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..rasterization import rasterization
from ..scene.capture.views import Color
from ..scene.gaussians import Gaussians
from ..stages.backend import Backend

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def render_views(
    gaussians: Gaussians,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    *,
    background: Color = (0.0, 0.0, 0.0),
    sh_degree: int | None = None,
    render_mode: str = "RGB",
    absgrad: bool = False,
    group: ProcessGroup | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Renders views, not clamped, differentiable with respect to the Gaussians' raw parameters.

    Antialiased where the Gaussians are marked so.

    Args:
        viewmats, Ks: [C, 4, 4] world to camera and [C, 3, 3] intrinsics, on the Gaussians' device.
        background: RGB behind everything.
        sh_degree: Highest degree of spherical harmonics to use; all there are where None.
        render_mode, absgrad: As in :func:`tsplat.rasterization`.
        group: Ranks that have a part of the Gaussians and of the cameras each; None for one that has all.

    Returns:
        Channels [C, height, width, D] as `render_mode` says, alphas [C, height, width, 1], and ``meta`` of
        :func:`tsplat.rasterization`, of rows that are not packed.

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
    background: Color = (0.0, 0.0, 0.0),
    sh_degree: int | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """As :func:`render_views`, of one view RGB [height, width, 3] alone."""
    return render_views(
        gaussians,
        viewmat[None],
        K[None],
        width,
        height,
        background=background,
        sh_degree=sh_degree,
        backend=backend,
    )[0][0]
