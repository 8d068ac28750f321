"""Quantization for the compressed formats: converts parameters before activation to stored integers and back."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ArgumentError, FileError, UnsupportedError
from .formats.foreign import Warn
from .gaussians import FLAT, PARAMETERS, Gaussians
from .model_rows import ModelProperties, Rows, as_rows
from .sh_colors import colors_to_sh0

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

OPACITY_MARGIN = 1e-6
"""Opacities are clamped to [OPACITY_MARGIN, 1 - OPACITY_MARGIN], so that their logits are finite."""

OPACITY_TOLERANCE = 1e-3
"""Tolerance for opacities in files outside of [0, 1]."""

LOG_SCALE_MAX = 20.0
"""Log scales are clamped to plus or minus this value if a format cannot store infinity."""

DECODED_NORM_TOLERANCE = 1e-5
"""Largest deviation of the norm of a decoded quaternion from 1, due to rounding to float32."""

OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
"""Indices of the other three components of a quaternion, for each index of the largest one."""


def sh0_from_colors(colors: NDArray[Any]) -> Floats:
    """Converts RGB colors, of any shape, to spherical harmonics coefficients of degree 0."""
    return colors_to_sh0(colors.astype(np.float64)).astype(np.float32)


def gaussians_from_arrays(
    means: NDArray[Any],
    log_scales: NDArray[Any],
    quats: NDArray[Any],
    opacities: NDArray[Any],
    sh0: NDArray[Any],
    shN: NDArray[Any],
    antialiased: bool = False,
) -> Gaussians:
    """Returns float32 Gaussians from parameters before activation, except for opacities [N] in [0, 1], which are
    clamped so that their logits are finite."""
    clamped = np.clip(opacities.astype(np.float64), OPACITY_MARGIN, 1 - OPACITY_MARGIN)
    arrays = (means, log_scales, quats, np.log(clamped / (1 - clamped)), sh0, shN)
    tensors = (torch.from_numpy(np.ascontiguousarray(array, np.float32)) for array in arrays)
    return Gaussians(**dict[str, Any](zip(PARAMETERS, tensors, strict=True)), antialiased=antialiased)


def gaussians_from_activated(
    path: str,
    means: NDArray[Any],
    scales: NDArray[Any],
    quats: NDArray[Any],
    opacities: NDArray[Any],
    sh: NDArray[Any],
    warn: Warn,
    flat: float = FLAT,
) -> Gaussians:
    """Returns the Gaussians of a format that stores scales after exp, and opacities after the sigmoid.

    Args:
        path: Path of the file, for messages.
        means, scales, quats, opacities: [N, 3], [N, 3], [N, 4] wxyz, [N].
        sh: [N, K, 3] spherical harmonics coefficients of all degrees.
        warn: Called with a note about negative scales, which make Gaussians invalid, and about opacities outside of [0,
            1], which are clamped.
        flat: Third log scale that marks 2D Gaussians.

    Raises:
        FileError: Most scales look like logarithms, or most opacities like logits.
    """
    _check_activated(path, scales, opacities, warn)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_scales = np.log(scales.astype(np.float64))
        gaussians = gaussians_from_arrays(means, log_scales, quats, opacities, sh[:, :1], sh[:, 1:])
    return gaussians.as_surfels_if_flat(flat)


def _check_activated(path: str, scales: NDArray[Any], opacities: NDArray[Any], warn: Warn) -> None:
    """Checks scales and opacities for :func:`gaussians_from_activated`."""
    n = len(scales)
    advice = "export the model again with a program that stores"
    n_negative = int((scales < 0).any(1).sum())
    if 2 * n_negative > n:
        raise FileError(
            f"{path}: expected scales after exp, which are positive, found negative ones in {n_negative:,} of {n:,} "
            f"Gaussians; they look like logarithms: {advice} scales"
        )
    if n_negative:
        warn(f"{path}: {n_negative:,} of {n:,} Gaussians have negative scales, which makes them invalid")
    n_outside = int(((opacities < -OPACITY_TOLERANCE) | (opacities > 1 + OPACITY_TOLERANCE)).sum())
    if 2 * n_outside > n:
        raise FileError(
            f"{path}: expected opacities after the sigmoid, in [0, 1], found others in {n_outside:,} of {n:,} "
            f"Gaussians; they look like logits: {advice} opacities"
        )
    if n_outside:
        warn(f"{path}: {n_outside:,} of {n:,} Gaussians have opacities outside of [0, 1], which are clamped")


def signed_log(values: NDArray[Any]) -> NDArray[np.float64]:
    """Returns sign(x) log(1 + |x|), the scale on which SOG quantizes positions."""
    logs: NDArray[np.float64] = np.copysign(np.log1p(np.abs(values, dtype=np.float64)), values)
    return logs


def signed_exp(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the inverse of :func:`signed_log`."""
    return np.copysign(np.expm1(np.abs(logs)), logs)


def interpolate(low: NDArray[Any] | float, high: NDArray[Any] | float, fractions: NDArray[Any]) -> NDArray[Any]:
    """Interpolates between bounds; fractions of 0 and 1 give them exactly."""
    return low * (1 - fractions) + high * fractions


def fractions_of(low: NDArray[np.float64], high: NDArray[np.float64], values: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the fractions of values between bounds, the inverse of :func:`interpolate`; 0 between equal bounds."""
    fractions: NDArray[np.float64] = (values - low) / np.where(high > low, high - low, 1)
    return fractions


def quats_from_smallest_three(others: NDArray[Any], largest: NDArray[Any]) -> Floats:
    """Reconstructs unit quaternions from their three smallest components; the largest one is positive.

    Args:
        others: [N, 3] the stored components, in the order of the quaternion.
        largest: [N] index (0 to 3) of the omitted component.

    Returns:
        [N, 4], components in the order of the format.
    """
    quats = np.empty((len(others), 4), np.float32)
    np.put_along_axis(quats, OTHERS[largest], others.astype(np.float32), 1)
    omitted = np.sqrt(np.maximum(1 - np.square(others, dtype=np.float64).sum(1), 0)).astype(np.float32)
    np.put_along_axis(quats, largest[:, None].astype(np.intp), omitted[:, None], 1)
    return quats


def smallest_three_from_quats(
    quats: NDArray[Any], omitted: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Normalizes quaternions and omits the largest component of each; the inverse of :func:`quats_from_smallest_three`.

    Args:
        quats: [N, 4], any nonzero norm.
        omitted: Index of the component to omit instead of the largest one.

    Returns:
        The other components [N, 3] and the index of the omitted one [N].
    """
    unit = quats.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    largest = np.abs(unit).argmax(1) if omitted is None else np.full(len(unit), omitted)
    unit *= np.where(np.take_along_axis(unit, largest[:, None], 1) < 0, -1, 1)
    return np.take_along_axis(unit, OTHERS[largest], 1), largest


def rotation_codes(
    quats: NDArray[Any],
    encode: Callable[[NDArray[np.float64], NDArray[np.intp]], NDArray[Any]],
    decode: Callable[[NDArray[Any]], Floats],
) -> NDArray[Any]:
    """Encodes rotations by their three smallest components; encoding decoded rotations returns the same codes.

    If a code represents a rotation exactly, the rotation gets this code, even if rounding has changed which component
    is the largest.

    Args:
        quats: [N, 4], in the order of the format.
        encode: Converts the results of :func:`smallest_three_from_quats` to codes [N, ...].
        decode: Converts codes to quaternions [N, 4].
    """

    def replace_exact(quats: NDArray[Any], codes: NDArray[Any]) -> NDArray[Any]:
        norms = np.linalg.norm(quats.astype(np.float64), axis=1)
        rows = np.flatnonzero(np.abs(norms - 1) < DECODED_NORM_TOLERANCE)
        for omitted in range(4):
            new_codes = encode(*smallest_three_from_quats(quats[rows], omitted))
            is_exact = (decode(new_codes) == quats[rows]).all(1)
            codes[rows[is_exact]] = new_codes[is_exact]
            rows = rows[~is_exact]
        return codes

    codes = replace_exact(quats, encode(*smallest_three_from_quats(quats)))
    return replace_exact(decode(codes), codes)


def check_valid(gaussians: Gaussians) -> None:
    """Raises `ArgumentError` if a Gaussian is invalid."""
    valid_bounds(as_rows(gaussians))


def valid_bounds(rows: Rows) -> Floats:
    """Returns the bounds of the means, [2, 3]; zeros if there are no Gaussians.

    Raises `ArgumentError` if a Gaussian is invalid, because the formats cannot represent NaN or zero quaternions.
    """
    n_invalid, low, high = 0, np.full(3, np.inf, np.float32), np.full(3, -np.inf, np.float32)
    for chunk in rows.chunks():
        n_invalid += int((~chunk.valid).sum())
        means = chunk.means.numpy()
        low, high = np.minimum(low, means.min(0)), np.maximum(high, means.max(0))
    if n_invalid:
        raise ArgumentError(
            f"gaussians: {n_invalid} of {rows.count} have values that are not finite, or quaternions of zeros; remove "
            "them with gaussians.map(lambda tensor: tensor[gaussians.valid]) or tsplat edit --drop-invalid"
        )
    return np.stack([low, high]) if rows.count else np.zeros((2, 3), np.float32)


def check_degree(gaussians: Gaussians | ModelProperties, name: str, degree_max: int = 3) -> None:
    """Raises `UnsupportedError` if the format called `name` does not support the Gaussians' SH degree."""
    if gaussians.sh_degree > degree_max:
        others = "" if name == "SPZ 4" else "; SPZ 4 (spz4) holds degree 4, or remove the highest degree"
        raise UnsupportedError(
            f"sh_degree: expected at most {degree_max} for {name}, found {gaussians.sh_degree}{others}"
        )


class Rounding:
    """Rounds values to integers like :func:`rounded`, but takes the rows in several parts."""

    def __init__(self) -> None:
        self._turns: Any = 0

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float64]:
        values = values.astype(np.float64)
        lower = np.floor(values)
        is_midway = values == lower + 0.5
        turns = self._turns + np.cumsum(is_midway.any(-1, keepdims=True) if values.ndim > 1 else is_midway, 0)
        if len(turns):
            self._turns = turns[-1]
        if values.ndim > 2:
            turns = turns + np.arange(values.shape[1])[:, None]
        nearest: NDArray[np.float64] = np.where(is_midway, lower + turns % 2, np.rint(values))
        return nearest

    def levels(self, values: NDArray[Any]) -> Bytes:
        """Rounds values to bytes; clamps them to [0, 255]."""
        return np.clip(self(values), 0, 255).astype(np.uint8)


def rounded(values: NDArray[Any]) -> NDArray[np.float64]:
    """Rounds values [N, ...] to integers; values midway between two integers are rounded up and down alternately.

    This keeps the mean of equal values. All channels of a row, along the last axis, are rounded in the same direction,
    so that equal channels stay equal.
    """
    return Rounding()(values)


def levels(values: NDArray[Any]) -> Bytes:
    """Rounds values to bytes with :func:`rounded`; clamps them to [0, 255]."""
    return Rounding().levels(values)
