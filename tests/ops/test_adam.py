"""Adam against torch.optim.Adam: steps, state dicts, visibility masks, moments in bf16, errors."""

import copy
import pickle

import pytest
import torch

from tests.support.backends import BACKENDS
from tsplat import ArgumentError, DtypeError, UnsupportedError
from tsplat.kernels import launch as launching
from tsplat.ops.adam import Adam, RepeatedStep, step_all

SHAPES = {"means": (37, 3), "opacities": (37,), "shN": (37, 15, 3)}


def parameters(dtype):
    torch.manual_seed(3)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in SHAPES.values()]


def groups(tensors):
    return [{"params": [t], "lr": lr} for t, lr in zip(tensors, (1.6e-3, 5e-2, 2.5e-3))]


def step(optimizer, tensors, steps, **options):
    """Takes steps with gradients of very different magnitudes, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for t in tensors:
            size = 10 ** torch.empty(t.shape[0]).uniform_(-12, 2, generator=generator)
            noise = torch.randn(t.shape, generator=generator)
            t.grad = (noise * size.view(-1, *[1] * (t.dim() - 1))).to(t)
        optimizer.step(**options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_100_steps_match_torch_adam(backend, dtype, bound):
    own, torchs = parameters(dtype), parameters(dtype)
    step(Adam(groups(own), eps=1e-15, backend=backend), own, 100)
    step(torch.optim.Adam(groups(torchs), eps=1e-15), torchs, 100)
    for one, other in zip(own, torchs):
        assert ((one - other).abs() <= bound * other.abs().max()).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_dict_is_compatible_with_torch_adam(backend):
    own, torchs = parameters(torch.float64), parameters(torch.float64)
    first = torch.optim.Adam(groups(torchs))
    step(first, torchs, 3)
    second = Adam(groups(own), backend=backend)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        for one, other in zip(own, torchs):
            one.copy_(other)
    step(first, torchs, 3)
    step(second, own, 3)
    for one, other in zip(own, torchs):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    again = torch.optim.Adam(groups(own))
    again.load_state_dict(second.state_dict())


@pytest.mark.parametrize("backend", BACKENDS)
def test_invisible_parameters_are_not_updated(backend):
    own, full = parameters(torch.float64), parameters(torch.float64)
    before = [t.detach().clone() for t in own]
    visible = torch.arange(37) % 3 == 0
    optimizer = Adam(groups(own), backend=backend)
    step(optimizer, own, 2, visible=visible)
    step(Adam(groups(full), backend=backend), full, 2)
    for t, everything, start in zip(own, full, before):
        assert torch.equal(t[~visible], start[~visible])
        assert not optimizer.state[t]["exp_avg"][~visible].any()
        torch.testing.assert_close(t[visible], everything[visible], rtol=1e-13, atol=0)


@pytest.mark.triton
@pytest.mark.parametrize("moments_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_visible_rows_of_any_width_get_the_bits_of_a_step_of_all(share, moments_dtype):
    """Rows that are longer than a block are updated one by one on a CPU, across the sections of programs."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(300, *shape) for shape in ((), (3,), (15, 3), (16,), (17,), (70, 30))]
    start, gradients = ([torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2))
    visible, results = torch.rand(300, generator=generator) < share, []
    for mask in (visible, None):
        own = [t.clone().requires_grad_() for t in start]
        optimizer = Adam(own, lr=0.1, backend="triton", moments_dtype=moments_dtype)
        for t, gradient in zip(own, gradients):
            t.grad = gradient
        optimizer.step(visible=mask)
        results.append([(t.detach(), optimizer.state[t]["exp_avg"], optimizer.state[t]["exp_avg_sq"]) for t in own])
    for before, masked, everything in zip(start, *results, strict=True):
        zeros = torch.zeros_like(before, dtype=moments_dtype)
        for found, expected, old in zip(masked, everything, (before, zeros, zeros), strict=True):
            assert torch.equal(found[visible], expected[visible])
            assert torch.equal(found[~visible], old[~visible])


def moments_of(optimizer, name):
    return [optimizer.state[t][name] for group in optimizer.param_groups for t in group["params"]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_are_rounded_to_bf16_without_bias(backend, dtype):
    """With betas of zero, the moments after a step are the gradient and its square, rounded."""
    n = 2**14
    nan = torch.tensor(2**63 - 1).view(torch.float64).item()  # all bits are set, so that adding to them overflows
    exact = [nan, 0.0, 1.0, -1.5, 2.0**-130, 2.0**60, 2.0**100]  # the square of the last one is infinite
    between = [1.001, -0.3, 1.00390625, 1e-4, 2.0**-130 * 1.1]
    rows = torch.tensor(exact + between, dtype=dtype)[:, None].expand(-1, n)
    parameter = torch.zeros_like(rows).requires_grad_()
    parameter.grad = rows.contiguous()
    optimizer = Adam([parameter], betas=(0.0, 0.0), backend=backend, moments_dtype=torch.bfloat16)
    optimizer.step()
    for name, values in (("exp_avg", rows), ("exp_avg_sq", rows * rows)):
        (moment,) = moments_of(optimizer, name)
        assert moment.dtype == torch.bfloat16
        found, values = moment.double(), values.double()
        is_exact = values[:, 0].bfloat16().double() == values[:, 0]
        assert torch.equal(found[is_exact], values[is_exact])
        assert found[0].isnan().all()
        for row, value in zip(found[7:], values[7:, 0].tolist()):
            if value == 0 or (name == "exp_avg_sq" and value < 2.0**-250):
                continue  # the square of the smallest value
            below, above = row.unique().tolist()
            assert below < value < above
            bits = torch.tensor([below, above]).bfloat16().view(torch.int16)
            assert (bits[1] - bits[0]).abs() == 1  # neighbors
            share = (value - below) / (above - below)
            deviation = (share * (1 - share) / n) ** 0.5
            assert abs((row == above).double().mean() - share) < 5 * deviation


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_changes_of_moments_in_bf16_add_up(backend):
    """A second moment decays by 0.1 % in a step without a gradient; rounded to nearest, it would stay."""
    parameter = torch.zeros(2000, requires_grad=True)
    optimizer = Adam([parameter], backend=backend, moments_dtype=torch.bfloat16)
    parameter.grad = torch.ones(2000)
    optimizer.step()
    parameter.grad = torch.zeros(2000)
    for _ in range(100):
        optimizer.step()
    (moment,) = moments_of(optimizer, "exp_avg_sq")
    assert moment.float().mean().item() == pytest.approx(0.001 * 0.999**100, rel=0.005)
    assert len(moment.unique()) > 10  # each value has random bits of its own


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("visible", [None, torch.arange(37) % 3 == 0], ids=["all", "visible"])
def test_backends_round_moments_by_the_same_random_bits(dtype, visible):
    optimizers = []
    for backend in ("triton", "torch"):
        optimizers.append(Adam(parameters(dtype), lr=1e-2, backend=backend, moments_dtype=torch.bfloat16))
        step(optimizers[-1], optimizers[-1].param_groups[0]["params"], 10, visible=visible)
    for name in ("exp_avg", "exp_avg_sq"):
        for one, other in zip(*[moments_of(optimizer, name) for optimizer in optimizers]):
            assert (one == other).float().mean() > 0.99  # sums that differ in their last bit are rarely rounded apart
            torch.testing.assert_close(one, other, rtol=2.0**-7, atol=0)
    for one, other in zip(*[optimizer.param_groups[0]["params"] for optimizer in optimizers]):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_with_moments_in_bf16_are_near_those_in_fp32(backend):
    """Also, one call steps moments of both dtypes."""
    tensors = {moments_dtype: parameters(torch.float32) for moments_dtype in (None, torch.bfloat16)}
    optimizers = [Adam(each, lr=1e-2, backend=backend, moments_dtype=key) for key, each in tensors.items()]
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        for one, other in zip(*tensors.values()):
            one.grad = torch.randn(one.shape, generator=generator) + 0.5
            other.grad = one.grad.clone()
        step_all(optimizers)
    start = parameters(torch.float32)
    for one, other, before in zip(*tensors.values(), start):
        moved = (one - before).norm()
        assert 0 < (one - other).norm() < 0.02 * moved


def test_loaded_states_are_converted_to_the_dtype_of_moments():
    plain, own = parameters(torch.float32), parameters(torch.float32)
    first = torch.optim.Adam(groups(plain))
    step(first, plain, 3)
    second = Adam(groups(own), moments_dtype=torch.bfloat16)
    second.load_state_dict(first.state_dict())
    for one, other in zip(plain, own):
        assert torch.equal(second.state[other]["exp_avg_sq"], first.state[one]["exp_avg_sq"].bfloat16())
    step(second, own, 1)
    third = Adam(groups(parameters(torch.float32)), moments_dtype=torch.bfloat16)
    third.load_state_dict(second.state_dict())
    assert all(map(torch.equal, moments_of(third, "exp_avg"), moments_of(second, "exp_avg")))
    first.load_state_dict(second.state_dict())
    assert moments_of(first, "exp_avg")[0].dtype == torch.float32
    step(third, [group["params"][0] for group in third.param_groups], 1)


@pytest.mark.triton
def test_one_launch_steps_all_parameters_of_a_dtype(monkeypatch):
    """Several optimizers, groups, numbers of programs and step counts; parameters without values or gradients."""
    launched = []

    monkeypatch.setattr(launching, "observer", lambda *launch: launched.append(launch))
    results = []
    for together in (True, False):
        torch.manual_seed(0)
        shapes = [(0, 3), (1500, 3), (7,), (1500, 0), (1024, 2), (1, 1), (3000,), (5,), (0,)]
        tensors = [torch.randn(shape).requires_grad_() for shape in shapes]
        tensors.append(torch.randn(2000, 2, dtype=torch.float64).requires_grad_())
        optimizers = [Adam(groups(tensors[k : k + 3]), eps=1e-15, backend="triton") for k in range(0, 10, 3)]
        step(optimizers[1], tensors[3:6], 2)
        generator = torch.Generator().manual_seed(0)
        for tensor in tensors[:7] + tensors[8:]:
            tensor.grad = torch.randn(tensor.shape, generator=generator).to(tensor)
        launched.clear()
        if together:
            step_all(optimizers)
            assert len(launched) == 2
        else:
            for optimizer in optimizers:
                optimizer.step()
        results.append([*tensors, *(entry for o in optimizers for s in o.state.values() for entry in s.values())])
    assert len(results[0]) == 10 + 9 * 3
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_default_device_does_not_matter(backend):
    tensor = torch.ones(3, requires_grad=True)
    tensor.grad = torch.ones(3)
    with torch.device("meta"):
        Adam([tensor], lr=0.1, backend=backend).step()
    assert torch.equal(tensor, torch.full((3,), tensor[0].item()))
    assert tensor[0].item() == pytest.approx(0.9)


def test_closure_is_run_with_gradients():
    t = torch.ones(4).requires_grad_()
    optimizer = Adam([t], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = t.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    torch.testing.assert_close(t, torch.full((4,), 0.9))


def test_gradients_are_reset():
    t = torch.ones(2).requires_grad_()
    t.grad = torch.ones(2)
    optimizer = Adam([t])
    optimizer.zero_grad(set_to_none=False)
    assert t.grad.tolist() == [0, 0]
    optimizer.zero_grad()
    assert t.grad is None


def test_invalid_arguments_raise():
    with pytest.raises(UnsupportedError, match="amsgrad: not implemented; pass False"):
        Adam([torch.ones(2).requires_grad_()], amsgrad=True)
    with pytest.raises(UnsupportedError, match="fused: not implemented; pass False"):
        Adam([torch.ones(2).requires_grad_()], fused=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'decay'"):
        Adam([torch.ones(2).requires_grad_()], decay=0)
    with pytest.raises(DtypeError, match=r"moments_dtype: expected None or torch.bfloat16, found torch.float16"):
        Adam([torch.ones(2).requires_grad_()], moments_dtype=torch.float16)
    half = torch.ones(2, dtype=torch.float16).requires_grad_()
    half.grad = torch.ones_like(half)
    with pytest.raises(UnsupportedError, match=r"params: torch.float16 is not implemented; keep parameters in fp32"):
        Adam([half]).step()
    t = torch.ones(2, 3).requires_grad_()
    t.grad = torch.ones_like(t)
    with pytest.raises(ArgumentError, match=r"visible: expected \[N\] as the parameter, here \[2\], found \[3\]"):
        Adam([t]).step(visible=torch.ones(3, dtype=torch.bool))
    t = torch.ones(2, 3).T.detach().requires_grad_()
    t.grad = torch.ones_like(t)
    with pytest.raises(ArgumentError, match="params: expected contiguous tensors"):
        Adam([t]).step()


def test_options_of_torch_that_are_off_are_accepted():
    options = dict(weight_decay=0, amsgrad=False, foreach=False, maximize=False, capturable=False, differentiable=False)
    parameters = [torch.ones(3).requires_grad_() for _ in range(2)]
    optimizers = [
        Adam([parameters[0]], **options, fused=None, decoupled_weight_decay=False),
        torch.optim.Adam([parameters[1]], **options),
    ]
    for parameter, optimizer in zip(parameters, optimizers):
        parameter.grad = torch.ones(3)
        optimizer.step()
    torch.testing.assert_close(*parameters)


def test_options_of_parameter_groups_raise_if_they_change_steps():
    parameter = torch.ones(2).requires_grad_()
    with pytest.raises(UnsupportedError, match="weight_decay: not implemented; pass 0"):
        Adam([dict(params=[parameter], weight_decay=0.1)])
    parameter.grad = torch.ones(2)
    for options in (dict(weight_decay=0.1), dict(fused=True)):
        optimizer = Adam([parameter])
        optimizer.load_state_dict(torch.optim.Adam([parameter], **options).state_dict())
        if "fused" in options:
            optimizer.step()
            continue
        with pytest.raises(UnsupportedError, match="weight_decay: not implemented; pass 0"):
            optimizer.step()


def test_steps_are_not_captured(monkeypatch):
    """A graph would repeat what Python computes for one step."""

    class OnGpu(torch.nn.Parameter):
        is_cuda = True

    parameter = OnGpu(torch.ones(3))
    optimizer = Adam([parameter])
    parameter.grad = torch.ones(3)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UnsupportedError, match=r"^step: not implemented in a CUDA graph.*capturable=True"):
        optimizer.step()
    assert not optimizer.state


def test_step_counts_of_other_dtypes_are_kept():
    counts = []
    for dtype in (torch.float32, torch.float64, torch.int64):
        parameter = torch.ones(2).requires_grad_()
        parameter.grad = torch.ones(2)
        optimizer = Adam([parameter])
        optimizer.step()
        optimizer.state[parameter]["step"] = torch.tensor(5, dtype=dtype)
        optimizer.step()
        step = optimizer.state[parameter]["step"]
        assert step.dtype == dtype
        counts.append((float(step), parameter.tolist()))
    assert counts[0] == counts[1] == counts[2]
    assert counts[0][0] == 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_moments_of_another_shape_or_dtype_raise(backend):
    """A kernel would write beyond their end."""
    parameter = torch.zeros(4, 3, requires_grad=True)
    optimizer = Adam([parameter], backend=backend)
    parameter.grad = torch.ones(4, 3)
    optimizer.step()
    optimizer.state[parameter]["exp_avg"] = torch.zeros(2, 3)
    with pytest.raises(ArgumentError, match=r"params: expected contiguous exp_avg \[4, 3\].*found \[2, 3\]"):
        optimizer.step()
    optimizer.state[parameter]["exp_avg"] = torch.zeros(4, 3, dtype=torch.float64)
    with pytest.raises(
        ArgumentError, match=r"params: expected exp_avg torch.float32 on cpu.*found torch.float64 on cpu"
    ):
        optimizer.step()
    assert optimizer.state[parameter]["step"] == 1


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("moments_dtype", [None, torch.bfloat16])
def test_copies_take_the_same_steps(copied, moments_dtype):
    optimizer = Adam(parameters(torch.float32), lr=0.1, backend="torch", moments_dtype=moments_dtype)
    step(optimizer, [group for group in optimizer.param_groups[0]["params"]], 3)
    other = copied(optimizer)
    for each in (optimizer, other):
        step(each, [*each.param_groups[0]["params"]], 2)
    for one, two in zip(optimizer.param_groups[0]["params"], other.param_groups[0]["params"]):
        assert one is not two and torch.equal(one, two)


ROWS = torch.tensor([0, 3, 4, 11, 30, 36, -1, -1])
"""Rows with gradients; -1 fills up."""
KNOWN_ROWS = ROWS[ROWS >= 0]


def set_gradients_of_rows(tensors, generator):
    """Sets gradients that are zero except for random values in ``KNOWN_ROWS``."""
    for t in tensors:
        t.grad = torch.zeros_like(t)
        t.grad[KNOWN_ROWS] = torch.randn(len(KNOWN_ROWS), *t.shape[1:], generator=generator).to(t.dtype)


@pytest.mark.triton
@pytest.mark.parametrize("moments_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_rows_update_these_rows(dtype, moments_dtype):
    """As a mask does; -1 fills up."""
    chosen = KNOWN_ROWS[torch.tensor([0, 1, 3, 5])]
    expected, found = parameters(dtype), parameters(dtype)
    masked, selected = ([Adam([t], lr=0.1, moments_dtype=moments_dtype) for t in ts] for ts in (expected, found))
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        set_gradients_of_rows(expected, generator)
        step_all(masked, visible=torch.isin(torch.arange(37), chosen))
        repeated = RepeatedStep(selected, ROWS, {t: other.grad[ROWS] for t, other in zip(found, expected)})
        repeated.advance()
        repeated.launch(torch.isin(ROWS, chosen))
    for one, other, optimizer, other_optimizer in zip(found, expected, selected, masked):
        assert torch.equal(one, other)
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[one][name], other_optimizer.state[other][name])


@pytest.mark.triton
@pytest.mark.parametrize("moments_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_without_gradients_are_updated_as_by_zeros(dtype, moments_dtype):
    """Some parameters have gradients of rows, and others of all Gaussians."""
    expected, found = parameters(dtype), parameters(dtype)
    dense, mixed = ([Adam([t], lr=0.1, moments_dtype=moments_dtype) for t in ts] for ts in (expected, found))
    generator = torch.Generator().manual_seed(2)
    for i in range(4):
        set_gradients_of_rows(expected, generator)
        of_rows = {t: other.grad[ROWS] for t, other in [*zip(found, expected)][i % 2 :: 2]}
        for t, other in zip(found, expected):
            t.grad = None if t in of_rows else other.grad.clone()
        step_all(dense)
        repeated = RepeatedStep(mixed, ROWS, of_rows, updates_all=True)
        repeated.advance()
        repeated.launch(None)
        assert repeated.is_current()
    for one, other, optimizer, other_optimizer in zip(found, expected, mixed, dense):
        assert torch.equal(one, other)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[one][name], other_optimizer.state[other][name])
