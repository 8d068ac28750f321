"""Lenses: where a camera shows a point. The rest of the projection knows only what a `Lens` says."""

import dataclasses
from typing import Any

from ...contract import Contract


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Lens(Contract):
    """A camera model, by device functions that are differentiated by hand.

    A point p is in the frame of the camera, ``intrinsics`` are :class:`Intrinsics`, and k are the values of the lens,
    see ``kernels_torch/lenses/``, or (). Tuples are laid out as in ``device_math.py``.

    EWA splatting needs the pixel and the Jacobian, without coefficients. A row of the Jacobian is a tuple of the
    entries that are not always zero; AXIS is 0 for the row of u and 1 for that of v. These four functions
    are None if EWA splatting does not support the lens.

    Attributes:
        project_with_jacobian: (p, intrinsics, width, height, FOV_MARGIN) to the pixel, both rows, and `saved`: what the
            gradient needs.
        project_with_jacobian_vjp: (p, intrinsics, row0, row1, `saved`, gradients of the pixel and of both rows, all
            three entries) to the gradient of the point.
        row_times: (row, W, K, AXIS) to entry K of a row times the rotation W.
        add_entry_times: (total, row, K, v, AXIS) to the total plus entry K of a row times v.
        project: (p, k) to x and y, where a lens with a focal length of 1 and its distortion shows a point in front;
            whether it sees the point; and `saved`, what gradients need. For the unscented transform, as the next two.
        project_vjp: (p, k, `saved`, v_x, v_y) to the gradient of the point.
        coefficients_vjp: (k, `saved`, v_x, v_y) to the gradients of twelve values of the lens, zero for what is not a
            coefficient; None if coefficients have no gradients.
        CULLS_BY_DISTANCE: Whether planes cull by the distance from the camera, where depth is that distance.
        WRAPS: Whether x is an angle of a full circle. Then ``project`` gets points in any direction, and u has a
            period.
        project_difference: (p, d) to x and y of p + d less those of p, without the rounding errors of either, for a
            lens that wraps and has no values: x the shorter way around.
        shows_behind: (p, k) to whether ``project`` takes a point even if it is behind the camera; None if it never
            does.
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
