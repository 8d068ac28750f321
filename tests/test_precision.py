"""Full precision under autocast: products, and their derivatives of every order."""

import pytest
import torch

from tsplat.precision import differentiable, full_precision, in_full_precision, inverse, matrix_product, product

FUNCTIONS = {
    "product": (product, [(2, 3), (3, 2)]),
    "broadcast": (product, [(2, 1, 2, 3), (2, 3, 1)]),
    "matrix_product": (matrix_product, [(2, 1, 2, 3), (2, 3, 1)]),
    "inverse": (lambda m: differentiable(inverse, m), [(2, 3, 3)]),
    "solve": (lambda m, b: differentiable(torch.linalg.solve, m, b), [(2, 3, 3), (2, 3)]),
    "exponential": (lambda m: differentiable(torch.linalg.matrix_exp, m), [(3, 3)]),
}


def make(shapes, dtype):
    generator = torch.Generator().manual_seed(3)
    tensors = []
    for shape in shapes:
        t = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) > 1 and shape[-1] == shape[-2]:
            t = t + 4 * torch.eye(shape[-1], dtype=t.dtype)
        tensors.append(t.to(dtype).requires_grad_())
    return tensors


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name):
    function, shapes = FUNCTIONS[name]
    tensors = make(shapes, torch.float64)
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)
    for i in range(len(tensors)):  # of one argument only
        some = [t if k == i else t.detach() for k, t in enumerate(tensors)]
        assert torch.autograd.gradgradcheck(function, some)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_changes_no_bit(name, dtype):
    """In the forward pass, the backward pass, and that of the gradients, inside of autocast or not."""
    function, shapes = FUNCTIONS[name]

    def run(*inside):
        tensors, found = make(shapes, torch.float32), []
        with torch.autocast("cpu", dtype, enabled=inside[0]):
            result = function(*tensors)
        with torch.autocast("cpu", dtype, enabled=inside[1]):
            first = torch.autograd.grad((result * result.detach().sin()).sum(), tensors, create_graph=True)
        with torch.autocast("cpu", dtype, enabled=inside[2]):
            second = torch.autograd.grad(sum(g.square().sum() for g in first), tensors)
        return [result, *first, *second, *found]

    expected = run(False, False, False)
    assert all(t.dtype == torch.float32 for t in expected)
    for inside in [(True, False, False), (False, True, False), (False, False, True), (True, True, True)]:
        for one, other in zip(run(*inside), expected, strict=True):
            assert torch.equal(one, other)


def test_gradients_equal_those_of_pytorch():
    a, b = make([(2, 4, 3), (3, 5)], torch.float32)
    for one, other in zip(
        torch.autograd.grad(product(a, b).sin().sum(), (a, b)), torch.autograd.grad((a @ b).sin().sum(), (a, b))
    ):
        assert torch.equal(one, other)


def test_autocast_is_off_and_on_again():
    assert not torch.is_autocast_enabled("cpu")
    with full_precision():
        assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", torch.float16):
        states = in_full_precision(lambda kind: torch.is_autocast_enabled(kind))
        assert not states("cpu")
        with pytest.raises(ZeroDivisionError), full_precision():
            _ = 1 / 0
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.float16
