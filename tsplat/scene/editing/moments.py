"""Merges Gaussians into their neighbors, preserving total weight, mean and covariance."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ...config import SH_NORMS
from ...functional.projection import quat_scale_to_covar_preci
from ...precision import identity
from ...support.extras import require
from ..gaussians import Gaussians
from ..rotation import positive_quaternions

N_CANDIDATES = 8
"""Number of nearest neighbors that are candidates to merge into."""

DISTANCE_MAX = 3.0
"""Maximum Mahalanobis distance for merging; a Gaussian that is farther from its neighbors is removed."""

COLOR_SCALE = 0.1
"""Color difference that counts like a Mahalanobis distance of 1."""

OPACITY_MIN, OPACITY_MAX = 1e-6, 0.999
"""Range of the opacities of merged Gaussians."""

BLOCK = 1 << 16
"""Number of Gaussians whose neighbors are compared at a time, which limits memory."""


@torch.no_grad()
def merge_into_neighbors(gaussians: Gaussians, kept: Tensor, weights: Tensor) -> Gaussians:
    """Merges all Gaussians except the `kept` ones [N] bool into kept neighbors, and returns these.

    Each Gaussian is merged into the closest of its nearest kept neighbors, by color and by Mahalanobis distance in the
    sum of both covariances. The mean, covariance and spherical harmonics of a merged Gaussian are those of the mixture
    of its parts, weighted by `weights` [N], their sums of alpha times transmittance over pixels. Its opacity is chosen
    so that opacity times area grows by the same factor as the weight. Takes O(N log N).
    """
    keepers, others = kept.nonzero().squeeze(1), (~kept).nonzero().squeeze(1)
    covariances = quat_scale_to_covar_preci(gaussians.quats, gaussians.scales, compute_preci=False)[0]
    assert covariances is not None
    targets, is_close = _find_targets(gaussians, covariances, keepers, others)
    is_merged = is_close & (weights[others] > 0) & (weights[keepers[targets]] > 0)
    others, targets = others[is_merged], targets[is_merged]
    # Groups of Gaussians to merge; the first of each group is kept.
    touched, groups = torch.unique(targets, return_inverse=True)
    owners = keepers[touched]
    members = torch.cat([owners, others])
    groups = torch.cat([torch.arange(len(owners), device=groups.device), groups])

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(len(owners), *values.shape[1:]).index_add(0, groups, values)

    totals = summed(weights[members])
    shares = weights[members] / totals[groups]

    def mean(values: Tensor) -> Tensor:
        return summed(shares.to(values).view(-1, *[1] * (values.dim() - 1)) * values[members])

    means = mean(gaussians.means)
    offsets = gaussians.means[members] - means[groups]
    spreads = shares[:, None, None] * (covariances[members] + offsets[:, :, None] * offsets[:, None, :])
    variances, axes = torch.linalg.eigh(summed(spreads))
    scales = variances.clamp_min(torch.finfo(variances.dtype).tiny).sqrt()
    old_mass = gaussians.opacities[owners] * _area(gaussians.scales[owners])
    opacities = old_mass * totals / weights[owners] / _area(scales)
    changed = {
        "means": means,
        "log_scales": scales.log(),
        "quats": positive_quaternions(axes * torch.linalg.det(axes).sign()[:, None, None]),
        "opacity_logits": opacities.nan_to_num(OPACITY_MIN).clamp(OPACITY_MIN, OPACITY_MAX).logit(),
        "sh0": mean(gaussians.sh0),
        "shN": mean(gaussians.shN),
    }
    tensors: dict[str, Any] = {name: tensor[keepers] for name, tensor in gaussians.tensors().items()}
    for name, values in changed.items():
        tensors[name][touched] = values.to(tensors[name])
    return dataclasses.replace(gaussians, **tensors)


def _find_targets(gaussians: Gaussians, covariances: Tensor, keepers: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Returns for each of the others the index of the keeper to merge into, and whether it is close enough, [M]
    each."""
    require("scipy")
    from scipy.spatial import cKDTree

    means, colors = gaussians.means, gaussians.sh0[:, 0] * SH_NORMS[0][0]
    points = means.double().cpu().numpy()
    n_candidates = min(N_CANDIDATES, len(keepers))
    tree = cKDTree(points[keepers.cpu().numpy()])
    neighbors = tree.query(points[others.cpu().numpy()], k=range(1, n_candidates + 1))[1]
    candidates = torch.from_numpy(neighbors).to(keepers.device)
    targets, is_close = [others.new_zeros(0)], [others.new_zeros(0, dtype=torch.bool)]
    for own, near in zip(torch.split(others, BLOCK), torch.split(candidates, BLOCK)):
        rows = keepers[near]
        sums = covariances[own][:, None] + covariances[rows]
        # Flat Gaussians have singular covariances.
        trace = sums.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        sums = sums + (1e-6 * trace + torch.finfo(sums.dtype).tiny) * identity(3).to(sums)
        offsets = means[rows] - means[own][:, None]
        distances = (offsets * torch.linalg.solve_ex(sums, offsets)[0]).sum(-1)
        differences = (colors[rows] - colors[own][:, None]).square().sum(-1) / COLOR_SCALE**2
        best = (distances + differences).nan_to_num(torch.inf).argmin(1, keepdim=True)
        targets.append(near.gather(1, best).squeeze(1))
        is_close.append(distances.gather(1, best).squeeze(1) < DISTANCE_MAX**2)
    return torch.cat(targets), torch.cat(is_close)


def _area(scales: Tensor) -> Tensor:
    """Returns the product of the two longest axes. [N, 3] -> [N]"""
    return scales.sort(-1).values[:, 1:].prod(-1)
