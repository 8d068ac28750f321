"""Fits Gaussians that are shared out over ranks: `torchrun --nproc-per-node 4 docs/distributed_way.py`."""

import os

import torch
import torch.distributed as dist

from tsplat import rasterization


def train(steps: int = 200) -> tuple[float, float]:
    """Mean squared error over the pictures of all ranks, before and after."""
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    n = 40

    def scene(rows: slice) -> dict[str, torch.Tensor]:
        generator.manual_seed(0)
        means = torch.rand(n, 3, generator=generator) * 2 - 1
        return {
            "means": means[rows].to(device),
            "quats": torch.tensor([[1.0, 0, 0, 0]], device=device).repeat(len(means[rows]), 1),
            "scales": torch.full((len(means[rows]), 3), 0.2, device=device),
            "opacities": torch.full((len(means[rows]),), 0.8, device=device),
        }

    # Each rank owns some of the Gaussians, rank by rank, and a camera of its own.
    rows = slice(n * rank // world, n * (rank + 1) // world)
    own = scene(rows)
    truth = torch.rand(n, 3, generator=generator)[rows].to(device)
    colors = torch.full_like(truth, 0.5).requires_grad_()
    viewmat = torch.eye(4, device=device)
    viewmat[:3, 3] = torch.tensor([0.3 * rank, 0.0, 4.0])
    camera = dict(
        viewmats=viewmat[None],
        Ks=torch.tensor([[[40.0, 0, 24], [0, 40, 18], [0, 0, 1]]], device=device),
        width=48,
        height=36,
    )
    # With the Gaussians of all ranks, the picture of this rank's camera.
    with torch.no_grad():
        target, _, _ = rasterization(**own, colors=truth, **camera, distributed=True)
    optimizer = torch.optim.Adam([colors], lr=0.05)
    losses = []
    for _ in range(steps):
        picture, _, meta = rasterization(**own, colors=colors, **camera, distributed=True)
        assert meta["received"]["means2d"].shape[0] <= n
        # Gradients of all ranks' losses add up on the owner, so that a mean is divided by their number.
        loss = (picture - target).square().mean() / world
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total))
    return losses[0], losses[-1]


if __name__ == "__main__":
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    print("rank {}: error {:.5f} -> {:.5f}".format(dist.get_rank(), *train()))
    dist.destroy_process_group()
