"""Projection by the unscented transform, with the defaults of gsplat."""

from __future__ import annotations

from torch import Tensor

from .... import RollingShutterType
from ....config import Backend, CameraModel, NumericsName
from ....stages import projection
from ._distortion import FThetaCameraDistortionParameters, UnscentedTransformParameters


def fully_fused_projection_with_ut(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    calc_compensations: bool = False,
    camera_model: CameraModel = "pinhole",
    ut_params: UnscentedTransformParameters = UnscentedTransformParameters(),  # noqa: B008
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: FThetaCameraDistortionParameters | None = None,
    rolling_shutter: RollingShutterType = RollingShutterType.GLOBAL,
    viewmats_rs: Tensor | None = None,
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:
    """Projects 3D Gaussians by the unscented transform; see :func:`tsplat.fully_fused_projection_with_ut`.

    Unlike gsplat's, all outputs but radii are differentiable.
    """
    return projection.fully_fused_projection_with_ut(
        means,
        quats,
        scales,
        opacities,
        viewmats,
        Ks,
        width,
        height,
        eps2d,
        near_plane,
        far_plane,
        radius_clip,
        calc_compensations,
        camera_model,
        ut_params,
        radial_coeffs,
        tangential_coeffs,
        thin_prism_coeffs,
        ftheta_coeffs,
        rolling_shutter,
        viewmats_rs,
        backend=backend,
        numerics=numerics,
    )
