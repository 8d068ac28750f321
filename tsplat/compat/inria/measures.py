"""Computes the statistics of projected Gaussians that forks of Inria's rasterizer return; none is differentiable."""

import torch
from torch import Tensor

from ...config import PRESETS
from ...data import Splats
from ...functional.tile_lists import TileLists
from ...output_maps import DISTORTIONS, MEDIANS
from ...stages.compositing import composite_once
from ..contributions import Contributions

FARTHEST = 15.0
"""Median depth of pixels whose transmittance stays above 0.5, as in the rasterizer of Dynamic 3D Gaussians."""


@torch.no_grad()
def median_depths(splats: Splats, depths: Tensor, lists: TileLists, numerics: str) -> Tensor:
    """Returns the depth of the Gaussian at which transmittance falls to 0.5, [1, H, W], given depths [N]."""
    settings = lists.settings(PRESETS[numerics], "auto", outputs=(DISTORTIONS, MEDIANS))
    splats = splats._replace(colors=depths[:, None])
    maps = composite_once(splats, None, *lists.arrange({"means2d": splats.means2d}, 1), settings)
    alphas, rows = maps["alphas"], maps["median_rows"]
    medians = torch.nn.functional.pad(depths, (0, 1))[rows.long()]  # -1 selects the padding
    return torch.where((rows >= 0) & (alphas[..., 0] > 0.5), medians, FARTHEST)


def sum_weights(splats: Splats, lists: TileLists, numerics: str) -> Tensor:
    """Returns the sum over pixels of the weights of Gaussians [N], computed as the gradient of colors of a summed
    image."""
    with torch.enable_grad():
        ones = torch.ones_like(splats.opacities)[:, None].requires_grad_()
        settings = lists.settings(PRESETS[numerics], "auto")
        maps = composite_once(
            splats._replace(colors=ones), None, *lists.arrange({"means2d": splats.means2d}, 1), settings
        )
        return torch.autograd.grad(maps["colors"].sum(), ones)[0][:, 0]


@torch.no_grad()
def measure(splats: Splats, lists: TileLists, numerics: str) -> dict[str, Tensor]:
    """Computes per-Gaussian statistics over all pixels in PyTorch; :data:`.returns.OUTPUTS` describes them."""
    n, device = len(splats.opacities), splats.means2d.device
    counts = {name: torch.zeros(n, dtype=torch.int32, device=device) for name in ("count", "n_touched", "observed")}
    sums = {name: splats.means2d.new_zeros(n) for name in ("weights", "score", "max_count")}
    for _, own, _, blocks in Contributions.of(splats, lists, PRESETS[numerics]).walk_tiles():
        front = splats.means2d.new_ones(len(own))
        most, largest = torch.zeros_like(front), torch.zeros_like(own)
        for rows, weights, *_ in blocks:
            rows = rows.long()
            behind = front[:, None] - weights.cumsum(1)
            before = behind + weights
            reached = weights > 0
            flags = dict(count=reached, n_touched=reached & (behind > 0.5), observed=reached & (before > 0.5))
            for name, which in flags.items():
                counts[name].index_add_(0, rows, which.sum(0, dtype=torch.int32))
            sums["weights"].index_add_(0, rows, weights.sum(0))
            sums["score"].index_add_(0, rows, (before * reached).sum(0) * splats.opacities[rows])
            best, place = weights.max(1)
            largest = torch.where(best > most, rows[place], largest)
            most, front = torch.maximum(most, best), behind[:, -1]
        sums["max_count"].index_add_(0, largest, (most > 0).to(most.dtype))
    return counts | sums
