"""The names of ``gsplat.color_correct`` of gsplat 1.6: fits the colors of an image to another image."""

import torch
from torch import Tensor

from ... import ShapeError
from ...precision import in_full_precision

__all__ = ["color_correct_affine", "color_correct_quadratic"]

VARIANCE_MIN = 1e-8
SLOPE_MIN = 1e-8


@in_full_precision
def color_correct_affine(img: Tensor, ref: Tensor) -> Tensor:
    """Corrects each channel with an affine function: fits img = a ref + b and returns (img - b) / a.

    Args:
        img: [..., C] colors.
        ref: The same shape.

    Returns:
        The corrected image, clipped to [0, 1]. Differentiable.

    Raises:
        ShapeError: The shapes differ.
    """
    x, y = _rows(img, ref)
    mean_x, mean_y = x.mean(0), y.mean(0)
    slope = ((x - mean_x) * (y - mean_y)).mean(0) / (y - mean_y).square().mean(0).clamp_min(VARIANCE_MIN)
    offset = mean_x - slope * mean_y
    slope = torch.where(slope.abs() < SLOPE_MIN, 1.0, slope)
    return ((x - offset) / slope).clamp(0, 1).view_as(img)


@in_full_precision
def color_correct_quadratic(img: Tensor, ref: Tensor, num_iters: int = 5, eps: float = 0.5 / 255) -> Tensor:
    """Corrects colors with quadratic functions of all channels, fitted to unclipped pixels by least squares.

    Each round fits each channel of ``ref`` as a linear combination of all products of two channels, all channels, and
    1.

    Args:
        img: [..., C] colors.
        ref: The same shape.
        num_iters: Number of rounds.
        eps: A value counts as clipped if it is closer than this to 0 or 1 in the first image, the current image or
            ``ref``.

    Returns:
        The corrected image, clipped to [0, 1] after each round.

    Raises:
        ShapeError: The shapes differ.
    """
    first, target = _rows(img, ref)
    n_channels = first.shape[1]

    def unclipped(values: Tensor) -> Tensor:
        return (values >= eps) & (values <= 1 - eps)

    valid = unclipped(first)
    left, right = torch.triu_indices(n_channels, n_channels, device=img.device)
    colors = first
    for _ in range(num_iters):
        terms = torch.cat([colors[:, left] * colors[:, right], colors, torch.ones_like(colors[:, :1])], 1)
        corrected = []
        for channel in range(n_channels):
            used = valid[:, channel] & unclipped(colors[:, channel]) & unclipped(target[:, channel])
            rows = (terms * used[:, None]).double()
            # Normal equations in fp64, with the pseudoinverse, because terms of few or equal pixels are dependent.
            inverse = torch.linalg.pinv(rows.T @ rows, hermitian=True)
            weights = inverse @ (rows.T @ target[:, channel].double())
            corrected.append((terms * weights.to(terms.dtype)).sum(1))
        colors = torch.stack(corrected, 1).clamp(0, 1)
    return colors.view_as(img)


def _rows(img: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """Checks two images [..., C] and returns their pixels. [P, C] each"""
    if img.shape != ref.shape:
        raise ShapeError(f"ref: expected {list(img.shape)} as img, found {list(ref.shape)}")
    return img.reshape(-1, img.shape[-1]), ref.reshape(-1, ref.shape[-1])
