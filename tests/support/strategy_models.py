"""Gaussians with optimizers for tests of strategies; moments contain the id of their Gaussian."""

import torch


def make_model(n, seed=0):
    """Returns parameters with an id for each Gaussian, and optimizers whose moments are these ids."""
    generator = torch.Generator().manual_seed(seed)
    values = dict(
        means=torch.randn(n, 3, generator=generator),
        scales=0.5 * torch.randn(n, 3, generator=generator) - 3,
        quats=torch.randn(n, 4, generator=generator),
        opacities=3 * torch.randn(n, generator=generator),
        sh0=torch.rand(n, 1, 3, generator=generator),
        ids=torch.arange(1.0, n + 1),
    )
    params = {name: torch.nn.Parameter(value) for name, value in values.items()}
    optimizers = {name: torch.optim.Adam([p], lr=1e-3) for name, p in params.items()}
    for name, p in params.items():
        moments = params["ids"].detach().view(-1, *[1] * (p.dim() - 1)).expand_as(p).clone()
        optimizers[name].state[p] = {"step": torch.tensor(7.0), "exp_avg": moments, "exp_avg_sq": moments.clone()}
    return params, optimizers


def check_moments(params, optimizers):
    """Asserts that moments are the ids of their Gaussians or zero, and that optimizers have the current parameters."""
    ids = params["ids"].detach()
    for name, p in params.items():
        optimizer = optimizers[name]
        assert optimizer.param_groups[0]["params"] == [p]
        assert list(optimizer.state) == [p]
        assert optimizer.state[p]["step"] == 7
        for key in ("exp_avg", "exp_avg_sq"):
            moment = optimizer.state[p][key]
            assert moment.shape == p.shape
            expected = ids.view(-1, *[1] * (p.dim() - 1)).expand_as(p)
            assert ((moment == expected) | (moment == 0)).all()
        assert p.isfinite().all()
        assert p.shape[0] == len(ids)


def make_info(gradients, radii):
    """Returns the info of a single camera with an image of 200 x 100 pixels."""
    means2d = torch.zeros(1, len(gradients), 2)
    means2d.grad = gradients[None]
    return dict(means2d=means2d, radii=radii[None], width=200, height=100, n_cameras=1, gaussian_ids=None)
