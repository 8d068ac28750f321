"""Adam without bias correction, for visible Gaussians."""

import math

import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ArgumentError
from tsplat.compat.gsplat import SelectiveAdam

N, LR, EPS, BETAS = 7, 0.03, 1e-15, (0.8, 0.95)


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def update(p, gradients, visibilities):
    """One scalar after steps with these gradients, in Python floats."""
    m = v = 0.0
    for gradient, visible in zip(gradients, visibilities):
        if visible:
            m = BETAS[0] * m + (1 - BETAS[0]) * gradient
            v = BETAS[1] * v + (1 - BETAS[1]) * gradient**2
            p -= LR * m / (math.sqrt(v) + EPS)
    return p


@pytest.mark.parametrize("shape", [(N,), (N, 3), (N, 4, 3)])
def test_steps_match_python(shape):
    parameter = torch.nn.Parameter(random(*shape, seed=0))
    before = parameter.detach().clone()
    optimizer = SelectiveAdam([{"params": [parameter], "lr": LR}], eps=EPS, betas=BETAS)
    gradients, masks = random(5, *shape, seed=1), random(5, N, seed=2) > 0
    masks[:, 0] = False
    for gradient, mask in zip(gradients, masks):
        parameter.grad = gradient.clone()
        optimizer.step(mask)
    visible = masks.view(5, N, *[1] * (len(shape) - 1)).expand(5, *shape)
    columns = (before.flatten().tolist(), gradients.flatten(1).T.tolist(), visible.flatten(1).T.tolist())
    expected = torch.tensor([update(*values) for values in zip(*columns)], dtype=torch.float64).view(shape)
    assert_exact("parameter", parameter, expected)
    assert torch.equal(parameter[0], before[0])
    state = optimizer.state[parameter]
    assert not state["exp_avg"][0].any()
    assert float(state["step"]) == 0


def test_parameters_without_gradient_do_not_change():
    with_gradient, without = (torch.nn.Parameter(random(N, 2, seed=seed)) for seed in (0, 1))
    before = without.detach().clone()
    groups = [{"params": [with_gradient], "lr": LR}, {"params": [without], "lr": LR}]
    optimizer = SelectiveAdam(groups, eps=EPS, betas=BETAS)
    assert isinstance(optimizer, torch.optim.Adam)
    with_gradient.square().sum().backward()
    optimizer.step(visibility=torch.ones(N, dtype=torch.bool))
    assert torch.equal(without, before)
    assert without not in optimizer.state


@pytest.mark.parametrize(
    ("visibility", "message"),
    [(torch.ones(N), "expected bool"), (torch.ones(N + 1, dtype=torch.bool), r"expected \[7\] as the parameter")],
)
def test_visibility_is_checked(visibility, message):
    parameter = torch.nn.Parameter(random(N, 2, seed=0))
    optimizer = SelectiveAdam([{"params": [parameter], "lr": LR}], eps=EPS, betas=BETAS)
    parameter.sum().backward()
    with pytest.raises(ArgumentError, match=message):
        optimizer.step(visibility)


def test_groups_have_one_tensor():
    parameters = [torch.nn.Parameter(random(N, 2, seed=seed)) for seed in (0, 1)]
    optimizer = SelectiveAdam([{"params": parameters, "lr": LR}], eps=EPS, betas=BETAS)
    with pytest.raises(ArgumentError, match="one tensor per group, found 2"):
        optimizer.step(torch.ones(N, dtype=torch.bool))


def test_parameters_of_any_strides():
    """Scripts make ``shN`` a slice of all coefficients."""
    coefficients, mask = random(N, 4, 3, seed=0), random(N, seed=1) > 0
    results = []
    for parameter in (torch.nn.Parameter(coefficients[:, 1:].clone()), torch.nn.Parameter(coefficients[:, 1:])):
        optimizer = SelectiveAdam([{"params": [parameter], "lr": LR}], eps=EPS, betas=BETAS)
        for seed in (2, 3):
            parameter.grad = random(N, 3, 3, seed=seed)
            optimizer.step(mask)
        results.append((parameter, *optimizer.state[parameter].values()))
    contiguous, slices = results
    assert not slices[0].is_contiguous()
    assert all(torch.equal(one, other) for one, other in zip(contiguous, slices, strict=True))
    assert not torch.equal(coefficients[:, 1:], random(N, 4, 3, seed=0)[:, 1:])
    assert torch.equal(coefficients[:, :1], random(N, 4, 3, seed=0)[:, :1])


def test_sparse_gradients_are_refused():
    parameter = torch.nn.Parameter(random(N, 2, seed=0))
    optimizer = SelectiveAdam([{"params": [parameter], "lr": LR}], eps=EPS, betas=BETAS)
    parameter.grad = torch.sparse_coo_tensor([[1]], [[1.0, 2.0]], (N, 2), dtype=torch.float64, check_invariants=True)
    with pytest.raises(ArgumentError, match="expected dense gradients"):
        optimizer.step(torch.ones(N, dtype=torch.bool))
