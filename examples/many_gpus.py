# %% [markdown]
# # Train on many GPUs
#
# With `rasterization(..., distributed=True)`, each process of a group, called a rank, holds a shard of the Gaussians
# and renders cameras of its own, with the Gaussians of all ranks. Memory for Gaussians, gradients and Adam's moments
# is divided by the number of ranks, and a step averages as many views as there are ranks.
#
# ```sh
# torchrun --nproc-per-node 4 examples/many_gpus.py    # on one machine with four GPUs
# torchrun --nproc-per-node 2 examples/many_gpus.py    # also without a GPU, on the CPU
# python examples/many_gpus.py                         # a single process: a group of one
# ```

# %%
import os

import torch
import torch.distributed as dist

from tsplat import l1_ssim_loss, rasterization
from tsplat.ops import Adam
from tsplat.scene import Gaussians, procedural_capture, write_model
from tsplat.training import psnr

STEPS = 200
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)

# %% [markdown]
# `torchrun` starts the processes and sets what `init_process_group` reads. A process that was started otherwise, such
# as a notebook, is a group of its own.

# %%
backend = "nccl" if device.type == "cuda" else "gloo"
if dist.is_torchelastic_launched():
    dist.init_process_group(backend)
else:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
rank, world_size = dist.get_rank(), dist.get_world_size()

# %% [markdown]
# ## Shards
#
# All ranks make the same initial Gaussians and keep the rows of their shard. Optimizers are local: each updates the
# parameters of its rank.

# %%
capture = procedural_capture(128, 96, n_train=24, n_test=2, n_points=4000).to(device)
background = torch.tensor([capture.background], device=device)
start = Gaussians.from_points(capture.points, capture.colors, sh_degree=1)
shard = slice(len(start) * rank // world_size, len(start) * (rank + 1) // world_size)
splats = start.map(lambda tensor: tensor[shard].clone().requires_grad_())
print(f"rank {rank} of {world_size}: {len(splats)} of {len(start)} Gaussians on {device}")

rates = [5e-3, 2e-2, 1.5e-2, 5e-2, 1.5e-2, 1.5e-3]
groups = [{"params": [tensor], "lr": rate} for tensor, rate in zip(splats.tensors().values(), rates)]
optimizer = Adam(groups, eps=1e-15)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.2 ** (1 / STEPS))


def render(view):
    """The image of this rank's view, [H, W, 3], which shows the Gaussians of all ranks."""
    (image,), _, _ = rasterization(
        splats.means, splats.quats, splats.scales, splats.opacities, splats.sh_coeffs(1), view.camera.viewmat[None],
        view.camera.K[None], view.width, view.height, sh_degree=1, backgrounds=background, distributed=True,
    )  # fmt: skip
    return image


@torch.no_grad()
def test_psnr():
    """Mean PSNR of the test views. All ranks take part in every call of rasterization, here with equal views."""
    return sum(float(psnr(render(view).clamp(0, 1), view.pixels)) for view in capture.test) / len(capture.test)


# %% [markdown]
# ## Training
#
# In each step, every rank has another view. The backward pass sends gradients to the ranks that hold the Gaussians,
# where those of all views are summed: dividing each loss by the number of ranks makes it a mean. There is nothing to
# reduce by hand, and no `DistributedDataParallel`.

# %%
before = test_psnr()
for step in range(STEPS):
    view = capture.train[(step * world_size + rank) % len(capture.train)]
    loss = l1_ssim_loss(render(view), view.pixels) / world_size
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
after = test_psnr()
if rank == 0:
    print(f"PSNR {before:.2f} -> {after:.2f} dB on test views")
assert after > before + 3

# %% [markdown]
# ## Saving
#
# One rank gathers the shards and writes the model.

# %%
shards = [None] * world_size
dist.all_gather_object(shards, splats.map(lambda tensor: tensor.detach().cpu()))
if rank == 0:
    names = shards[0].tensors()
    scene = Gaussians(**{name: torch.cat([part.tensors()[name] for part in shards]) for name in names})
    assert len(scene) == len(start)
    write_model("many_gpus.ply", scene)
dist.destroy_process_group()

# %% [markdown]
# `tsplat train SCENE --out RUN --gpus 0,1,2,3` trains like this, with densification, evaluation and checkpoints that
# can be resumed on any number of ranks.
