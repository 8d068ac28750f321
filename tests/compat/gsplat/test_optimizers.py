"""Adam without bias correction, for visible Gaussians."""

import copy
import math

import pytest
import torch

from tests.support.closeness import assert_exact
from tests.support.identity import assert_identical
from tsplat import ArgumentError, kernels, kernels_torch
from tsplat.compat.gsplat import SelectiveAdam
from tsplat.compat.gsplat.cuda._wrapper import adam
from tsplat.runtime import backend

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


def sparse(parameter):
    indices = torch.arange(2)[None]
    return torch.sparse_coo_tensor(indices, parameter[:2].detach(), parameter.shape, check_invariants=True)


ALL = torch.ones(N, dtype=torch.bool)
INVALID_STEPS = {
    "mask_of_numbers": (lambda p, group, state: torch.ones(N), r"visibility: expected a bool tensor"),
    "mask_with_two_dimensions": (lambda p, group, state: ALL[None], r"visibility: .* here \[7\], found \[1, 7\]"),
    "mask_of_other_length": (lambda p, group, state: torch.ones(N + 1, dtype=torch.bool), r"here \[7\], found \[8\]"),
    "mask_on_other_device": (lambda p, group, state: ALL.to("meta"), "visibility: is on meta"),
    "sparse_gradient": (lambda p, group, state: setattr(p, "grad", sparse(p)), "param_grad: expected a dense gradient"),
    "two_tensors": (lambda p, group, state: group["params"].append(torch.zeros(N)), "one tensor per group, found 2"),
    "no_tensor": (lambda p, group, state: group["params"].clear(), "one tensor per group, found 0"),
    "moment_of_other_shape": (
        lambda p, group, state: state.update(exp_avg=torch.zeros(N - 1, 2, dtype=p.dtype)),
        r"exp_avg: .* found \[6, 2\]",
    ),
    "moment_of_other_dtype": (
        lambda p, group, state: state.update(exp_avg_sq=torch.zeros(N, 2)),
        "exp_avg_sq: expected torch.float64",
    ),
    "moment_of_other_strides": (
        lambda p, group, state: state.update(exp_avg=torch.zeros(2, N, dtype=p.dtype).T),
        "exp_avg: expected a contiguous",
    ),
}


@pytest.mark.parametrize("case", INVALID_STEPS)
def test_refused_step_changes_nothing(case):
    """The second of two groups is invalid; the first would have been updated."""
    change, match = INVALID_STEPS[case]
    parameters = [torch.nn.Parameter(random(N, 2, seed=seed)) for seed in (0, 1)]
    optimizer = SelectiveAdam([{"params": [p], "lr": LR} for p in parameters], eps=EPS, betas=BETAS)
    sum(p.square().sum() for p in parameters).backward()
    optimizer.step(ALL)
    mask = change(parameters[1], optimizer.param_groups[1], optimizer.state[parameters[1]])
    before = copy.deepcopy([(p.detach(), p.grad, optimizer.state[p]) for p in parameters])
    with pytest.raises(ArgumentError, match=match):
        optimizer.step(mask if isinstance(mask, torch.Tensor) else ALL)
    assert_identical([(p.detach(), p.grad, optimizer.state[p]) for p in parameters], before)


def test_refused_first_step_makes_no_state():
    parameters = [torch.nn.Parameter(random(n, 2, seed=n)) for n in (N, N + 1)]
    optimizer = SelectiveAdam([{"params": [p], "lr": LR} for p in parameters], eps=EPS, betas=BETAS)
    sum(p.square().sum() for p in parameters).backward()
    with pytest.raises(ArgumentError, match=r"visibility: .* here \[8\]"):
        optimizer.step(ALL)
    assert not optimizer.state


@pytest.mark.parametrize("masked", [False, True])
def test_adam_matches_python(masked):
    param, moments, gradients = random(N, 2, seed=0), torch.zeros(2, N, 2, dtype=torch.float64), random(3, N, 2, seed=1)
    before, valid = param.clone(), random(N, seed=2) > 0 if masked else ALL
    for gradient in gradients:
        adam(param, gradient, *moments, valid, LR, *BETAS, EPS)
    visible = valid[:, None].expand(N, 2).flatten().tolist()
    columns = zip(before.flatten().tolist(), gradients.flatten(1).T.tolist(), visible)
    expected = [update(value, own, [shown] * 3) for value, own, shown in columns]
    assert_exact("param", param, torch.tensor(expected, dtype=torch.float64).view(N, 2))
    assert torch.equal(param != before, valid[:, None].expand(N, 2))


@pytest.mark.parametrize("package", [kernels, kernels_torch], ids=lambda package: package.__name__)
def test_tensors_that_require_gradients_are_updated_in_place(package, monkeypatch):
    monkeypatch.setitem(backend._chosen, (torch.device("cpu"), "auto"), package)
    tensors = [random(N, 2, seed=0), random(N, 2, seed=1), torch.zeros(N, 2).double(), torch.zeros(N, 2).double()]
    leaves = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    for own in (tensors, leaves):
        adam(*own, ALL, LR, *BETAS, EPS)
    for tensor, leaf in zip(tensors, leaves):
        assert_exact("leaf", leaf, tensor)
        assert leaf.is_leaf


ADAM = dict(param=(N, 2), param_grad=(N, 2), exp_avg=(N, 2), exp_avg_sq=(N, 2))


@pytest.mark.parametrize("change", [
    dict(param_grad=torch.zeros(N, 3)), dict(exp_avg=torch.zeros(N - 1, 2)), dict(exp_avg_sq=torch.zeros(2 * N)),
    dict(param=torch.zeros(N, 2).half()), dict(param=torch.zeros(())), dict(valid=torch.ones(N - 1, dtype=torch.bool)),
    dict(valid=torch.ones(N)), dict(exp_avg=torch.zeros(N, 2).double()), dict(exp_avg=torch.zeros(2, N).T),
], ids=lambda change: "-".join(change))  # fmt: skip
def test_refused_call_of_adam_changes_nothing(change):
    tensors = {name: torch.ones(shape) for name, shape in ADAM.items()} | {"valid": ALL} | change
    before = copy.deepcopy(tensors)
    with pytest.raises(ArgumentError):
        adam(**tensors, lr=LR, b1=0.9, b2=0.999, eps=EPS)
    assert_identical(tensors, before)
