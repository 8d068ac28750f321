"""Errors on second derivatives and torch.func transforms."""

import pytest
import torch

import tsplat
from tests.support import scenes

STRUCTURE = scenes.Structure(n=12, cameras=2, width=20, height=18, sh_degree=2, seed=7)


def loss(inputs):
    colors, alphas, _ = tsplat.rasterization(**inputs, render_mode="RGB+D")
    return colors.square().sum() + alphas.sum()


@pytest.mark.slow
def test_second_derivative_raises():
    inputs = scenes.leaves(scenes.make(STRUCTURE))
    (gradient,) = torch.autograd.grad(loss(inputs), inputs["means"], create_graph=True)
    with pytest.raises(tsplat.UnsupportedError, match="second derivatives of rasterization are not implemented"):
        gradient.sum().backward()
    with pytest.raises(tsplat.UnsupportedError, match="second derivatives of rasterization are not implemented"):
        torch.autograd.gradgradcheck(lambda means: loss({**inputs, "means": means}), inputs["means"])


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_torch_func_transform_raises(transform):
    scene = scenes.make(STRUCTURE)

    def function(means):
        return loss({**scene, "means": means})

    transformed = getattr(torch.func, transform)(function)
    with pytest.raises(tsplat.UnsupportedError, match=r"means: torch.func transforms .* leading batch dimensions"):
        transformed(scene["means"][None])
