"""Device functions shared by the kernels: each step `foo` beside its vector-Jacobian product `foo_vjp`.

Vectors and matrices are tuples of equally shaped tensors, so nothing here knows about block sizes: a 3-vector is
`(x, y, z)`, a 3x3 matrix its nine entries row by row, a symmetric matrix its upper triangle row by row
(`00 01 02 11 12 22` or `00 01 11`). The gradient of a symmetric matrix is taken with respect to that triangle, so an
off-diagonal entry carries the sum of both places it stands in.

Values keep the element type they come with: the functions that run in fp32 on a GPU run in fp64 under the
interpreter. `APPROX` selects the hardware's fp32 approximations of exp2 and reciprocal (2 ulp and 1 ulp, subnormals
flushed), which exist on NVIDIA GPUs only.
"""

import triton
import triton.language as tl

RECORD = tl.constexpr(8)
"""Values of a row's record: mean x, y; -a/2, -b, -c/2 of the conic times log2(e); log2(opacity); clamped opacity; 0."""

MOMENTS = tl.constexpr(6)
"""Sums over pixels from which the gradients of a Gaussian's mean, conic and opacity follow."""

# --- scalars ---------------------------------------------------------------------------------------------------


@triton.jit
def exp2(x, APPROX: tl.constexpr):
    if APPROX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def reciprocal(x, APPROX: tl.constexpr):
    if APPROX:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


# --- tuples of channels ----------------------------------------------------------------------------------------


@triton.jit
def constant(value: tl.constexpr, like):
    """A number in another tensor's type and shape: `tl.minimum` and its like would take it in fp32."""
    return tl.full(like.shape, value, like.dtype)


@triton.jit
def finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def size_of(values):
    """Sum of absolute values of a tuple: not finite where any of them is not."""
    total = tl.abs(values[0])
    for k in tl.static_range(1, len(values)):
        total += tl.abs(values[k])
    return total


@triton.jit
def load_tuple(pointer, stride, N: tl.constexpr, mask=None):
    """The N values at pointer, pointer + stride, ...; zero where masked out."""
    values = ()
    for k in tl.static_range(N):
        if mask is None:
            values = values + (tl.load(pointer + k * stride),)
        else:
            values = values + (tl.load(pointer + k * stride, mask=mask, other=0.0),)
    return values


@triton.jit
def store_tuple(pointer, stride, values, mask=None, kept=None):
    """Neighboring values; zero where not `kept`."""
    for k in tl.static_range(len(values)):
        if kept is None:
            tl.store(pointer + k * stride, values[k], mask=mask)
        else:
            tl.store(pointer + k * stride, tl.where(kept, values[k], 0.0), mask=mask)


@triton.jit
def dot_tuple(a, b):
    total = a[0] * b[0]
    for k in tl.static_range(1, len(a)):
        total = tl.fma(a[k], b[k], total)
    return total


# --- 3x3 -------------------------------------------------------------------------------------------------------


@triton.jit
def dot3(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def matvec3(m, v):
    return (
        m[0] * v[0] + m[1] * v[1] + m[2] * v[2],
        m[3] * v[0] + m[4] * v[1] + m[5] * v[2],
        m[6] * v[0] + m[7] * v[1] + m[8] * v[2],
    )


@triton.jit
def matvec3_transposed(m, v):
    return (
        m[0] * v[0] + m[3] * v[1] + m[6] * v[2],
        m[1] * v[0] + m[4] * v[1] + m[7] * v[2],
        m[2] * v[0] + m[5] * v[1] + m[8] * v[2],
    )


@triton.jit
def symmetric_matvec3(s, v):
    return (
        s[0] * v[0] + s[1] * v[1] + s[2] * v[2],
        s[1] * v[0] + s[3] * v[1] + s[4] * v[2],
        s[2] * v[0] + s[4] * v[1] + s[5] * v[2],
    )


# --- quaternion and scale to covariance ------------------------------------------------------------------------


@triton.jit
def normalize4(q):
    """q / |q| and 1 / |q|."""
    inverse_norm = 1.0 / tl.sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3])
    return (q[0] * inverse_norm, q[1] * inverse_norm, q[2] * inverse_norm, q[3] * inverse_norm), inverse_norm


@triton.jit
def normalize4_vjp(unit, inverse_norm, v):
    along = unit[0] * v[0] + unit[1] * v[1] + unit[2] * v[2] + unit[3] * v[3]
    return (
        (v[0] - along * unit[0]) * inverse_norm,
        (v[1] - along * unit[1]) * inverse_norm,
        (v[2] - along * unit[2]) * inverse_norm,
        (v[3] - along * unit[3]) * inverse_norm,
    )


@triton.jit
def rotation(q):
    """Rotation matrix of a unit quaternion wxyz."""
    w = q[0]
    x = q[1]
    y = q[2]
    z = q[3]
    return (
        1.0 - 2.0 * (y * y + z * z),
        2.0 * (x * y - w * z),
        2.0 * (x * z + w * y),
        2.0 * (x * y + w * z),
        1.0 - 2.0 * (x * x + z * z),
        2.0 * (y * z - w * x),
        2.0 * (x * z - w * y),
        2.0 * (y * z + w * x),
        1.0 - 2.0 * (x * x + y * y),
    )


@triton.jit
def rotation_vjp(q, v):
    w = q[0]
    x = q[1]
    y = q[2]
    z = q[3]
    return (
        2.0 * (x * (v[7] - v[5]) + y * (v[2] - v[6]) + z * (v[3] - v[1])),
        2.0 * (w * (v[7] - v[5]) + y * (v[1] + v[3]) + z * (v[2] + v[6])) - 4.0 * x * (v[4] + v[8]),
        2.0 * (w * (v[2] - v[6]) + x * (v[1] + v[3]) + z * (v[5] + v[7])) - 4.0 * y * (v[0] + v[8]),
        2.0 * (w * (v[3] - v[1]) + x * (v[2] + v[6]) + y * (v[5] + v[7])) - 4.0 * z * (v[0] + v[4]),
    )


@triton.jit
def covariance(r, s):
    """R diag(s)^2 R^T, upper triangle."""
    xx = s[0] * s[0]
    yy = s[1] * s[1]
    zz = s[2] * s[2]
    return (
        r[0] * r[0] * xx + r[1] * r[1] * yy + r[2] * r[2] * zz,
        r[0] * r[3] * xx + r[1] * r[4] * yy + r[2] * r[5] * zz,
        r[0] * r[6] * xx + r[1] * r[7] * yy + r[2] * r[8] * zz,
        r[3] * r[3] * xx + r[4] * r[4] * yy + r[5] * r[5] * zz,
        r[3] * r[6] * xx + r[4] * r[7] * yy + r[5] * r[8] * zz,
        r[6] * r[6] * xx + r[7] * r[7] * yy + r[8] * r[8] * zz,
    )


@triton.jit
def covariance_vjp(r, s, v):
    """Gradients of R and s. With G the symmetric gradient and M = R diag(s): v_M = 2 G M."""
    g = (v[0], 0.5 * v[1], 0.5 * v[2], v[3], 0.5 * v[4], v[5])
    gx = symmetric_matvec3(g, (r[0], r[3], r[6]))
    gy = symmetric_matvec3(g, (r[1], r[4], r[7]))
    gz = symmetric_matvec3(g, (r[2], r[5], r[8]))
    xx = 2.0 * s[0] * s[0]
    yy = 2.0 * s[1] * s[1]
    zz = 2.0 * s[2] * s[2]
    v_r = (
        xx * gx[0], yy * gy[0], zz * gz[0],
        xx * gx[1], yy * gy[1], zz * gz[1],
        xx * gx[2], yy * gy[2], zz * gz[2],
    )  # fmt: skip
    v_s = (
        2.0 * s[0] * dot3(gx, (r[0], r[3], r[6])),
        2.0 * s[1] * dot3(gy, (r[1], r[4], r[7])),
        2.0 * s[2] * dot3(gz, (r[2], r[5], r[8])),
    )
    return v_r, v_s


# --- perspective (EWA splatting, Zwicker et al. 2001, equations 24 to 31) --------------------------------------


@triton.jit
def clamped_slope(p, z, focal, center, extent, FOV_MARGIN: tl.constexpr):
    """p / z held to the image plus a margin, and whether it was inside (bounds included)."""
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
    """Gradients of p and z through the Jacobian's row."""
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


# --- 2x2: blur, inverse, compensation --------------------------------------------------------------------------


@triton.jit
def det2(s):
    return s[0] * s[2] - s[1] * s[1]


@triton.jit
def conic(s, det):
    """Upper triangle of the inverse of a symmetric 2x2 matrix with determinant det."""
    return s[2] / det, -s[1] / det, s[0] / det


@triton.jit
def conic_vjp(c, v):
    """Gradient of the matrix whose inverse is c: v_S = -C G C."""
    half = 0.5 * v[1]
    p00 = v[0] * c[0] + half * c[1]
    p01 = v[0] * c[1] + half * c[2]
    p10 = half * c[0] + v[2] * c[1]
    p11 = half * c[1] + v[2] * c[2]
    return (
        -(c[0] * p00 + c[1] * p10),
        -2.0 * (c[0] * p01 + c[1] * p11),
        -(c[1] * p01 + c[2] * p11),
    )


@triton.jit
def compensation(det, det_blurred, FLOOR: tl.constexpr):
    """sqrt(det / det_blurred), at least FLOOR (Mip-Splatting, arXiv 2311.16493, equation 9)."""
    ratio = det / det_blurred
    return tl.sqrt(tl.maximum(ratio, constant(FLOOR * FLOOR, ratio)))


@triton.jit
def compensation_vjp(s, blurred, det, det_blurred, rho, FLOOR: tl.constexpr, v):
    """Gradient of the unblurred matrix s, whose diagonal the blur shifts by a constant."""
    ratio = det / det_blurred
    free = ratio > FLOOR * FLOOR
    v_det = tl.where(free, 0.5 * v / (tl.where(free, rho, 1.0) * det_blurred), 0.0)
    v_det_blurred = -v_det * ratio
    return (
        v_det * s[2] + v_det_blurred * blurred[2],
        -2.0 * s[1] * (v_det + v_det_blurred),
        v_det * s[0] + v_det_blurred * blurred[0],
    )


# --- directions ------------------------------------------------------------------------------------------------


@triton.jit
def normalize3(d):
    """d / |d| and 1 / |d|; zero for the zero vector."""
    square = dot3(d, d)
    inverse_norm = tl.where(square > 0.0, 1.0 / tl.sqrt(tl.where(square > 0.0, square, 1.0)), 0.0)
    return (d[0] * inverse_norm, d[1] * inverse_norm, d[2] * inverse_norm), inverse_norm


@triton.jit
def normalize3_vjp(unit, inverse_norm, v):
    along = dot3(unit, v)
    return (
        (v[0] - along * unit[0]) * inverse_norm,
        (v[1] - along * unit[1]) * inverse_norm,
        (v[2] - along * unit[2]) * inverse_norm,
    )


# --- one tile ---------------------------------------------------------------------------------------------------


@triton.jit
def own_tile(program, tile_order):
    """Which tile of its range a program takes: the next in `tile_order`, if there is one."""
    if tile_order is not None:
        program = tl.load(tile_order + program).to(tl.int32)
    return program


@triton.jit
def tile_pixels(program, width, height, tile_width, n_tiles, TILE: tl.constexpr, dtype: tl.constexpr):
    """Image of a tile; its pixel centers in x [1, TILE] and y [TILE, 1], which lie inside, and their flat index."""
    tile = program % n_tiles
    image = (program // n_tiles).to(tl.int64)
    x = tile % tile_width * TILE + tl.arange(0, TILE)[None, :]
    y = tile // tile_width * TILE + tl.arange(0, TILE)[:, None]
    return image, x.to(dtype) + 0.5, y.to(dtype) + 0.5, (x < width) & (y < height), (image * height + y) * width + x


# --- one Gaussian at one pixel ---------------------------------------------------------------------------------
# The exponent is kept in base 2 with the opacity folded in: alpha = min(alpha_max, 2^e). Explicit fma, and kernels
# compiled without further contraction, make forward and backward take bitwise the same decisions.


@triton.jit
def log2_alpha(record, dx, dy):
    """log2 of the unclamped alpha at offsets dx, dy from the mean; record as `_pack_kernel` writes it."""
    along_x = tl.fma(record[2] * dx, dx, record[5])
    return tl.fma(dy, tl.fma(record[4], dy, record[3] * dx), along_x)


@triton.jit
def clamped_alpha(record, e, APPROX: tl.constexpr):
    return tl.minimum(exp2(e, APPROX), record[6])


@triton.jit
def absorb(transmittance, alpha, TRANSMITTANCE_MIN: tl.constexpr):
    """One step front to back: the weight alpha T if it is added, whether it is, and T afterwards.

    A pixel that has stopped keeps its transmittance with a negative sign.
    """
    weight = alpha * transmittance
    after = transmittance - weight
    added = after > TRANSMITTANCE_MIN
    return weight, added, tl.where(added, after, -tl.abs(transmittance))


@triton.jit
def absorb_vjp(transmittance, alpha, rest, v_dot_c, APPROX: tl.constexpr):
    """One step back to front, from T behind the Gaussian to T before it.

    `rest` is the gradient of the loss by ln(T) behind it, and v_dot_c that by its weight. Returns T and `rest` before
    it, its weight, and alpha dL/d alpha.
    """
    inverse = reciprocal(1.0 - alpha, APPROX)
    transmittance = transmittance * inverse
    weight = alpha * transmittance
    gained = weight * v_dot_c
    return transmittance, rest + gained, weight, tl.fma(-rest, alpha * inverse, gained)
