"""Adam against torch's own, and the order of points along a Morton curve."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsplat import ArgumentError, UnsupportedError
from tsplat.ops.adam import Adam
from tsplat.ops.morton import morton_codes, morton_order

BACKENDS = [pytest.param("triton", marks=pytest.mark.interpreter), "torch"]
SHAPES = {"means": (37, 3), "opacities": (37,), "shN": (37, 15, 3)}


def parameters(dtype):
    torch.manual_seed(3)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in SHAPES.values()]


def groups(tensors):
    return [{"params": [t], "lr": lr} for t, lr in zip(tensors, (1.6e-3, 5e-2, 2.5e-3))]


def walk(optimizer, tensors, steps, **options):
    """Steps with gradients of very different sizes that are the same in every walk."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for t in tensors:
            size = 10 ** torch.empty(t.shape[0]).uniform_(-12, 2, generator=generator)
            noise = torch.randn(t.shape, generator=generator)
            t.grad = (noise * size.view(-1, *[1] * (t.dim() - 1))).to(t)
        optimizer.step(**options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_is_adam_over_a_hundred_steps(backend, dtype, bound):
    own, torchs = parameters(dtype), parameters(dtype)
    walk(Adam(groups(own), eps=1e-15, backend=backend), own, 100)
    walk(torch.optim.Adam(groups(torchs), eps=1e-15), torchs, 100)
    for one, other in zip(own, torchs):
        assert ((one - other).abs() <= bound * other.abs().max()).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoints_are_torchs(backend):
    own, torchs = parameters(torch.float64), parameters(torch.float64)
    first = torch.optim.Adam(groups(torchs))
    walk(first, torchs, 3)
    second = Adam(groups(own), backend=backend)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        for one, other in zip(own, torchs):
            one.copy_(other)
    walk(first, torchs, 3)
    walk(second, own, 3)
    for one, other in zip(own, torchs):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    again = torch.optim.Adam(groups(own))
    again.load_state_dict(second.state_dict())


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_visible_stands_still(backend):
    own, full = parameters(torch.float64), parameters(torch.float64)
    before = [t.detach().clone() for t in own]
    visible = torch.arange(37) % 3 == 0
    optimizer = Adam(groups(own), backend=backend)
    walk(optimizer, own, 2, visible=visible)
    walk(Adam(groups(full), backend=backend), full, 2)
    for t, everything, start in zip(own, full, before):
        assert torch.equal(t[~visible], start[~visible])
        assert not optimizer.state[t]["exp_avg"][~visible].any()
        torch.testing.assert_close(t[visible], everything[visible], rtol=1e-13, atol=0)


def test_a_closure_is_run_with_gradients():
    t = torch.ones(4).requires_grad_()
    optimizer = Adam([t], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = t.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    torch.testing.assert_close(t, torch.full((4,), 0.9))


def test_errors_name_the_argument():
    with pytest.raises(UnsupportedError, match="amsgrad: True is not implemented"):
        Adam([torch.ones(2).requires_grad_()], amsgrad=True)
    half = torch.ones(2, dtype=torch.float16).requires_grad_()
    half.grad = torch.ones_like(half)
    with pytest.raises(UnsupportedError, match=r"params: torch.float16 is not implemented; keep parameters in fp32"):
        Adam([half]).step()
    t = torch.ones(2, 3).requires_grad_()
    t.grad = torch.ones_like(t)
    with pytest.raises(ArgumentError, match=r"visible: expected bool \[2\] as the parameter's rows, found .* \[3\]"):
        Adam([t]).step(visible=torch.ones(3, dtype=torch.bool))
    t = torch.ones(2, 3).T.detach().requires_grad_()
    t.grad = torch.ones_like(t)
    with pytest.raises(ArgumentError, match="params: expected contiguous tensors"):
        Adam([t]).step()


@given(st.lists(st.tuples(*[st.integers(0, 2**21 - 1)] * 3), min_size=1, max_size=20))
def test_codes_interleave_bits(places):
    # Two corners fix the bounding box.
    corners = [(0, 0, 0), (2**21 - 1,) * 3]
    codes = morton_codes(torch.tensor([*corners, *places], dtype=torch.float64)).tolist()
    for (x, y, z), code in zip(places, codes[2:]):
        expected = 0
        for bit in range(21):
            expected |= (x >> bit & 1) << 3 * bit | (y >> bit & 1) << 3 * bit + 1 | (z >> bit & 1) << 3 * bit + 2
        assert code == expected


def test_order_keeps_neighbors_together_and_broken_points_last():
    points = torch.rand(4096, 3)
    points[17, 1] = float("nan")
    order = morton_order(points)
    assert order[-1] == 17
    assert order.sort().values.tolist() == list(range(4096))
    steps = points[order[:-1]].diff(dim=0).norm(dim=-1).median()
    assert steps < 0.15 * points[torch.arange(4096) != 17].diff(dim=0).norm(dim=-1).median()
    assert morton_order(points[:0]).numel() == 0
    assert morton_order(torch.ones(3, 3)).tolist() == [0, 1, 2]
