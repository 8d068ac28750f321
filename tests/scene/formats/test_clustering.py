"""k-means of rows in two levels, and of single values."""

import numpy as np
import pytest
import torch

from tsplat.scene.formats.clustering import Clusters, cluster_values


def cluster(rows, n_clusters):
    clusters = Clusters.fit(rows, n_clusters)
    return clusters.centroids, clusters.nearest(rows)


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


def test_equal_rows_have_one_centroid():
    centroids, labels = cluster(torch.ones(100, 3), 10)
    assert torch.equal(centroids[labels], torch.ones(100, 3))


def test_results_are_the_same_in_every_run():
    rows = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    first, second = cluster(rows, 20), cluster(rows, 20)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_few_values_are_clusters_themselves():
    values = np.array([[3.0, 1], [3, -2]], np.float32)
    centers, indices = cluster_values(values, 3)
    assert centers.tolist() == [-2, 1, 3]
    assert indices.tolist() == [[2, 1], [2, 0]]
    assert [len(array) for array in cluster_values(np.zeros((0, 3)), 4)] == [0, 0]


def test_values_have_the_nearest_center():
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    centers, indices = cluster_values(values, 16)
    distances = np.abs(values[:, None] - centers)
    assert len(centers) == 16
    assert (distances[np.arange(5000), indices] <= distances.min(1) + 1e-7).all()
    # The centers are the means of their values, to which Lloyd's algorithm converges.
    means = np.bincount(indices, values) / np.bincount(indices)
    assert np.abs(means - centers).max() < 2e-3


def test_error_of_values_is_nearly_that_of_an_optimal_quantizer():
    # Max (1960): the smallest squared error of 16 levels for a normal distribution is 0.009497.
    values = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    centers, indices = cluster_values(values, 16)
    assert np.square(values - centers[indices]).mean() < 0.0098


def test_outliers_do_not_coarsen_other_values():
    values = np.append(np.random.default_rng(0).normal(size=5000), [1e30, -1e20, 1e10]).astype(np.float32)
    centers, indices = cluster_values(values, 64)
    assert (centers[indices] == values)[-3:].all()
    assert np.abs(centers[indices] - values)[:-3].max() < 0.5


def test_weights_of_values_move_centers():
    values = np.array([0.0, 1, 2, 3, 100, 101])
    centers, _ = cluster_values(values, 2, np.array([1.0, 1, 1, 1, 1e-9, 1e-9]))
    assert np.allclose(centers, [0.5, 2.5], atol=1e-3)
    assert np.allclose(cluster_values(values, 2)[0], [1.5, 100.5])
