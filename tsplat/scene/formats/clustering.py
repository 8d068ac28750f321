"""k-means in two levels: for tens of thousands of clusters, which a search through all of them would make slow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ITERATIONS = 10
BLOCK = 1 << 22
"""Distances that are computed at a time."""


@torch.no_grad()
def cluster(rows: Tensor, n_clusters: int) -> tuple[Tensor, Tensor]:
    """Clusters rows by Euclidean distance: first into about sqrt(n_clusters) groups, and then each group by itself.

    The time is proportional to N D sqrt(n_clusters). If there are at most `n_clusters` rows, each is a cluster.

    Args:
        rows: [N, D] fp32 or fp64.
        n_clusters: Upper bound of the number of clusters, at least 1.

    Returns:
        Centroids [K, D] with K <= n_clusters, and the cluster of each row [N] int64.
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
