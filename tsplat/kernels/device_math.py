"""Device functions shared by kernels. The vector-Jacobian product of a function ``foo`` is ``foo_vjp``, next to it.

Vectors and matrices are tuples of tensors of the same shape, so nothing here depends on block sizes. A 3-vector is
``(x, y, z)``. A 3×3 matrix is its nine entries, row by row. A symmetric matrix is its upper triangle, row by row (00 01
02 11 12 22, or 00 01 11). The gradient of a symmetric matrix is with respect to the triangle: an off-diagonal entry is
the sum of the gradients of both entries of the full matrix. ``add``, ``times`` and ``where`` take tuples of any length.

Functions work in any dtype: kernels run in fp32, and in tests also in fp64. ``FAST`` is true for fp32 on NVIDIA GPUs,
see ``launch.has_fast_fp32``. It selects approximate exp2 and reciprocal (2 ulp and 1 ulp, subnormals flushed), wide
loads, and addresses by PTX. ``PTX`` selects NVIDIA's instructions that do not depend on the dtype, such as ``popc``.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language import core


class RotatedGaussian(NamedTuple):
    """Mean, rotation matrix and scales of a Gaussian; its unit quaternion, and 1 / norm of the given quaternion."""

    mean: Any
    rotation: Any
    scale: Any
    unit: Any
    inverse_norm: Any


@triton.jit
def exp2(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def popcount(x, PTX: tl.constexpr):
    """Returns the number of set bits of an int32."""
    if PTX:
        return tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    else:
        x = x.to(tl.uint32, bitcast=True)
        x = x - ((x >> 1) & 0x55555555)
        x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
        x = (x + (x >> 4)) & 0x0F0F0F0F
        return ((x * 0x01010101) >> 24).to(tl.int32, bitcast=True)


@triton.jit
def load4(pointer):
    """Loads four fp32 values at a 16-byte boundary with one instruction. For NVIDIA GPUs."""
    return tl.inline_asm_elementwise(
        "ld.global.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=f,=f,=f,=f,l",
        [pointer.to(tl.int64)],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def element(pointer, index, STRIDE: tl.constexpr, FAST: tl.constexpr):
    """Returns pointer + index * STRIDE, for an int32 index.

    LLVM merges product and sum into an instruction that ptxas splits into two or three. With FAST, the product is
    hidden from LLVM, and ptxas merges both into one instruction.
    """
    if FAST:
        size: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth // 8 * STRIDE
        offset = tl.inline_asm_elementwise(
            "mul.wide.s32 $0, $1, $2;", "=l,r,r", [index, size], dtype=tl.int64, is_pure=True, pack=1
        )
        return (pointer.to(tl.int64) + offset).to(pointer.dtype)
    else:
        return pointer + index.to(tl.int64) * STRIDE


@triton.jit
def constant(value, like):
    """Returns a scalar as a tensor of the dtype and shape of `like`.

    Comparisons, ``tl.minimum`` and ``tl.maximum`` round Python constants to fp32, even for fp64 tensors. Arithmetic
    operators do not.
    """
    return tl.full(like.shape, value, like.dtype)


@triton.jit
def finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def add(values, others):
    """Adds two tuples entry by entry."""
    total = ()
    for k in tl.static_range(len(values)):
        total = total + (values[k] + others[k],)
    return total


@triton.jit
def add_where(values, mask, others):
    """Adds `others` to `values`, entry by entry, where a mask is true."""
    total = ()
    for k in tl.static_range(len(values)):
        total = total + (values[k] + tl.where(mask, others[k], 0.0),)
    return total


@triton.jit
def where(mask, values, other: tl.constexpr = 0.0):
    """Returns the entries of a tuple where a mask is true, elsewhere the number `other`."""
    chosen = ()
    for k in tl.static_range(len(values)):
        chosen = chosen + (tl.where(mask, values[k], other),)
    return chosen


@triton.jit
def times(values, factor):
    """Multiplies the entries of a tuple by a factor."""
    scaled = ()
    for k in tl.static_range(len(values)):
        scaled = scaled + (values[k] * factor,)
    return scaled


@triton.jit
def size_of(values):
    """Returns the sum of the absolute values of a tuple. It is not finite if any value is not."""
    total = tl.abs(values[0])
    for k in tl.static_range(1, len(values)):
        total += tl.abs(values[k])
    return total


@triton.jit
def load_tuple(pointer, stride, N: tl.constexpr, mask=None):
    """Loads N values at pointer, pointer + stride, ...; zero where the mask is false."""
    values = ()
    for k in tl.static_range(N):
        if mask is None:
            values = values + (tl.load(pointer + k * stride),)
        else:
            values = values + (tl.load(pointer + k * stride, mask=mask, other=0.0),)
    return values


@triton.jit
def store_tuple(pointer, stride, values, mask=None, kept=None):
    """Stores values at pointer, pointer + stride, ...; stores zero where ``kept`` is false."""
    for k in tl.static_range(len(values)):
        if kept is None:
            tl.store(pointer + k * stride, values[k], mask=mask)
        else:
            tl.store(pointer + k * stride, tl.where(kept, values[k], 0.0), mask=mask)


@core.extern
def _prefetch(address, _semantic=None):
    """Prefetches the cache line of an int64 address. Implemented by ``triton_cpu``."""
    result = {(core.int64,): ("prefetch", core.int32)}
    return core.extern_elementwise("", "", [address], result, is_pure=False, _semantic=_semantic)


@triton.jit
def prefetch(pointer, N):
    """Prefetches N consecutive values in at most two cache lines. For kernels compiled for the CPU."""
    _prefetch(pointer.to(tl.int64))
    _prefetch((pointer + N - 1).to(tl.int64))


@triton.jit
def dot(a, b):
    total = a[0] * b[0]
    for k in tl.static_range(1, len(a)):
        total += a[k] * b[k]
    return total


@triton.jit
def cross3(a, b):
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@triton.jit
def matvec3(m, v):
    return dot(m[:3], v), dot(m[3:6], v), dot(m[6:], v)


@triton.jit
def matvec3_transposed(m, v):
    return dot(m[::3], v), dot(m[1::3], v), dot(m[2::3], v)


@triton.jit
def symmetric_matvec3(s, v):
    return dot(s[:3], v), dot((s[1], s[3], s[4]), v), dot((s[2], s[4], s[5]), v)


@triton.jit
def normalize4(q):
    """Returns q / |q| and 1 / |q|."""
    inverse_norm = 1.0 / tl.sqrt(dot(q, q))
    return times(q, inverse_norm), inverse_norm


@triton.jit
def normalize3(d):
    """Returns d / |d| and 1 / |d|; zero for the zero vector."""
    square = dot(d, d)
    inverse_norm = tl.where(square > 0.0, 1.0 / tl.sqrt(tl.where(square > 0.0, square, 1.0)), 0.0)
    return times(d, inverse_norm), inverse_norm


@triton.jit
def normalize_vjp(unit, inverse_norm, v):
    along = dot(unit, v)
    gradients = ()
    for k in tl.static_range(len(unit)):
        gradients = gradients + ((v[k] - along * unit[k]) * inverse_norm,)
    return gradients


@triton.jit
def rotation(q):
    """Returns the rotation matrix of a unit quaternion wxyz."""
    w, x, y, z = q
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
    w, x, y, z = q
    return (
        2.0 * (x * (v[7] - v[5]) + y * (v[2] - v[6]) + z * (v[3] - v[1])),
        2.0 * (w * (v[7] - v[5]) + y * (v[1] + v[3]) + z * (v[2] + v[6])) - 4.0 * x * (v[4] + v[8]),
        2.0 * (w * (v[2] - v[6]) + x * (v[1] + v[3]) + z * (v[5] + v[7])) - 4.0 * y * (v[0] + v[8]),
        2.0 * (w * (v[3] - v[1]) + x * (v[2] + v[6]) + y * (v[5] + v[7])) - 4.0 * z * (v[0] + v[4]),
    )


@triton.jit
def quaternion_vjp(unit, inverse_norm, v_rotation):
    """Returns the gradient of a quaternion from the gradient of its rotation matrix and results of ``normalize4``."""
    return normalize_vjp(unit, inverse_norm, rotation_vjp(unit, v_rotation))


@triton.jit
def covariance(r, s):
    """Returns R diag(s)^2 R^T, upper triangle."""
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
    """Returns gradients of R and s. With G the symmetric gradient and M = R diag(s): v_M = 2 G M."""
    g = (v[0], 0.5 * v[1], 0.5 * v[2], v[3], 0.5 * v[4], v[5])
    gx, gy, gz = symmetric_matvec3(g, r[::3]), symmetric_matvec3(g, r[1::3]), symmetric_matvec3(g, r[2::3])
    xx = 2.0 * s[0] * s[0]
    yy = 2.0 * s[1] * s[1]
    zz = 2.0 * s[2] * s[2]
    v_r = (
        xx * gx[0], yy * gy[0], zz * gz[0],
        xx * gx[1], yy * gy[1], zz * gz[1],
        xx * gx[2], yy * gy[2], zz * gz[2],
    )  # fmt: skip
    return v_r, (2.0 * s[0] * dot(gx, r[::3]), 2.0 * s[1] * dot(gy, r[1::3]), 2.0 * s[2] * dot(gz, r[2::3]))


@triton.jit
def det2(s):
    return s[0] * s[2] - s[1] * s[1]


@triton.jit
def conic(s, det):
    """Returns the upper triangle of the inverse of a symmetric 2×2 matrix with determinant det."""
    return s[2] / det, -s[1] / det, s[0] / det


@triton.jit
def conic_vjp(s, det, v):
    """Returns the gradient of s: v_S = (adj(G) - tr(S^-1 G) adj(S)) / det.

    This equals -S^-1 G S^-1, which loses precision by the condition number of S twice; this form loses it once.
    """
    inverse = 1.0 / det
    trace = (v[0] * s[2] - v[1] * s[1] + v[2] * s[0]) * inverse
    return (
        (v[2] - trace * s[2]) * inverse,
        (2.0 * trace * s[1] - v[1]) * inverse,
        (v[0] - trace * s[0]) * inverse,
    )


@triton.jit
def bounds(blurred, det, opacity, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr):
    """Returns the radii of visibility along x and y in whole pixels. Opacity may be None.

    OPACITY_AWARE: ceil(min(EXTEND, sqrt(2 ln(opacity / ALPHA_MIN))) sigma_x), and likewise for y. Otherwise both radii
    are ceil(EXTEND sqrt(lambda_max)), with the larger eigenvalue lambda_max of the covariance.
    """
    if OPACITY_AWARE:
        extend = constant(EXTEND, det)
        if opacity is not None:
            extend = tl.minimum(tl.sqrt(2.0 * tl.log(tl.maximum(opacity / ALPHA_MIN, 1.0))), extend)
        return tl.ceil(extend * tl.sqrt(blurred[0])), tl.ceil(extend * tl.sqrt(blurred[2]))
    else:
        middle = 0.5 * (blurred[0] + blurred[2])
        radius = tl.ceil(EXTEND * tl.sqrt(middle + tl.sqrt(tl.maximum(middle * middle - det, constant(0.1, det)))))
        return radius, radius


@triton.jit
def compensation(det, det_blurred, FLOOR: tl.constexpr):
    """Returns sqrt(det / det_blurred), at least FLOOR (Mip-Splatting, arXiv 2311.16493, equation 9)."""
    ratio = det / det_blurred
    return tl.sqrt(tl.maximum(ratio, constant(FLOOR * FLOOR, ratio)))


@triton.jit
def compensation_vjp(s, blurred, det, det_blurred, rho, FLOOR: tl.constexpr, v):
    """Returns the gradient of the covariance s before the blur, which adds a constant to the diagonal."""
    ratio = det / det_blurred
    free = ratio > constant(FLOOR * FLOOR, ratio)
    v_det = tl.where(free, 0.5 * v / (tl.where(free, rho, 1.0) * det_blurred), 0.0)
    v_det_blurred = -v_det * ratio
    return (
        v_det * s[2] + v_det_blurred * blurred[2],
        -2.0 * s[1] * (v_det + v_det_blurred),
        v_det * s[0] + v_det_blurred * blurred[0],
    )


@triton.jit
def gaussians_of_program(n_gaussians, BLOCK: tl.constexpr):
    """Assigns a block of Gaussians of one batch to the program. Blocks are ordered by batch.

    Returns:
        Batch; block; indices in [N]; indices in [B, N]; whether the indices are less than N.
    """
    blocks = tl.cdiv(n_gaussians, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    n = block * BLOCK + tl.arange(0, BLOCK)
    mask = n < n_gaussians
    return batch, block, n, batch * n_gaussians + n, mask


@triton.jit
def packed_rows_of(row_of, index, mask):
    """Returns the rows of indices into [B, C, N], and which have one. ``row_of`` is None if rows are not packed."""
    if row_of is not None:
        row = tl.load(row_of + index, mask=mask, other=-1).to(tl.int64)
        return row, row >= 0
    else:
        return index, mask


@triton.jit
def load_rotated(gaussians, i, mask):
    """Loads a :class:`RotatedGaussian` of each index, from means, quaternions and scales."""
    mean = load_tuple(gaussians.means + i * 3, 1, 3, mask)
    unit, inverse_norm = normalize4(load_tuple(gaussians.quats + i * 4, 1, 4, mask))
    r = rotation(unit)
    scale = load_tuple(gaussians.scales + i * 3, 1, 3, mask)
    return RotatedGaussian(mean=mean, rotation=r, scale=scale, unit=unit, inverse_norm=inverse_norm)


@triton.jit
def search_starts(starts, n, child, steps):
    """Returns the parent of each child by binary search: the last p in [0, n) with starts[p] <= child."""
    return _search_between(starts, child * 0, child * 0 + n, child, steps)


@triton.jit
def search_starts_of_block(starts, n, child, steps, ON_CPU: tl.constexpr):
    """Same as ``search_starts``, for a block of mostly consecutive children less than ``starts[n]``.

    Gathers are slow on a CPU. There, only the parent of the smallest child is searched for in the whole range. The
    other parents are searched for between this one and the parent of the largest child.
    """
    if ON_CPU:
        first, last = tl.min(child), tl.max(child)
        low = search_starts(starts, n, first, steps)
        width = 1
        near = 0
        while tl.load(starts + tl.minimum(low + width, n)) <= last:
            width *= 2
            near += 1
        low += child * 0
        return _search_between(starts, low, tl.minimum(low + width, n), child, near)
    else:
        return search_starts(starts, n, child, steps)


@triton.jit
def _search_between(starts, low, high, child, steps):
    for _ in range(steps):
        middle = (low + high) // 2
        after = tl.load(starts + middle) <= child
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
    return low
