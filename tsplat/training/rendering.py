"""A picture of Gaussians from one camera."""

from __future__ import annotations

from torch import Tensor

from ..backend import Backend
from ..rasterization import rasterization
from ..scene.gaussians import Gaussians

Color = tuple[float, float, float]


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
    """Renders RGB [height, width, 3], not clamped, differentiable with respect to the Gaussians' raw parameters.

    Args:
        viewmat, K: [4, 4] world to camera and [3, 3] intrinsics, on the Gaussians' device.
        background: RGB behind everything.
        sh_degree: Highest degree of spherical harmonics to use; all there are where None.

    Raises:
        ArgumentError, BackendError: As :func:`tsplat.rasterization`.
    """
    degree = gaussians.sh_degree if sh_degree is None else sh_degree
    colors, _, _ = rasterization(
        gaussians.means,
        gaussians.quats,
        gaussians.scales,
        gaussians.opacities,
        gaussians.sh_coeffs(degree),
        viewmat[None],
        K[None],
        width,
        height,
        sh_degree=degree,
        backgrounds=gaussians.means.new_tensor(background)[None],
        backend=backend,
    )
    return colors[0]
