# ruff: noqa: N999 - the name in simple_knn
"""The function of ``simple_knn._C``: distances to nearest neighbors, from which Inria's programs initialize scales."""

from torch import Tensor

from .... import ArgumentError, ShapeError
from ....arguments import check_tensor
from ....scene.gaussians import NEIGHBORS, neighbor_distances

__all__ = ["distCUDA2"]


def distCUDA2(points: Tensor) -> Tensor:  # noqa: N802 - the name in simple_knn
    """Computes the mean squared distance of each point to its three nearest neighbors.

    Args:
        points: [N, 3] on any device, N >= 4. The search runs on the CPU.

    Returns:
        [N], with the dtype and device of ``points``.

    Raises:
        ArgumentError: The shape is invalid, or a value is not finite.
        MissingExtraError: SciPy is not installed.
    """
    check_tensor("points", points, [None, 3], "[N, 3]")
    if len(points) <= NEIGHBORS:
        raise ShapeError(f"points: expected at least {NEIGHBORS + 1}, found {len(points)}")
    if not points.isfinite().all():
        raise ArgumentError("points: expected finite values, found NaN or infinity; remove those points")
    return neighbor_distances(points).square().mean(-1).to(points)
