"""Clusters rows by two-level k-means, for tens of thousands of clusters, and single values by k-means."""

import dataclasses
import heapq
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...precision import in_full_precision

ITERATIONS = 10
VALUE_ITERATIONS = 100
BLOCK = 1 << 22
"""Number of distances that are computed at a time."""


@dataclasses.dataclass(frozen=True)
class Clusters:
    """Centroids in groups, so that the nearest centroid of a row is found in two steps.

    Attributes:
        centroids: [K, D] centroids, group by group.
        groups: [G, D] centroids of the groups.
        starts: Index of the first centroid of each group, followed by K.
    """

    centroids: Tensor
    groups: Tensor
    starts: list[int]

    @staticmethod
    @torch.no_grad()
    def fit(rows: Tensor, n_clusters: int) -> "Clusters":
        """Clusters more than `n_clusters` rows [N, D] by Euclidean distance.

        Rows are clustered into about sqrt(n_clusters) groups, and then within each group. The time is proportional to N
        D sqrt(n_clusters).
        """
        n = len(rows)
        generator = torch.Generator().manual_seed(0)
        n_groups = math.isqrt(n_clusters)
        groups = _k_means(rows, n_groups, generator)
        group_ids = _nearest(rows, groups)
        sizes = torch.bincount(group_ids, minlength=n_groups)
        centroids, starts = [], [0]
        for ids in torch.split(group_ids.argsort(stable=True), sizes.tolist()):
            if len(ids):
                # Proportional to the size of the group, and at least one. The sum is at most n_clusters.
                centroids.append(_k_means(rows[ids], 1 + len(ids) * (n_clusters - n_groups) // n, generator))
                starts.append(starts[-1] + len(centroids[-1]))
        return Clusters(torch.cat(centroids), groups[sizes > 0], starts)

    @torch.no_grad()
    def nearest(self, rows: Tensor) -> Tensor:
        """Returns the index of the nearest centroid in the nearest group for each row, [N] int64."""
        group_ids = _nearest(rows, self.groups)
        labels = torch.empty_like(group_ids)
        sizes = torch.bincount(group_ids, minlength=len(self.groups)).tolist()
        for group, ids in enumerate(torch.split(group_ids.argsort(stable=True), sizes)):
            first, last = self.starts[group], self.starts[group + 1]
            if len(ids):
                labels[ids] = _nearest(rows[ids], self.centroids[first:last]) + first
        return labels


def _k_means(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Clusters rows by Lloyd's algorithm (1982), starting from random rows. Returns centroids [min(k, N), D]."""
    n = len(rows)
    if n <= k:
        return rows
    centroids = rows[torch.randperm(n, generator=generator, device="cpu")[:k].to(rows.device)]
    for _ in range(ITERATIONS):
        labels = _nearest(rows, centroids)
        counts = torch.bincount(labels, minlength=k)[:, None]
        sums = torch.zeros_like(centroids).index_add_(0, labels, rows)
        centroids = torch.where(counts > 0, sums / counts.clamp_min(1), centroids)
    return centroids


@in_full_precision
def _nearest(rows: Tensor, centroids: Tensor) -> Tensor:
    """Returns the index of the nearest centroid for each row, [N] int64."""
    squares = centroids.square().sum(1)
    parts = torch.split(rows, max(BLOCK // len(centroids), 1))
    return torch.cat([torch.addmm(squares, part, centroids.T, alpha=-2).argmin(1) for part in parts])


def cluster_values(
    values: NDArray[Any], n_clusters: int, weights: NDArray[Any] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Clusters single values by k-means with weighted squared errors.

    The initial clusters are created by repeatedly splitting the cluster with the largest squared error at its mean.
    Returns centers [K], K <= n_clusters, in ascending order, and the index of the nearest center of each value, in the
    shape of `values`. If at most `n_clusters` values are different, the centers are these values.
    """
    distinct, inverse, counts = np.unique(values.astype(np.float32), return_inverse=True, return_counts=True)
    centers = distinct
    if len(distinct) > n_clusters:
        # In float64, because sums of squares of large values overflow float32.
        points, sums = distinct.astype(np.float64), counts.astype(np.float64)
        if weights is not None:
            sums = np.bincount(inverse.reshape(-1), weights.reshape(-1)).astype(np.float64)
        starts = _halve(points, sums, n_clusters)
        for _ in range(VALUE_ITERATIONS):
            means = np.add.reduceat(points * sums, starts) / np.add.reduceat(sums, starts)
            new_starts = np.unique(np.append(0, np.searchsorted(points, (means[1:] + means[:-1]) / 2)))
            if np.array_equal(new_starts, starts):
                break
            starts = new_starts[new_starts < len(points)]
        centers = np.unique((np.add.reduceat(points * sums, starts) / np.add.reduceat(sums, starts)).astype("f4"))
    return centers, nearest_values(centers, distinct)[inverse].reshape(values.shape)


def nearest_values(centers: NDArray[np.float32], values: NDArray[Any]) -> NDArray[np.intp]:
    """Returns the index of the nearest center for each value, in the shape of `values`; centers are ascending."""
    middles = (centers[1:].astype(np.float64) + centers[:-1]) / 2
    return np.searchsorted(middles, values.astype(np.float64))


def _halve(points: NDArray[np.float64], weights: NDArray[np.float64], n_parts: int) -> NDArray[np.intp]:
    """Divides sorted points into parts with small squared errors. Returns the index of the first point of each part."""

    def part(start: int, end: int) -> tuple[float, int, int, int]:
        """Returns the negated squared error of a part, its start, the start of its upper half, and its end."""
        part_points, part_weights = points[start:end], weights[start:end]
        mean = np.average(part_points, weights=part_weights)
        middle = start + int(np.searchsorted(part_points, mean, "right"))
        return -float(part_weights @ np.square(part_points - mean)), start, middle, end

    parts = [part(0, len(points))]
    while len(parts) < n_parts:
        error, start, middle, end = parts[0]
        if error == 0 or not start < middle < end:
            break
        heapq.heapreplace(parts, part(start, middle))
        heapq.heappush(parts, part(middle, end))
    return np.array(sorted(start for _, start, _, _ in parts), np.intp)
