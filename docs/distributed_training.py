"""Distributed training loop: Gaussians sharded over ranks, one camera per rank.

Run it with `torchrun --nproc-per-node 4 docs/distributed_training.py`.
"""

import os

import torch
import torch.distributed as dist

from tsplat import rasterization


def train(steps: int = 200) -> tuple[float, float]:
    """Returns the mean squared error over the images of all ranks, before and after training."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    n = 40
    # Each rank owns a shard of the Gaussians, in rank order, and one camera.
    shard = slice(n * rank // world_size, n * (rank + 1) // world_size)
    means = (torch.rand(n, 3, generator=generator) * 2 - 1)[shard].to(device)
    target_colors = torch.rand(n, 3, generator=generator)[shard].to(device)
    gaussians = dict(
        means=means,
        quats=torch.tensor([[1.0, 0, 0, 0]], device=device).repeat(len(means), 1),
        scales=torch.full((len(means), 3), 0.2, device=device),
        opacities=torch.full((len(means),), 0.8, device=device),
    )
    viewmat = torch.eye(4, device=device)
    viewmat[:3, 3] = torch.tensor([0.3 * rank, 0.0, 4.0])
    camera = dict(
        viewmats=viewmat[None],
        Ks=torch.tensor([[[40.0, 0, 24], [0, 40, 18], [0, 0, 1]]], device=device),
        width=48,
        height=36,
    )
    # The image of this rank's camera shows the Gaussians of all ranks.
    with torch.no_grad():
        target, _, _ = rasterization(**gaussians, colors=target_colors, **camera, distributed=True)
    colors = torch.full_like(target_colors, 0.5).requires_grad_()
    optimizer = torch.optim.Adam([colors], lr=0.05)
    losses = []
    for _ in range(steps):
        image, _, meta = rasterization(**gaussians, colors=colors, **camera, distributed=True)
        assert meta["received"]["means2d"].shape[0] <= n
        # Gradients of all ranks' losses are summed, so a mean over all images divides by the world size.
        loss = (image - target).square().mean() / world_size
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
