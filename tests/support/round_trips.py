"""Checks the largest errors of models after writing and reading, as documented by the writers."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tsplat.scene import Gaussians, morton_order
from tsplat.scene.formats import compressed_ply, sog_writer, spz_writer
from tsplat.scene.model_rows import as_rows, codes_of
from tsplat.scene.quantization import levels, valid_bounds
from tsplat.scene.sh_colors import sh0_to_colors

FLOAT_EPSILON = 2.0**-22
"""Relative error of a few operations in float32."""

CHUNK = 256
EXACT_PALETTE = 1 << 14
LINEAR = ("glb", "gltf", "usda", "usdc", "usdz")
"""Formats that store float32 parameters after activation."""

WRITERS = {"compressed-ply": compressed_ply, "spz": spz_writer, "sog": sog_writer}

ANGLES = {
    "splat": 2 * math.sqrt(4) / 2 / 127,
    "compressed-ply": 2 * math.sqrt(6) / 1023,
    "spz": 2 * math.sqrt(3) / (math.sqrt(2) * 511),
    "sog": 2 * math.sqrt(6) / 255,
}
"""Format -> largest angle between rotations, 2 sqrt(3) times the step of the three smallest components."""


class RoundTripError(AssertionError):
    """A value differs by more than its format allows."""


def angles_between(one: Gaussians, other: Gaussians) -> Tensor:
    """Returns the angles between the rotations, [N], in radians."""
    quats = []
    for gaussians in (one, other):
        quat = gaussians.quats.double()
        quats.append(quat / quat.norm(dim=1, keepdim=True))
    chords = torch.minimum((quats[0] - quats[1]).norm(dim=1), (quats[0] + quats[1]).norm(dim=1))
    return 4 * (chords / 2).clamp(max=1).asin()


def check_round_trip(format: str, gaussians: Gaussians, found: Gaussians, origin: Sequence[float] = ()) -> None:
    """Compares the Gaussians read from a file with those written to it.

    Args:
        origin: Offset of the means in the file, in double precision; empty for none.
    """
    if origin and len(gaussians) == len(found):
        means = gaussians.means.double()
        # Rounding of sums in double precision, of differences from the origin, and of float32.
        tolerance = 2.0**-51 * (max(map(abs, origin)) + means.abs()) + FLOAT_EPSILON * means.abs()
        _check(f"{format}: means relative to an origin", found.means, gaussians.means, tolerance)
        found = dataclasses.replace(found, means=gaussians.means)
    if format == "splat":
        gaussians = dataclasses.replace(gaussians, antialiased=False)
    wrote, read = ((len(one), one.sh_degree, one.antialiased) for one in (gaussians, found))
    if wrote != read:
        raise RoundTripError(f"{format}: wrote (count, SH degree, antialiased) {wrote}, read {read}")
    if not found.valid.all():
        raise RoundTripError(f"{format}: invalid values were read")
    if not len(gaussians):
        return
    if format == "ply":
        for name, tensor in gaussians.tensors().items():
            if not torch.equal(tensor, found.tensors()[name]):
                raise RoundTripError(f"{format}: {name} differs")
        return
    if format in LINEAR:
        _check_linear(format, gaussians, found)
        return
    format = "spz" if format == "spz4" else format
    order = file_order(format, gaussians)
    format = "sog" if format == "streamed-sog" else format
    expected = gaussians.map(lambda tensor: tensor[order])
    CHECKS[format](expected, found)
    _check(f"{format}: opacities", found.opacities, expected.opacities, 0.5 / 255 + 2e-6)
    # In float32, the largest component has a second-order error.
    _check(f"{format}: rotations", angles_between(found, expected), torch.zeros(len(found)), 1.02 * ANGLES[format])


def _check(name: str, found: Tensor, expected: Tensor, tolerance: Tensor | float) -> None:
    errors = (found.double() - expected.double()).abs() - tolerance
    if errors.numel() and not float(errors.max()) <= 0:
        i = int(errors.argmax())
        raise RoundTripError(
            f"{name}: expected {expected.flatten()[i]}, found {found.flatten()[i]}, "
            f"{float(errors.max()):.3g} beyond the tolerance"
        )


def file_order(format: str, gaussians: Gaussians) -> Tensor:
    """Returns the ids of the Gaussians in file order; for Streamed SOG, in the order of its finest level."""
    if format == "streamed-sog":
        return morton_order(gaussians.means)
    if format == "splat":
        alphas = levels(gaussians.opacity_logits.double().sigmoid().numpy() * 255)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scales = gaussians.log_scales.double().exp().numpy().astype(np.float32)
            sizes = np.log(scales.astype(np.float64)).sum(1) + np.log(alphas)
        return torch.from_numpy(np.argsort(-sizes, kind="stable"))
    writer = WRITERS[format]
    if format == "compressed-ply":
        return torch.from_numpy(writer.encode_means(gaussians.means.numpy())[0])
    rows = as_rows(gaussians)
    bounds = valid_bounds(rows)
    return torch.from_numpy(np.argsort(codes_of(rows, writer.mean_rounding(bounds), bounds), kind="stable"))


def _check_linear(format: str, expected: Gaussians, found: Gaussians) -> None:
    for name in ("means", "sh0", "shN"):
        _check(f"{format}: {name}", getattr(found, name), getattr(expected, name), 0)
    log_scales = expected.log_scales.clamp(-20, 20)
    _check(f"{format}: log scales", found.log_scales, log_scales, 1e-7 + FLOAT_EPSILON * log_scales.abs())
    _check(f"{format}: opacities", found.opacities, expected.opacities, 1.2e-6)
    _check(f"{format}: rotations", angles_between(found, expected), torch.zeros(len(found)), 1e-6)


def _check_splat(expected: Gaussians, found: Gaussians) -> None:
    _check("splat: means", found.means, expected.means, 0)
    log_scales = expected.log_scales.clamp(-80, 80)
    tolerance = 1e-7 + FLOAT_EPSILON * log_scales.abs()
    _check("splat: log scales", found.log_scales.clamp(-80, 80), log_scales, tolerance)
    _check("splat: colors", sh0_to_colors(found.sh0), sh0_to_colors(expected.sh0).clamp(0, 1), 0.5 / 255 + 1e-6)


def _check_compressed_ply(expected: Gaussians, found: Gaussians) -> None:
    chunk_ids = torch.arange(len(expected)) // CHUNK

    def tolerance(values: Tensor, levels: Tensor | int) -> Tensor:
        """Returns half of the distance between levels in each chunk."""
        chunks = values.double().split(CHUNK)
        sizes = torch.stack([chunk.amax(0) - chunk.amin(0) for chunk in chunks])[chunk_ids]
        return 0.5 * sizes / levels + 2 * FLOAT_EPSILON * values.abs().amax(0)

    levels = torch.tensor([2047, 1023, 2047])
    log_scales = expected.log_scales.clamp(-20, 20)
    _check("compressed-ply: means", found.means, expected.means, tolerance(expected.means, levels))
    _check("compressed-ply: log scales", found.log_scales, log_scales, tolerance(log_scales, levels))
    # Bounds are stored as colors, 0.5 + 0.28 sh0.
    sh0 = expected.sh0[:, 0]
    _check("compressed-ply: sh0", found.sh0[:, 0], sh0, tolerance(sh0, 255) + 8 * FLOAT_EPSILON)
    _check("compressed-ply: shN", found.shN, expected.shN.clamp(-4, 4), 1 / 32 + 1e-6)


def _check_spz(expected: Gaussians, found: Gaussians) -> None:
    exponent = math.frexp(float(expected.means.abs().max()))[1]
    step = max(2.0 ** (exponent - 24), 2.0 ** (min(exponent, 0) - 13), 2.0**-25)
    _check("spz: means", found.means, expected.means, step)
    log_scales = expected.log_scales.clamp(-10, 5.9375)
    if found.surfels:  # All third scales are the smallest of the format.
        _check("spz: third log scales", torch.full((len(found),), -10.0), log_scales[:, 2], 1 / 32 + 1e-5)
    n = found.n_scales
    _check("spz: log scales", found.log_scales[:, :n], log_scales[:, :n], 1 / 32 + 1e-5)
    _check("spz: sh0", found.sh0, expected.sh0.clamp(-10 / 3, 10 / 3), 1 / 76.5 + 1e-5)
    shN = expected.shN.clamp(-1, 1)
    _check("spz: shN", found.shN, shN, torch.where(shN.abs() <= 127 / 128, 1 / 256 + 1e-6, 1 / 128))


def _check_sog(expected: Gaussians, found: Gaussians) -> None:
    logs, found_logs = (torch.copysign(x.abs().log1p(), x) for x in (expected.means.double(), found.means.double()))
    size, largest = logs.amax(0) - logs.amin(0), logs.abs().amax(0)
    _check("sog: means", found_logs, logs, 0.5 * size / 65535 + 2 * FLOAT_EPSILON * largest)
    log_scales = expected.log_scales.clamp(-20, 20)
    scales = log_scales.double().exp()
    others = torch.stack([scales.roll(-k, 1)[:, 1:].amax(1) for k in range(3)], 1) if len(expected) else scales
    shown = scales * others * expected.opacities.double().square()[:, None]
    shown = shown.clamp_min(1e-6 * float(shown.mean()) + 1e-37 if len(expected) else 0)
    _check_codebook("sog: log scales", found.log_scales, log_scales, shown)
    _check_codebook("sog: sh0", found.sh0, expected.sh0, shown.amax(1)[:, None, None] if len(expected) else shown)
    if len(expected) <= EXACT_PALETTE:
        _check_codebook("sog: shN", found.shN, expected.shN)


def _check_codebook(name: str, found: Tensor, expected: Tensor, weights: float | Tensor = 1.0) -> None:
    """Checks that there are at most 256 values, each the nearest one, with a smaller error than equidistant values."""
    if not expected.numel():
        return
    if expected.unique().numel() <= 256:
        _check(name, found, expected, 0)
        return
    entries, values = found.double().unique(), expected.double()
    if len(entries) > 256:
        raise RoundTripError(f"{name}: expected at most 256 values, found {len(entries)}")
    middles = (entries[1:] + entries[:-1]) / 2
    nearest = entries[torch.bucketize(values, middles)]
    tolerance = (nearest - values).abs() + FLOAT_EPSILON * values.abs()
    _check(f"{name} (nearest entry)", found, expected, tolerance)
    step = float(values.max() - values.min()) / 255
    equal = values.min() + ((values - values.min()) / step).round() * step
    rms, without = (float((weights * (x - values).square()).mean().sqrt()) for x in (found.double(), equal))
    if rms > without:
        raise RoundTripError(f"{name}: the codebook has a weighted RMS error of {rms:.3g}, {without:.3g} without one")


CHECKS = {"splat": _check_splat, "compressed-ply": _check_compressed_ply, "spz": _check_spz, "sog": _check_sog}
