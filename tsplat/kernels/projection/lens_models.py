"""Device functions of lenses: where a camera shows a point, and the gradient of the point.

- Pinhole: radial (k1 to k6), tangential (p1, p2) and thin prism distortion (s1 to s4), as OpenCV defines them.
- Fisheye: theta (1 + k1 theta^2 + k2 theta^4 + k3 theta^6 + k4 theta^8), theta the angle from the optical axis (Kannala
  and Brandt, 2006); without coefficients equidistant. The fifth number of the lens is the largest angle.
- F-theta: a polynomial of theta, or the inverse of one, and a linear map. Beyond the largest angle, where nothing is
  seen, distances grow in proportion to theta.
- Ortho: no distortion.

A windshield in front of the lens shows a point p at other angles phi = asin(x / |p|) and psi = asin(y / |p|), which
are polynomials of them: sums of c_jk phi^j psi^k with j + k at most 5.

Points behind a camera are at pixel 0, 0, and are not seen. ``lens`` is () without coefficients; with a windshield, a
pointer to its polynomials follows the 12 values; see ``stages/lens_models.py``. Tuples are laid out as in
``device_math.py``.
"""

import math

import triton
import triton.language as tl

from ...config import FTHETA_STEPS, LENS_GAIN_MIN
from ..device_math import constant, load_tuple
from .camera_models import fisheye_direction, fisheye_rows

GAIN_MIN = tl.constexpr(LENS_GAIN_MIN)
INVERSION_STEPS = tl.constexpr(FTHETA_STEPS)

N_SINE = tl.constexpr(10)
SINE = tl.constexpr(tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(N_SINE.value, -1, -1)))
"""Taylor series, highest term first. Its error is below 1e-13 within SINE_MAX."""
SINE_MAX = tl.constexpr(2.5)
RIGHT_ANGLE = tl.constexpr(math.pi / 2)

N_COEFFICIENTS = tl.constexpr(12)
N_POLYNOMIAL = tl.constexpr(21)


@triton.jit
def load_lens(lens, image, N_LENS: tl.constexpr):
    """Values of the lens of an image; () without one."""
    values = ()
    if lens is not None:
        values = load_tuple(lens + image * N_LENS, 1, N_COEFFICIENTS)
        if N_LENS > N_COEFFICIENTS:
            values = values + (lens + image * N_LENS + N_COEFFICIENTS,)
    return values


@triton.jit
def refract(p, polynomials):
    """Unit direction in which a windshield shows a point in front; whether it does, and the axis if not; derivatives.

    Beyond right angles, and where directions turn back, nothing is seen.
    """
    phi = _angle(p[0], p[1], p[2])
    psi = _angle(p[1], p[0], p[2])
    h, h_phi, h_psi = _windshield_polynomial(polynomials, phi, psi)
    v, v_phi, v_psi = _windshield_polynomial(polynomials + N_POLYNOMIAL, phi, psi)
    x = sine(h)
    y = sine(v)
    square = 1.0 - x * x - y * y
    limit = constant(RIGHT_ANGLE, h)
    clear = (tl.abs(h) < limit) & (tl.abs(v) < limit) & (square > 0.0) & (h_phi * v_psi > h_psi * v_phi)
    q = tl.where(clear, x, 0.0), tl.where(clear, y, 0.0), tl.sqrt(tl.where(clear, square, 1.0))
    return q, clear, (h_phi, h_psi, v_phi, v_psi)


@triton.jit
def _angle(along, aside, z):
    """Angle of a point from the plane across an axis: asin(along / |p|)."""
    d, _, k, _, _ = fisheye_direction((along, along * 0.0, tl.sqrt(aside * aside + z * z)))
    return k * d[0]


@triton.jit
def _windshield_polynomial(coefficients, x, y):
    """Sum of y^k (c_0k + c_1k x + ... ), and its derivatives with respect to x and y; six coefficients for k = 0."""
    value = x * 0.0
    of_x = value
    of_y = value
    for i in tl.static_range(6):
        inner = x * 0.0
        slope = inner
        for j in tl.static_range(i + 1):
            # k = 5 - i; powers of x from i down to 0
            slope = slope * x + inner
            inner = inner * x + tl.load(coefficients + (5 - i) * (8 + i) // 2 + i - j)
        of_y = of_y * y + value
        of_x = of_x * y + slope
        value = value * y + inner
    return value, of_x, of_y


@triton.jit
def refract_vjp(p, q, clear, of_glass, v):
    """Gradient of the point from that of the direction in which a windshield shows it."""
    h_phi, h_psi, v_phi, v_psi = of_glass
    v_h = tl.sqrt(1.0 - q[0] * q[0]) * (v[0] - v[2] * q[0] / q[2])
    v_v = tl.sqrt(1.0 - q[1] * q[1]) * (v[1] - v[2] * q[1] / q[2])
    aside_x = tl.sqrt(p[1] * p[1] + p[2] * p[2])
    aside_y = tl.sqrt(p[0] * p[0] + p[2] * p[2])
    inverse = 1.0 / (p[0] * p[0] + aside_x * aside_x)
    of_phi = inverse * (v_h * h_phi + v_v * v_phi)
    of_psi = inverse * (v_h * h_psi + v_v * v_psi)
    along_x = of_phi * p[0] / aside_x
    along_y = of_psi * p[1] / aside_y
    return (
        tl.where(clear, of_phi * aside_x - along_y * p[0], 0.0),
        tl.where(clear, of_psi * aside_y - along_x * p[1], 0.0),
        tl.where(clear, -(along_x + along_y) * p[2], 0.0),
    )


@triton.jit
def bend(p, lens, CAMERA: tl.constexpr):
    """Where a lens with a focal length of 1 shows a point in front, whether it sees it, and what gradients need."""
    seen = p[2] > 0.0
    if len(lens) > N_COEFFICIENTS:
        p, clear, _ = refract(p, lens[N_COEFFICIENTS])
        seen = seen & clear
    if CAMERA == "ortho":
        return p[0], p[1], seen, (p[2],)
    elif CAMERA == "fisheye":
        d, inverse_norm, k, m, _ = fisheye_direction(p)
        q0 = k * d[0]
        q1 = k * d[1]
        if len(lens) == 0:
            return q0, q1, seen, (d, inverse_norm, m)
        else:
            square = q0 * q0 + q1 * q1  # theta^2
            gain = 1.0 + square * (lens[0] + square * (lens[1] + square * (lens[2] + square * lens[3])))
            slope = lens[0] + square * (2.0 * lens[1] + square * (3.0 * lens[2] + square * 4.0 * lens[3]))
            seen = seen & (square <= lens[4] * lens[4])
            return gain * q0, gain * q1, seen, (d, inverse_norm, m, q0, q1, gain, slope)
    elif CAMERA == "ftheta":
        d, inverse_norm, k, m, _ = fisheye_direction(p)
        q0 = k * d[0]
        q1 = k * d[1]
        theta = tl.sqrt(q0 * q0 + q1 * q1)
        gain, slope = _ftheta_gain(theta, lens)
        x = gain * q0
        y = gain * q1
        saved = (d, inverse_norm, m, q0, q1, gain, slope)
        return lens[7] * x + lens[8] * y, lens[9] * x + y, seen & (theta <= lens[5]), saved
    else:
        tl.static_assert(CAMERA == "pinhole")
        a = p[0] / p[2]
        b = p[1] / p[2]
        if len(lens) == 0:
            return a, b, seen, (a, b)
        else:
            square = a * a + b * b
            above = 1.0 + square * (lens[0] + square * (lens[1] + square * lens[2]))
            below = 1.0 + square * (lens[3] + square * (lens[4] + square * lens[5]))
            inverse = tl.where(tl.abs(below) > constant(1e-8, below), 1.0 / below, 0.0)
            gain = above * inverse
            above_slope = lens[0] + square * (2.0 * lens[1] + square * 3.0 * lens[2])
            below_slope = lens[3] + square * (2.0 * lens[4] + square * 3.0 * lens[5])
            slope = (above_slope - gain * below_slope) * inverse
            mixed = 2.0 * a * b
            x = gain * a + lens[6] * mixed + lens[7] * (square + 2.0 * a * a) + square * (lens[8] + square * lens[9])
            y = gain * b + lens[6] * (square + 2.0 * b * b) + lens[7] * mixed + square * (lens[10] + square * lens[11])
            return x, y, seen & (gain > constant(GAIN_MIN, gain)), (a, b, square, gain, slope)


@triton.jit
def _ftheta_gain(theta, lens):
    """The distance from the principal point over theta, and half its derivative over theta."""
    inside = tl.minimum(theta, lens[5])
    inverts = lens[10] > 0.0
    t = inside * (lens[6] / lens[5])
    low = t * 0.0
    high = low + lens[6]
    for _ in range(INVERSION_STEPS):
        value, slope = _ftheta_polynomial(t, lens)
        rest = t * value - inside
        low = tl.where(rest <= 0.0, t, low)
        high = tl.where(rest >= 0.0, t, high)
        newton = t - rest / (value + t * slope)
        t = tl.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    t = tl.where(inverts, t, inside)
    value, slope = _ftheta_polynomial(t, lens)
    gain = tl.where(inverts, 1.0 / value, value)
    slope = tl.where(inverts, -gain * gain * slope / (value + t * slope), slope)
    return gain, tl.where((theta > 0.0) & (theta <= lens[5]), 0.5 * slope / theta, 0.0)


@triton.jit
def _ftheta_polynomial(t, lens):
    """The polynomial over t, and the derivative of that."""
    value = lens[0] + t * (lens[1] + t * (lens[2] + t * (lens[3] + t * lens[4])))
    return value, lens[1] + t * (2.0 * lens[2] + t * (3.0 * lens[3] + t * (4.0 * lens[4])))


@triton.jit
def bend_vjp(p, lens, saved, v_x, v_y, CAMERA: tl.constexpr):
    """Gradient of the point from that of where the lens shows it."""
    if len(lens) > N_COEFFICIENTS:
        q, clear, of_glass = refract(p, lens[N_COEFFICIENTS])
        return refract_vjp(p, q, clear, of_glass, _bend_vjp(q, lens, saved, v_x, v_y, CAMERA))
    else:
        return _bend_vjp(p, lens, saved, v_x, v_y, CAMERA)


@triton.jit
def _bend_vjp(p, lens, saved, v_x, v_y, CAMERA: tl.constexpr):
    if CAMERA == "ortho":
        return v_x, v_y, v_x * 0.0
    elif CAMERA == "fisheye" or CAMERA == "ftheta":
        d = saved[0]
        if CAMERA == "ftheta":
            from_x = lens[7] * v_x + lens[9] * v_y
            v_y = lens[8] * v_x + v_y
            v_x = from_x
        if len(lens) > 0:
            q0, q1, gain, slope = saved[3], saved[4], saved[5], saved[6]
            along = 2.0 * slope * (q0 * v_x + q1 * v_y)
            v_x = gain * v_x + along * q0
            v_y = gain * v_y + along * q1
        j00, j01, j11 = fisheye_rows(d, saved[2])
        return (
            saved[1] * (v_x * j00 + v_y * j01),
            saved[1] * (v_x * j01 + v_y * j11),
            -saved[1] * (v_x * d[0] + v_y * d[1]),
        )
    else:
        tl.static_assert(CAMERA == "pinhole")
        a = saved[0]
        b = saved[1]
        if len(lens) > 0:
            square, gain, slope = saved[2], saved[3], saved[4]
            prism_x = 2.0 * (lens[8] + 2.0 * lens[9] * square)
            prism_y = 2.0 * (lens[10] + 2.0 * lens[11] * square)
            tangent = 2.0 * (lens[6] * a + lens[7] * b)
            xx = gain + 2.0 * slope * a * a + 2.0 * lens[6] * b + 6.0 * lens[7] * a + prism_x * a
            xy = 2.0 * slope * a * b + tangent + prism_x * b
            yx = 2.0 * slope * a * b + tangent + prism_y * a
            yy = gain + 2.0 * slope * b * b + 6.0 * lens[6] * b + 2.0 * lens[7] * a + prism_y * b
            v_a = xx * v_x + yx * v_y
            v_b = xy * v_x + yy * v_y
        else:
            v_a = v_x
            v_b = v_y
        return v_a / p[2], v_b / p[2], -(a * v_a + b * v_b) / p[2]


@triton.jit
def coefficients_vjp(p, lens, intrinsics, v_u, v_v, CAMERA: tl.constexpr):
    """Gradient of the coefficients of a lens from that of the pixel of a point; zeros for what is not a coefficient."""
    front, q = _in_front(p)
    _, _, _, saved = bend(q, lens, CAMERA)
    v_x = tl.where(front, intrinsics[0] * v_u, 0.0)
    v_y = tl.where(front, intrinsics[1] * v_v, 0.0)
    zero = v_x * 0.0
    if CAMERA == "fisheye":
        square = saved[3] * saved[3] + saved[4] * saved[4]
        v_k1 = square * (v_x * saved[3] + v_y * saved[4])
        v_k2 = square * v_k1
        v_k3 = square * v_k2
        return v_k1, v_k2, v_k3, square * v_k3, zero, zero, zero, zero, zero, zero, zero, zero
    else:
        tl.static_assert(CAMERA == "pinhole")
        a, b, square, gain = saved[0], saved[1], saved[2], saved[3]
        below = 1.0 + square * (lens[3] + square * (lens[4] + square * lens[5]))
        v_k1 = square * (v_x * a + v_y * b) * tl.where(tl.abs(below) > constant(1e-8, below), 1.0 / below, 0.0)
        v_k2 = square * v_k1
        v_k3 = square * v_k2
        mixed = 2.0 * a * b
        return (
            v_k1, v_k2, v_k3, -gain * v_k1, -gain * v_k2, -gain * v_k3,
            v_x * mixed + v_y * (square + 2.0 * b * b), v_x * (square + 2.0 * a * a) + v_y * mixed,
            v_x * square, v_x * square * square, v_y * square, v_y * square * square,
        )  # fmt: skip


@triton.jit
def _in_front(p):
    """Returns whether a point is in front of the camera, and the point, or one on the axis."""
    front = p[2] > 0.0
    return front, (tl.where(front, p[0], 0.0), tl.where(front, p[1], 0.0), tl.where(front, p[2], 1.0))


@triton.jit
def lens_pixel(p, lens, intrinsics, width, height, CAMERA: tl.constexpr, MARGIN: tl.constexpr):
    """Pixel of a point of the camera frame, and whether the lens sees it within the image and a margin."""
    front, q = _in_front(p)
    x, y, seen, _ = bend(q, lens, CAMERA)
    u = tl.where(front, intrinsics[0] * x + intrinsics[2], 0.0)
    v = tl.where(front, intrinsics[1] * y + intrinsics[3], 0.0)
    side = constant(MARGIN, u) * width
    top = constant(MARGIN, u) * height
    return u, v, front & seen & (u >= -side) & (u < width + side) & (v >= -top) & (v < height + top)


@triton.jit
def lens_pixel_vjp(p, lens, intrinsics, v_u, v_v, CAMERA: tl.constexpr):
    """Gradient of the point from that of its pixel."""
    front, q = _in_front(p)
    _, _, _, saved = bend(q, lens, CAMERA)
    v = bend_vjp(q, lens, saved, intrinsics[0] * v_u, intrinsics[1] * v_v, CAMERA)
    return tl.where(front, v[0], 0.0), tl.where(front, v[1], 0.0), tl.where(front, v[2], 0.0)


@triton.jit
def sine(x):
    x = tl.minimum(tl.maximum(x, -SINE_MAX), SINE_MAX)
    square = x * x
    total = constant(SINE[0], x)
    for k in tl.static_range(N_SINE):
        total = total * square + SINE[k + 1]
    return total * x
