"""The names of ``gsplat.compression.sort``: an order in which neighbors in an image are similar."""

import importlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .... import ShapeError
from ....scene import morton_order

__all__ = ["sort_splats"]

SORT_KEYS = ("means", "quats", "scales", "opacities", "sh0")
"""Parameters that PLAS compares."""


def sort_splats(splats: Mapping[str, Tensor], verbose: bool = True) -> dict[str, Tensor]:
    """Sorts Gaussians so that neighbors in images of n x n pixels are similar, which compresses better.

    Uses Parallel Linear Assignment Sorting (Morgenstern et al., arXiv 2312.13299) if the package ``plas`` is installed,
    and otherwise the Morton order of the means, which makes files larger.

    Args:
        splats: Parameters by name, [N, ...] each, where N is a square number; must include ``means`` [N, 3].
        verbose: Whether PLAS prints its progress.

    Returns:
        The parameters in the new order.

    Raises:
        ArgumentError: N is not a square number.
    """
    n = len(splats["means"])
    side = math.isqrt(n)
    if side**2 != n:
        raise ShapeError(f"splats: expected a square number of Gaussians, found {n}")
    if n == 0:
        return dict(splats)
    order = _plas_order(splats, side, verbose)
    if order is None:
        order = morton_order(splats["means"].detach())
    return {name: tensor[order] for name, tensor in splats.items()}


@torch.no_grad()
def _plas_order(splats: Mapping[str, Tensor], side: int, verbose: bool) -> Tensor | None:
    """Returns ids [N] in the order of PLAS, or None if it is not installed."""
    try:
        plas = importlib.import_module("plas")
    except ModuleNotFoundError as error:
        if error.name != "plas":
            raise
        return None
    columns = [splats[name].reshape(side**2, -1) for name in SORT_KEYS if name in splats]
    # PLAS starts from a random order.
    shuffled = torch.randperm(side**2, generator=torch.Generator().manual_seed(0)).to(columns[0].device)
    grid = torch.cat(columns, 1)[shuffled].reshape(side, side, -1).permute(2, 0, 1)
    _, places = plas.sort_with_plas(grid, improvement_break=1e-4, verbose=verbose)
    return shuffled[places.flatten()]
