"""Device functions of the screen covariance, whatever the camera model.

EWA splatting (Zwicker et al., "EWA Volume Splatting", 2001, equations 24 to 31). Tuples are laid out as in
``device_math.py``, the rows of a Jacobian as in ``camera_models.py``.
"""

import triton
import triton.language as tl

from .camera_models import project_point, row_times
from .device_math import constant, dot3, load_tuple, matvec3, symmetric_matvec3


@triton.jit
def screen_covariance(t0, t1, s):
    """T S T^T, upper triangle, for the rows t0 and t1 of T = J W."""
    s0 = symmetric_matvec3(s, t0)
    s1 = symmetric_matvec3(s, t1)
    return dot3(t0, s0), dot3(t0, s1), dot3(t1, s1)


@triton.jit
def screen_covariance_vjp(t0, t1, s, v):
    """Gradients of t0, t1 and s. With G the symmetric 2x2 gradient: v_T = 2 G T S, v_S = T^T G T."""
    s0 = symmetric_matvec3(s, t0)
    s1 = symmetric_matvec3(s, t1)
    v_t0 = (
        2.0 * v[0] * s0[0] + v[1] * s1[0],
        2.0 * v[0] * s0[1] + v[1] * s1[1],
        2.0 * v[0] * s0[2] + v[1] * s1[2],
    )
    v_t1 = (
        v[1] * s0[0] + 2.0 * v[2] * s1[0],
        v[1] * s0[1] + 2.0 * v[2] * s1[1],
        v[1] * s0[2] + 2.0 * v[2] * s1[2],
    )
    v_s = (
        v[0] * t0[0] * t0[0] + v[1] * t0[0] * t1[0] + v[2] * t1[0] * t1[0],
        2.0 * (v[0] * t0[0] * t0[1] + v[2] * t1[0] * t1[1]) + v[1] * (t0[0] * t1[1] + t0[1] * t1[0]),
        2.0 * (v[0] * t0[0] * t0[2] + v[2] * t1[0] * t1[2]) + v[1] * (t0[0] * t1[2] + t0[2] * t1[0]),
        v[0] * t0[1] * t0[1] + v[1] * t0[1] * t1[1] + v[2] * t1[1] * t1[1],
        2.0 * (v[0] * t0[1] * t0[2] + v[2] * t1[1] * t1[2]) + v[1] * (t0[1] * t1[2] + t0[2] * t1[1]),
        v[0] * t0[2] * t0[2] + v[1] * t0[2] * t1[2] + v[2] * t1[2] * t1[2],
    )
    return v_t0, v_t1, v_s


@triton.jit
def load_camera(viewmats, Ks, image):
    """Rotation (nine entries), translation, and intrinsics fx, fy, cx, cy of an image's camera."""
    v = viewmats + image * 16
    k = Ks + image * 9
    rotation_rows = load_tuple(v, 1, 3) + load_tuple(v + 4, 1, 3) + load_tuple(v + 8, 1, 3)
    return rotation_rows, load_tuple(v + 3, 4, 3), (tl.load(k), tl.load(k + 4), tl.load(k + 2), tl.load(k + 5))


@triton.jit
def to_screen(
    mean, sigma, w, t, intrinsics, width, height, eps2d, CAMERA: tl.constexpr, FOV_MARGIN: tl.constexpr
):  # fmt: skip
    """Projects a Gaussian with mean and covariance sigma by the camera w, t, intrinsics.

    Returns:
        Mean in camera space; mean in pixels; the two rows of the Jacobian J and what its gradient needs; the two rows
        of J W; screen covariance without and with eps2d on its diagonal.
    """
    rotated = matvec3(w, mean)
    p = (rotated[0] + t[0], rotated[1] + t[1], rotated[2] + t[2])
    mean2d, row0, row1, saved = project_point(p, intrinsics, width, height, CAMERA, FOV_MARGIN)
    t0 = (row_times(row0, w, 0, 0, CAMERA), row_times(row0, w, 1, 0, CAMERA), row_times(row0, w, 2, 0, CAMERA))
    t1 = (row_times(row1, w, 0, 1, CAMERA), row_times(row1, w, 1, 1, CAMERA), row_times(row1, w, 2, 1, CAMERA))
    sharp = screen_covariance(t0, t1, sigma)
    blur = constant(eps2d, sharp[0])
    blurred = (sharp[0] + blur, sharp[1], sharp[2] + blur)
    return p, mean2d, (row0, row1, saved), t0, t1, sharp, blurred
