# %% [markdown]
# # Replace gsplat
#
# Code written for gsplat runs on tsplat with one changed import. This page runs such code, compares its image and its
# gradients with a reference in double precision, and shows what differs.

# %%
import torch

# before: from gsplat import rasterization
from tsplat.compat.gsplat import rasterization

N = 500  # Gaussians
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# The arguments, their defaults, shapes and frames, and the entries of `meta` are those of gsplat 1.5.3.

# %%
gaussians = dict(
    means=torch.randn(N, 3, device=device),
    quats=torch.randn(N, 4, device=device),  # wxyz
    scales=torch.rand(N, 3, device=device) * 0.3,  # after exp
    opacities=torch.rand(N, device=device),  # after sigmoid
    colors=torch.randn(N, 16, 3, device=device) * 0.2,  # spherical harmonics
)
cameras = dict(
    viewmats=torch.eye(4, device=device).repeat(2, 1, 1),  # world to camera
    Ks=torch.tensor([[40.0, 0, 32], [0, 40, 24], [0, 0, 1]], device=device).repeat(2, 1, 1),
    width=64,
    height=48,
)
cameras["viewmats"][:, 2, 3] = torch.tensor([4.0, 5.0])


def render(dtype=torch.float32, **options):
    inputs = {name: tensor.to(dtype, copy=True).requires_grad_() for name, tensor in gaussians.items()}
    colors, alphas, meta = rasterization(**inputs, **cameras, sh_degree=3, render_mode="RGB+ED", **options)
    (colors.square().mean() + alphas.mean()).backward()
    return colors.detach(), {name: tensor.grad for name, tensor in inputs.items()}, meta


image, gradients, meta = render()
print("image", list(image.shape), "meta", sorted(meta))

# %% [markdown]
# ## How exact is it?
#
# `backend="reference"` is plain PyTorch without tiles or kernels. In fp64, with autograd's own gradients, it is as
# good as exact. `rasterization` computes in fp32 and agrees to five or six digits.

# %%
exact_image, exact_gradients, _ = render(torch.float64, backend="reference")
errors = {"image": (image, exact_image)} | {name: (gradients[name], exact_gradients[name]) for name in gradients}
for name, (found, exact) in errors.items():
    error = float((found - exact).abs().max() / exact.abs().max())
    print(f"{name:10} largest error {error:.1e} of the largest value")
    assert error < 1e-4

# %% [markdown]
# ## What differs
#
# Equal calls give equal bits, on GPUs as well, because no kernel uses atomic additions.

# %%
again, gradients_again, _ = render()
assert torch.equal(image, again)
assert all(torch.equal(gradients[name], gradients_again[name]) for name in gradients)

# %% [markdown]
# Invalid Gaussians are skipped and counted, where they would otherwise spread NaN over the image. `validate="error"`
# says which ones they are.

# %%
gaussians["means"][7] = torch.nan
image, _, meta = render()
print("invalid Gaussians:", int(meta["n_invalid"]))
assert image.isfinite().all()
try:
    render(validate="error")
except ValueError as error:
    print(error)

# %% [markdown]
# What is not implemented raises an error that names it. Nothing is silently ignored.

# %%
try:
    render(with_ut=True)
except NotImplementedError as error:
    print(error)

# %% [markdown]
# `python -m tsplat.compat.gsplat SCRIPT` runs a script that imports gsplat without any change, and `tsplat` itself
# has the main names, such as `tsplat.rasterization` and `tsplat.strategies.DefaultStrategy`.
