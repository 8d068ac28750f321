"""Validation: marks Gaussians with values out of bounds or zero quaternions, and replaces invalid cameras.

Invalid cameras are replaced by cameras that see nothing. The kernel also computes camera centers, for spherical
harmonics. One lane per Gaussian; in the first programs, lanes also process cameras.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import DETERMINANT_MIN, FOCAL_MIN, MAGNITUDE_MAX, QUAT_NORM_MIN, Numerics
from ..data import Cameras, Gaussians3D
from .device_math import constant, dot, load_tuple, store_tuple
from .launch import Int, kernel
from .row_access import ROW, row_within

BLOCK = 128

NO_GAUSSIANS = Gaussians3D._make([None] * len(Gaussians3D._fields))
NO_CAMERAS = Cameras._make([None] * len(Cameras._fields))
"""Bundles in which all fields are None. Kernels test their fields, as Triton 3.6 cannot compare a bundle with None."""

LARGEST = tl.constexpr(MAGNITUDE_MAX)
SQUARE_MIN = tl.constexpr(QUAT_NORM_MIN**2)
DETERMINANT, FOCAL = tl.constexpr(DETERMINANT_MIN), tl.constexpr(FOCAL_MIN)


@triton.jit
def _within(pointer, mask, N: tl.constexpr):
    """Returns whether N consecutive values are within bounds."""
    if N >= ROW:
        return row_within(pointer, N, mask, LARGEST)
    valid = mask
    for k in range(N):
        # NaN fails the comparison.
        valid = valid & (tl.abs(tl.load(pointer + k, mask=mask, other=0.0).to(tl.float32)) <= LARGEST)
    return valid


@triton.jit
def _signal_within(
    signal, gaussian, mask, n_gaussians, n_cameras, WIDTH: tl.constexpr, PER_CAMERA: tl.constexpr
):  # fmt: skip
    """Returns whether the values of a signal are within bounds, for all cameras."""
    if signal is None:
        return mask
    elif PER_CAMERA:
        valid = mask
        batch = gaussian // n_gaussians
        for camera in range(n_cameras):
            dense_id = (batch * n_cameras + camera) * n_gaussians + gaussian % n_gaussians
            valid = valid & _within(signal + dense_id * WIDTH, mask, WIDTH)
        return valid
    else:
        return _within(signal + gaussian * WIDTH, mask, WIDTH)


@triton.jit
def _cross(a, b):
    """Returns the cross product. Only one product per entry is rounded, as in PyTorch's operator."""
    return (
        tl.fma(a[1], b[2], -(a[2] * b[1])),
        tl.fma(a[2], b[0], -(a[0] * b[2])),
        tl.fma(a[0], b[1], -(a[1] * b[0])),
    )


@triton.jit
def _camera_center(v, BY_INVERSE: tl.constexpr):
    """Returns the camera center of a view matrix (16 entries): -R^-1 t, or -R^T t unless BY_INVERSE."""
    x, y, z = (v[0], v[1], v[2]), (v[4], v[5], v[6]), (v[8], v[9], v[10])
    if not BY_INVERSE:
        center = ()
        for k in tl.static_range(3):
            center = center + (-(v[3] * x[k] + v[7] * y[k] + v[11] * z[k]),)
        return center
    else:
        # The columns of R^-1 are the cross products of the rows of R, divided by the determinant.
        yz, zx, xy = _cross(y, z), _cross(z, x), _cross(x, y)
        det = dot(x, yz)
        center = ()
        for k in tl.static_range(3):
            center = center + (-(v[3] * yz[k] + v[7] * zx[k] + v[11] * xy[k]) / det,)
        return center


@triton.jit
def _replace_invalid(v, k, mask):
    """Checks a camera, view matrix v (16 entries) and intrinsics k (9).

    Returns whether it is valid, and the view matrix and intrinsics, replaced by ones that see nothing if invalid.
    """
    bound = constant(LARGEST, v[0])
    valid = mask
    for i in tl.static_range(16):
        valid = valid & (tl.abs(v[i]) <= bound)
    for i in tl.static_range(9):
        valid = valid & (tl.abs(k[i]) <= bound)
    det = dot(_cross((v[0], v[1], v[2]), (v[4], v[5], v[6])), (v[8], v[9], v[10]))
    valid = valid & (tl.abs(det) >= constant(DETERMINANT, det))
    for i in tl.static_range(2):
        valid = valid & (tl.abs(k[4 * i]) >= constant(FOCAL, det))
    viewmat = ()
    for i in tl.static_range(16):
        # Everything up to MAGNITUDE_MAX is behind this camera.
        away = constant(-4.0 * LARGEST if i == 11 else float(i % 5 == 0), det)
        viewmat = viewmat + (tl.where(valid, v[i], away),)
    K = ()
    for i in tl.static_range(9):
        K = K + (tl.where(valid, k[i], constant(float(i % 4 == 0), det)),)
    return valid, viewmat, K


@kernel
def _valid_kernel(
    gaussians: "Gaussians3D",  # ``valid`` is output; all None if only centers are computed
    colors,  # [B, N, WIDTH] or [B, C, N, WIDTH], any float dtype; or None
    shN,  # [B, N, SHN_WIDTH], or None
    extra_signals,  # as colors, with EXTRA_WIDTH
    cameras: "Cameras",
    prepared: "Cameras",  # output, or all None
    centers,  # [B, C, 3], output
    valid_cameras,  # [B, C] bool, output, or None
    n: "Int", n_gaussians: "Int", n_cameras: "Int", n_images: "Int",
    WIDTH: tl.constexpr, PER_CAMERA: tl.constexpr, SHN_WIDTH: tl.constexpr,
    EXTRA_WIDTH: tl.constexpr, EXTRA_PER_CAMERA: tl.constexpr, BY_INVERSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds valid Gaussians, replaces invalid cameras, and computes camera centers. One lane per Gaussian or camera."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if gaussians.means is not None:
        mask = index < n
        is_valid = _within(gaussians.means + index * 3, mask, 3)
        if gaussians.covars is not None:
            is_valid = is_valid & _within(gaussians.covars + index * 6, mask, 6)
        else:
            is_valid = is_valid & _within(gaussians.scales + index * 3, mask, 3)
            is_valid = is_valid & _within(gaussians.quats + index * 4, mask, 4)
            q = load_tuple(gaussians.quats + index * 4, 1, 4, mask)
            square = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]
            is_valid = is_valid & (square >= constant(SQUARE_MIN, square))
        is_valid = is_valid & _within(gaussians.opacities + index, mask, 1)
        is_valid = is_valid & _signal_within(colors, index, mask, n_gaussians, n_cameras, WIDTH, PER_CAMERA)
        is_valid = is_valid & _signal_within(shN, index, mask, n_gaussians, n_cameras, SHN_WIDTH, False)
        is_valid = is_valid & _signal_within(
            extra_signals, index, mask, n_gaussians, n_cameras, EXTRA_WIDTH, EXTRA_PER_CAMERA
        )  # fmt: skip
        tl.store(gaussians.valid + index, is_valid, mask=mask)
    if tl.program_id(0) * BLOCK < n_images:
        mask = index < n_images
        v = load_tuple(cameras.viewmats + index * 16, 1, 16, mask)
        if prepared.viewmats is not None:
            k = load_tuple(cameras.Ks + index * 9, 1, 9, mask)
            is_valid, v, k = _replace_invalid(v, k, mask)
            store_tuple(prepared.viewmats + index * 16, 1, v, mask)
            store_tuple(prepared.Ks + index * 9, 1, k, mask)
            tl.store(valid_cameras + index, is_valid, mask=mask)
        store_tuple(centers + index * 3, 1, _camera_center(v, BY_INVERSE), mask)


def find_valid(
    gaussians: Gaussians3D | None, signals: dict[str, tuple[Tensor, bool]], cameras: Cameras, numerics: Numerics
) -> tuple[Tensor | None, Cameras, Tensor, Tensor | None]:
    """Finds valid Gaussians, replaces invalid cameras, and computes camera centers. All tensors are contiguous.

    A Gaussian is valid if its values, including signals for all cameras, are at most MAGNITUDE_MAX in magnitude and its
    quaternion is not zero.

    Args:
        gaussians: Gaussians with opacities; None to check nothing and to leave cameras unchanged.
        signals: The given ones of ``colors``, ``shN`` and ``extra_signals``: tensors [..., N, ...] with False, or per
            camera [..., C, N, ...] with True.
        cameras: The cameras.
        numerics: The preset, which defines camera centers.

    Returns:
        Whether each Gaussian is valid, [..., N] bool or None; the cameras, with invalid ones replaced; the camera
        centers [B, C, 3] in the world frame; whether each camera was valid, [B, C] bool or None.
    """
    viewmats, Ks = cameras.viewmats, cameras.Ks
    n_batches, n_cameras, _, _ = viewmats.shape
    n_images = n_batches * n_cameras
    centers, prepared, valid, valid_cameras, n = viewmats.new_empty(n_batches, n_cameras, 3), None, None, None, 0
    if gaussians is not None:
        prepared = cameras._replace(viewmats=torch.empty_like(viewmats), Ks=torch.empty_like(Ks))
        valid_cameras = torch.empty(n_batches, n_cameras, dtype=torch.bool, device=Ks.device)
        valid = torch.empty(gaussians.means.shape[:-1], dtype=torch.bool, device=Ks.device)
        gaussians, n = gaussians._replace(valid=valid), valid.numel()
    none = None, False
    (colors, per_camera), (extra_signals, extra_per_camera) = (
        signals.get(name, none) for name in ("colors", "extra_signals")
    )
    shN, _ = signals.get("shN", none)
    _valid_kernel.launch_elementwise(
        max(n, n_images),
        BLOCK,
        gaussians=gaussians or NO_GAUSSIANS,
        colors=colors,
        shN=shN,
        extra_signals=extra_signals,
        cameras=Cameras(viewmats, Ks),
        prepared=NO_CAMERAS if prepared is None else Cameras(prepared.viewmats, prepared.Ks),
        centers=centers,
        valid_cameras=valid_cameras,
        n=n,
        n_gaussians=max(n // max(n_batches, 1), 1),
        n_cameras=n_cameras,
        n_images=n_images,
        WIDTH=_width(colors, n * n_cameras if per_camera else n),
        PER_CAMERA=per_camera,
        SHN_WIDTH=_width(shN, n),
        EXTRA_WIDTH=_width(extra_signals, n * n_cameras if extra_per_camera else n),
        EXTRA_PER_CAMERA=extra_per_camera,
        BY_INVERSE=numerics.camera_center == "inverse",
        enable_fp_fusion=False,
    )
    return valid, prepared or cameras, centers, valid_cameras


def _width(signal: Tensor | None, n: int) -> int:
    """Returns the number of values per element of a signal with n elements; 0 for None."""
    return 0 if signal is None else signal.numel() // max(n, 1)
