"""fully_fused_projection: outputs and gradients against the reference, overflow."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact, assert_run_fp32
from tsplat import reference
from tsplat.config import DEFAULT_NUMERICS, CameraSettings
from tsplat.data import ProjectionSettings


@pytest.mark.parametrize("camera_model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31), covars=st.booleans(), packed=st.booleans(), near=st.sampled_from([0.01, -10.0]),
    data=st.data(),
)  # fmt: skip
def test_outputs_and_gradients_match_reference(backend, camera_model, seed, covars, packed, near, data):
    """The loss is on every output: means2d, depths, conics and compensations."""
    compensate = camera_model != "pinhole" or data.draw(st.booleans(), label="compensate")
    scene = scenes.make(scenes.Structure(n=9, batch=(2,), seed=seed, covars=covars, camera_model=camera_model))
    options = dict(near_plane=near, camera_model=camera_model)
    triangle = ((0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2))
    results = []
    for use_reference in (False, True):
        leaves = scenes.leaves(scene)
        upper = leaves["covars"][..., triangle[0], triangle[1]] if covars else None
        shape = (leaves["viewmats"], leaves["Ks"], leaves["width"], leaves["height"])
        if use_reference:
            full = reference.covariances(leaves["quats"], leaves["scales"]) if not covars else leaves["covars"]
            full = full.triu() + full.triu(1).transpose(-1, -2)
            camera = CameraSettings.of(leaves["width"], leaves["height"], camera_model, near, 1e10, DEFAULT_NUMERICS)
            settings = ProjectionSettings(camera, antialiased=compensate)
            p = reference.project(leaves["means"], full, None, leaves["viewmats"], leaves["Ks"], settings)
            outputs = [p.means2d, p.depths, p.conics, p.compensations]
            radii = p.radii
            if packed:
                outputs, radii = [t[p.visible] for t in outputs], radii[p.visible]
        else:
            *ids, radii, means2d, depths, conics, compensations = tsplat.fully_fused_projection(
                leaves["means"], upper, leaves["quats"], leaves["scales"], *shape,
                packed=packed, calc_compensations=compensate, backend=backend, **options,
            )  # fmt: skip
            assert len(ids) == (3 if packed else 0)
            outputs = [means2d, depths, conics, compensations]
        outputs = outputs[: 4 if compensate else 3]
        wanted = [
            leaves[name] for name in ("means", "quats", "scales", "covars", "viewmats") if leaves[name] is not None
        ]
        gradients = torch.autograd.grad(outputs, wanted, scenes.random_like(tuple(outputs), seed), allow_unused=True)
        results.append((radii, *outputs, *gradients))
    assert torch.equal(results[0][0], results[1][0])
    for i, (found, expected) in enumerate(zip(results[0][1:], results[1][1:])):
        assert_exact(f"output or gradient {i}", found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_overflowing_gradient_is_zeroed_and_infinite_gradient_kept(backend):
    scene = scenes.make(scenes.Structure(n=4, cameras=2, width=20, height=20, size=0.01, seed=1), torch.float32)

    def gradients(*v_depths_of_first):
        """Of means, quats, scales and viewmats, given a huge gradient of the first conic, and one of its depth."""
        inputs = {name: scene[name].clone().requires_grad_() for name in ("means", "quats", "scales", "viewmats")}
        _, _, depths, conics, _ = tsplat.fully_fused_projection(
            covars=None, Ks=scene["Ks"], width=20, height=20, eps2d=1e-3, backend=backend, **inputs
        )
        v_conics, v_depths = torch.ones_like(conics), torch.ones_like(depths)
        if v_depths_of_first:
            v_conics[:, 0] = 1e38
            v_depths[:, 0] = v_depths_of_first[0]
        return torch.autograd.grad((depths, conics), tuple(inputs.values()), (v_depths, v_conics))

    clean, overflown, infinite = gradients(), gradients(1.0), gradients(math.inf)
    for name, one, other in zip(("means", "quats", "scales"), clean, overflown):
        assert not other[0].any(), name
        assert torch.equal(one[1:], other[1:]), name
    assert all(gradient.isfinite().all() for gradient in overflown)
    assert not infinite[0][0].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numerics", ["gsplat-1.5", "inria"])
@pytest.mark.parametrize("packed", [True, False])
def test_negative_definite_covariances_are_culled(backend, numerics, packed):
    """Their determinant is positive, and the roots of their variances are NaN."""
    covars = torch.tensor([0.01, 0, 0, 0.01, 0, 0.01]) * torch.tensor([[-1.0], [1.0]])
    Ks = torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]])
    *_, radii, means2d, depths, conics, _ = tsplat.fully_fused_projection(
        torch.tensor([[0.0, 0, 4]] * 2), covars, None, None, torch.eye(4)[None], Ks, 80, 60, packed=packed,
        backend=backend, numerics=numerics,
    )  # fmt: skip
    rows = torch.cat([radii, means2d, depths[..., None], conics], -1)
    if not packed:
        assert not rows[0, 0].any()
        rows = rows[0, 1:]
    assert len(rows) == 1 and rows.any()


@pytest.mark.triton
@pytest.mark.parametrize("length", [10.0, 30.0])
def test_gradients_of_needles_in_fp32_are_close_to_fp64(length):
    """With the blur of 0.3, the condition number of a screen covariance is the squared length of a needle over 0.3."""
    scene = scenes.make(scenes.Structure(n=12, cameras=1, width=40, height=36, seed=1), torch.float32)
    scene["scales"] = torch.tensor([length / 36 * 4, 0.002, 0.002]).expand(12, 3).contiguous()
    assert_run_fp32(scene, backend="triton")
