"""The interface of lenses: the device functions of a camera model that the projection kernels call."""

import dataclasses
from typing import Any

from ...contract import Contract


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Lens(Contract):
    """The device functions of a camera model and of its gradients.

    A point p is in the camera frame, ``intrinsics`` are :class:`Intrinsics`, and k are the values of the lens, see
    ``kernels_torch/lenses/``, or (). Tuples are laid out as in ``device_math.py``.

    EWA splatting uses ``project_with_jacobian``, its gradient, ``row_times`` and ``add_entry_times``, without
    coefficients. They are None if it does not support the lens. A row of the Jacobian is the tuple of its entries that
    are not always zero; AXIS is 0 for the row of u, 1 for the row of v. The unscented transform uses the others.

    Attributes:
        project_with_jacobian: (p, intrinsics, width, height, FOV_MARGIN) -> pixel, both rows of the Jacobian, and
            `saved` values for the gradient.
        project_with_jacobian_vjp: (p, intrinsics, row0, row1, `saved`, gradients of the pixel and of both rows, with
            three entries each) -> gradient of the point.
        row_times: (row, W, K, AXIS) -> entry K of a row times the rotation W.
        add_entry_times: (total, row, K, v, AXIS) -> total + entry K of a row * v.
        project: (p, k) -> x, y of the distorted point for a focal length of 1; whether the lens sees the point; and
            `saved` values for the gradients. The point is in front of the camera, or anywhere if the lens wraps or
            shows points behind the camera.
        project_vjp: (p, k, `saved`, v_x, v_y) -> gradient of the point.
        coefficients_vjp: (k, `saved`, v_x, v_y) -> gradients of the twelve values of the lens, zero for unused values;
            None if coefficients have no gradients.
        CULLS_BY_DISTANCE: Whether planes cull by the distance from the camera if depths are distances.
        WRAPS: Whether x is an angle of a full circle. Then ``project`` gets points in all directions; u is periodic.
        project_difference: (p, d) -> x, y of p + d minus x, y of p, computed without the rounding errors of either, x
            the shorter way around. For lenses that wrap and have no coefficients.
        shows_behind: (p, k) -> whether ``project`` accepts a point behind the camera; None if never.
    """

    project: Any
    project_vjp: Any
    project_with_jacobian: Any = None
    project_with_jacobian_vjp: Any = None
    row_times: Any = None
    add_entry_times: Any = None
    coefficients_vjp: Any = None
    CULLS_BY_DISTANCE: bool = False
    WRAPS: bool = False
    project_difference: Any = None
    shows_behind: Any = None
