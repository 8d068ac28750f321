"""Morton order of points: neighbors in memory are neighbors in space."""

import torch
from torch import Tensor

from ..arguments import check_tensor

BITS = 21
"""Bits per coordinate; three coordinates fit into an int64."""


@torch.no_grad()
def morton_order(points: Tensor) -> Tensor:
    """Returns ids [N] int64 that sort points [N, 3] along a Morton curve through their bounding box (Morton, 1966).

    Gaussians that are visible together are then close in memory. Apply the ids to every parameter and to the optimizer
    state. Non-finite points come last.

    Raises:
        ArgumentError: Not a floating-point tensor [N, 3].
    """
    check_tensor("points", points, [None, 3], "[N, 3]")
    return morton_codes(points).argsort(stable=True)


@torch.no_grad()
def morton_codes(points: Tensor, bounds: Tensor | None = None) -> Tensor:
    """Returns codes [N] int64 of points [N, 3]: interleaved 21-bit coordinates in the bounding box, x lowest.

    `bounds` [2, 3] is the box; None stands for the bounding box of the points.
    """
    finite = points.isfinite().all(-1)
    known = points[finite].double() if bounds is None else bounds.double()
    if not len(known):
        return torch.full((len(points),), torch.iinfo(torch.int64).max, device=points.device, dtype=torch.int64)
    low = known.amin(0)
    size = (known.amax(0) - low).amax().clamp_min(torch.finfo(torch.float64).tiny)
    cells = ((points.double() - low) / size * (2**BITS - 1)).nan_to_num(0).clamp(0, 2**BITS - 1).to(torch.int64)
    x, y, z = (_spread(cell) for cell in cells.unbind(-1))
    return torch.where(finite, x | y << 1 | z << 2, torch.iinfo(torch.int64).max)


def _spread(cell: Tensor) -> Tensor:
    """Inserts two zeros between adjacent bits of 21-bit integers."""
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        cell = (cell | cell << shift) & mask
    return cell
