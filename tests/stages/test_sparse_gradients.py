"""sparse_grad: sparse gradients of Gaussians equal the dense ones, have a row for each visible Gaussian, and train."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tsplat import ArgumentError

SPARSE = ("means", "quats", "scales", "covars")


def rows(gradient):
    """The indices as stored. A gradient in ``.grad`` does not know that it is coalesced."""
    return gradient._indices()[0]


def render(scene, **options):
    """Returns images, ``meta``, and the gradients of a random loss on images and depths with respect to leaves."""
    leaves = scenes.leaves(scene)
    colors, alphas, meta = tsplat.rasterization(**leaves, packed=True, render_mode="RGB+D", **options)
    outputs = (colors, alphas, meta["depths"])
    torch.autograd.backward(outputs, scenes.random_like(outputs, 7))
    gradients = {name: leaves[name].grad for name in scenes.DIFFERENTIABLE if leaves[name] is not None}
    return outputs, meta, gradients


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=8)
@given(st.integers(0, 2**31), st.integers(0, 15), st.integers(1, 3), st.booleans(), st.sampled_from([None, 2]))
def test_sparse_gradients_equal_dense_gradients(backend, seed, n, cameras, covars, sh_degree):
    structure = scenes.Structure(n=n, cameras=cameras, covars=covars, sh_degree=sh_degree, size=1.0, seed=seed)
    scene = scenes.make(structure, torch.float32)
    expected_outputs, meta, expected = render(scene, backend=backend)
    outputs, _, found = render(scene, backend=backend, sparse_grad=True)
    for output, other in zip(outputs, expected_outputs, strict=True):
        assert torch.equal(output, other)
    visible = meta["gaussian_ids"].unique()
    for name, gradient in found.items():
        assert gradient.is_sparse == (name in SPARSE), name
        if gradient.is_sparse:
            assert torch.equal(rows(gradient), visible), name
            gradient = gradient.to_dense()
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("covars", [False, True])
def test_projection_has_sparse_gradients(covars):
    scene = scenes.make(scenes.Structure(n=14, cameras=3, covars=covars, seed=3), torch.float32)
    if covars:
        scene["covars"] = scene["covars"][:, (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)]
    names = (*(name for name in SPARSE if scene[name] is not None), "viewmats")
    gradients = []
    for sparse_grad in (False, True):
        inputs = {name: None if t is None else t.clone().requires_grad_() for name, t in scene.items() if name in names}
        inputs |= {name: scene[name] for name in ("Ks", "width", "height")}
        _, _, ids, _, *outputs, _ = tsplat.fully_fused_projection(
            **{"covars": None, "quats": None, "scales": None} | inputs, packed=True, sparse_grad=sparse_grad
        )
        torch.autograd.backward(outputs, scenes.random_like(tuple(outputs), 5))
        gradients.append({name: inputs[name].grad for name in names})
    dense, sparse = gradients
    for name in names[:-1]:
        assert torch.equal(rows(sparse[name]), ids.unique()), name
        assert torch.equal(sparse[name].to_dense(), dense[name]), name
    assert torch.equal(sparse["viewmats"], dense["viewmats"])


def test_gradients_pass_through_activations():
    scene = scenes.make(scenes.Structure(n=10, seed=4), torch.float32)
    log_scales = scene["scales"].log().requires_grad_()
    expected = log_scales.detach().clone().requires_grad_()
    for leaf, sparse_grad in ((log_scales, True), (expected, False)):
        colors, _, _ = tsplat.rasterization(**(scene | {"scales": leaf.exp()}), sparse_grad=sparse_grad)
        colors.square().sum().backward()
    assert log_scales.grad.is_sparse
    assert torch.equal(log_scales.grad.to_dense(), expected.grad)


def test_sparse_adam_moves_visible_gaussians_only():
    scene = scenes.make(scenes.Structure(n=20, cameras=1, seed=5), torch.float32)
    scene["means"][:8, 2] = -1.0  # behind the camera
    parameters = {name: scene[name].clone().requires_grad_() for name in ("means", "quats", "scales")}
    optimizer = torch.optim.SparseAdam(list(parameters.values()), lr=1e-2)
    losses = []
    for _ in range(5):
        colors, _, meta = tsplat.rasterization(**(scene | parameters), sparse_grad=True)
        loss = (colors - 0.5).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert meta["gaussian_ids"].min() >= 8
    for name, parameter in parameters.items():
        assert torch.equal(parameter[:8], scene[name][:8]), name
        assert not torch.equal(parameter[8:], scene[name][8:]), name


def test_gradients_of_several_steps_accumulate():
    scene = scenes.make(scenes.Structure(n=10, cameras=2, seed=6), torch.float32)
    accumulated, single = scene["means"].clone().requires_grad_(), []
    for camera in range(2):
        view = scene | {name: scene[name][camera : camera + 1] for name in ("viewmats", "Ks", "backgrounds")}
        for means in (accumulated, scene["means"].clone().requires_grad_()):
            colors, _, _ = tsplat.rasterization(**(view | {"means": means}), sparse_grad=True)
            colors.square().sum().backward()
        single.append(means.grad.to_dense())
    assert torch.equal(accumulated.grad.to_dense(), single[0] + single[1])


@pytest.mark.parametrize(("options", "batch"), [(dict(packed=False), ()), (dict(packed=True), (1,)), ({}, (2,))])
def test_requires_packed_rows_of_a_single_scene(options, batch):
    scene = scenes.make(scenes.Structure(n=6, batch=batch), torch.float32)
    with pytest.raises(ArgumentError, match=r"^sparse_grad: "):
        tsplat.rasterization(**scene, sparse_grad=True, **options)
    scene = {name: scene[name] for name in ("means", "quats", "scales", "viewmats", "Ks", "width", "height")}
    with pytest.raises(ArgumentError, match=r"^sparse_grad: "):
        tsplat.fully_fused_projection(covars=None, **scene, sparse_grad=True, **({"packed": True} | options))
