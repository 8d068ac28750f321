"""Device functions of the camera model: perspective projection and the screen covariance.

EWA splatting (Zwicker et al., "EWA Volume Splatting", 2001, equations 24 to 31). A further camera model adds its
Jacobian and its gradient here, and a case in ``to_screen``. Tuples are laid out as in ``device_math.py``.
"""

import triton
import triton.language as tl

from .device_math import constant, dot3, load_tuple, matvec3, symmetric_matvec3


@triton.jit
def clamped_slope(p, z, focal, center, extent, FOV_MARGIN: tl.constexpr):
    """p / z clamped to the image plus a margin, and whether it was inside (bounds included)."""
    margin = extent / focal * (0.5 * FOV_MARGIN)
    low = -(center / focal + margin)
    high = (extent - center) / focal + margin
    slope = p / z
    return tl.minimum(tl.maximum(slope, low), high), (slope >= low) & (slope <= high)


@triton.jit
def image_jacobian(p, z, focal, center, extent, FOV_MARGIN: tl.constexpr):
    """Row of the perspective Jacobian for one image axis: d pixel / d p and d pixel / d z."""
    slope, inside = clamped_slope(p, z, focal, center, extent, FOV_MARGIN)
    return focal / z, -focal * slope / z, inside


@triton.jit
def image_jacobian_vjp(p, z, focal, j_p, j_z, inside, v_p, v_z):
    """Gradients of p and z from those of the row of the Jacobian."""
    v_slope = -v_z * focal / z
    grad_z = -(v_p * j_p + v_z * j_z) / z - tl.where(inside, v_slope * p / (z * z), 0.0)
    return tl.where(inside, v_slope / z, 0.0), grad_z


@triton.jit
def screen_rows(j0, j02, j1, j12, w):
    """The two rows of J W for J = [[j0, 0, j02], [0, j1, j12]] and the world-to-camera rotation W."""
    return (
        (j0 * w[0] + j02 * w[6], j0 * w[1] + j02 * w[7], j0 * w[2] + j02 * w[8]),
        (j1 * w[3] + j12 * w[6], j1 * w[4] + j12 * w[7], j1 * w[5] + j12 * w[8]),
    )


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
def to_screen(mean, sigma, w, t, intrinsics, width, height, eps2d, FOV_MARGIN: tl.constexpr):
    """Projects a Gaussian with mean and covariance sigma by the camera w, t, intrinsics.

    Returns:
        Mean in camera space; mean in pixels; the Jacobian J and what its gradient needs; the two rows of J W; screen
        covariance without and with eps2d on its diagonal.
    """
    fx, fy, cx, cy = intrinsics[0], intrinsics[1], intrinsics[2], intrinsics[3]
    rotated = matvec3(w, mean)
    p = (rotated[0] + t[0], rotated[1] + t[1], rotated[2] + t[2])
    j0, j02, inside_x = image_jacobian(p[0], p[2], fx, cx, width, FOV_MARGIN)
    j1, j12, inside_y = image_jacobian(p[1], p[2], fy, cy, height, FOV_MARGIN)
    t0, t1 = screen_rows(j0, j02, j1, j12, w)
    sharp = screen_covariance(t0, t1, sigma)
    blur = constant(eps2d, sharp[0])
    blurred = (sharp[0] + blur, sharp[1], sharp[2] + blur)
    mean2d = (fx * p[0] / p[2] + cx, fy * p[1] / p[2] + cy)
    return p, mean2d, (j0, j02, inside_x, j1, j12, inside_y), t0, t1, sharp, blurred
