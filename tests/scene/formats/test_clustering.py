"""k-means in two levels."""

import pytest
import torch

from tsplat.scene.formats.clustering import cluster


def test_separate_blobs_are_found():
    generator = torch.Generator().manual_seed(1)
    centers = torch.randn(6, 4, generator=generator) * 10
    blobs = torch.arange(600) % 6
    rows = centers[blobs] + 0.01 * torch.randn(600, 4, generator=generator)
    centroids, labels = cluster(rows, 60)
    assert len(centroids) <= 60
    assert labels.unique().numel() == len(centroids)
    assert float((rows - centroids[labels]).abs().max()) < 0.1


@pytest.mark.parametrize("n_clusters", [1, 2, 50, 399])
def test_centroids_are_the_means_of_their_rows(n_clusters):
    rows = torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centroids, labels = cluster(rows, n_clusters)
    assert len(centroids) <= n_clusters
    assert labels.shape == (400,)
    error = (rows - centroids[labels]).square().sum()
    means = (
        torch.zeros_like(centroids).index_add_(0, labels, rows)
        / torch.bincount(labels, minlength=len(centroids)).clamp_min(1)[:, None]
    )
    # Ten iterations do not converge quite.
    assert float((rows - means[labels]).square().sum()) == pytest.approx(float(error), rel=0.05)
    spread = (rows - rows.mean(0)).square().sum()
    assert float(error) <= float(spread) * (1.01 if n_clusters == 1 else 0.9 if n_clusters == 2 else 0.2)


def test_few_rows_are_clusters_themselves():
    rows = torch.randn(7, 3)
    centroids, labels = cluster(rows, 7)
    assert torch.equal(centroids[labels], rows)


def test_equal_rows_have_one_centroid():
    centroids, labels = cluster(torch.ones(100, 3), 10)
    assert torch.equal(centroids[labels], torch.ones(100, 3))


def test_results_are_the_same_in_every_run():
    rows = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    first, second = cluster(rows, 20), cluster(rows, 20)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
