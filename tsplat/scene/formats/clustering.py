"""k-means of rows in two levels, for tens of thousands of clusters, and of single values."""

import heapq
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ITERATIONS = 10
VALUE_ITERATIONS = 100
BLOCK = 1 << 22
"""Distances that are computed at a time."""


@torch.no_grad()
def cluster(rows: Tensor, n_clusters: int) -> tuple[Tensor, Tensor]:
    """Clusters rows by Euclidean distance: first into about sqrt(n_clusters) groups, and then each group by itself.

    The time is proportional to N D sqrt(n_clusters). If there are at most `n_clusters` rows, each is a cluster. Returns
    centroids [K, D] with K <= n_clusters, and the cluster of each row [N] int64.
    """
    n = len(rows)
    generator = torch.Generator().manual_seed(0)
    if n <= n_clusters:
        return _k_means(rows, n, generator)
    n_groups = math.isqrt(n_clusters)
    _, groups = _k_means(rows, n_groups, generator)
    sizes = torch.bincount(groups, minlength=n_groups).tolist()
    labels = torch.empty_like(groups)
    centroids: list[Tensor] = []
    n_found = 0
    for ids in torch.split(groups.argsort(stable=True), sizes):
        if not len(ids):
            continue
        # In proportion to the size of the group, and at least one. The sum is at most n_clusters.
        own, own_labels = _k_means(rows[ids], 1 + len(ids) * (n_clusters - n_groups) // n, generator)
        labels[ids] = own_labels + n_found
        centroids.append(own)
        n_found += len(own)
    return torch.cat(centroids), labels


def _k_means(rows: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm (1982), starting from random rows. Returns centroids [min(k, N), D] and labels [N]."""
    n = len(rows)
    if n <= k:
        return rows, torch.arange(n, device=rows.device)
    centroids = rows[torch.randperm(n, generator=generator)[:k].to(rows.device)]
    for _ in range(ITERATIONS):
        labels = _nearest(rows, centroids)
        counts = torch.bincount(labels, minlength=k)[:, None]
        sums = torch.zeros_like(centroids).index_add_(0, labels, rows)
        centroids = torch.where(counts > 0, sums / counts.clamp_min(1), centroids)
    return centroids, _nearest(rows, centroids)


def _nearest(rows: Tensor, centroids: Tensor) -> Tensor:
    """Returns the nearest centroid of each row, [N] int64."""
    squares = centroids.square().sum(1)
    parts = torch.split(rows, max(BLOCK // len(centroids), 1))
    return torch.cat([torch.addmm(squares, part, centroids.T, alpha=-2).argmin(1) for part in parts])


def cluster_values(
    values: NDArray[Any], n_clusters: int, weights: NDArray[Any] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Clusters single values by k-means, with weights of squared errors.

    The first clusters are found by halving the one with the largest squared error at its mean again and again. Returns
    centers [K], K <= n_clusters, in increasing order, and the index of the nearest center of each value, in the shape
    of `values`. The centers are the values themselves if at most `n_clusters` are different.
    """
    distinct, inverse, counts = np.unique(values.astype(np.float32), return_inverse=True, return_counts=True)
    centers = distinct
    if len(distinct) > n_clusters:
        # float64, because sums of squares of large values overflow float32.
        points, sums = distinct.astype(np.float64), counts.astype(np.float64)
        if weights is not None:
            sums = np.bincount(inverse.reshape(-1), weights.reshape(-1)).astype(np.float64)
        starts = _halve(points, sums, n_clusters)
        for _ in range(VALUE_ITERATIONS):
            means = np.add.reduceat(points * sums, starts) / np.add.reduceat(sums, starts)
            found = np.unique(np.append(0, np.searchsorted(points, (means[1:] + means[:-1]) / 2)))
            if np.array_equal(found, starts):
                break
            starts = found[found < len(points)]
        centers = np.unique((np.add.reduceat(points * sums, starts) / np.add.reduceat(sums, starts)).astype("f4"))
    middles = (centers[1:].astype(np.float64) + centers[:-1]) / 2
    return centers, np.searchsorted(middles, distinct)[inverse].reshape(values.shape)


def _halve(points: NDArray[np.float64], weights: NDArray[np.float64], n_parts: int) -> NDArray[np.intp]:
    """Divides sorted points into parts of small squared error. Returns the first point of each part."""

    def part(start: int, end: int) -> tuple[float, int, int, int]:
        """Returns minus the squared error of a part, its start, the start of its upper half, and its end."""
        own, own_weights = points[start:end], weights[start:end]
        mean = np.average(own, weights=own_weights)
        middle = start + int(np.searchsorted(own, mean, "right"))
        return -float(own_weights @ np.square(own - mean)), start, middle, end

    parts = [part(0, len(points))]
    while len(parts) < n_parts:
        error, start, middle, end = parts[0]
        if error == 0 or not start < middle < end:
            break
        heapq.heapreplace(parts, part(start, middle))
        heapq.heappush(parts, part(middle, end))
    return np.array(sorted(start for _, start, _, _ in parts), np.intp)
