"""The modes of `validate`: culling of invalid Gaussians and cameras, and error messages."""

import dataclasses
import math

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import run
from tsplat import kernels_torch
from tsplat.config import PRESETS
from tsplat.data import Cameras, Gaussians3D
from tsplat.kernels_torch.validation import camera_centers
from tsplat.stages.validation import mark_valid

STRUCTURE = scenes.Structure(n=12, cameras=2, channels=3, width=20, height=18, seed=5)
STEPPED = "did an optimizer step with a non-finite gradient?"


def scene(sh_degree=None, **changes):
    made = scenes.make(dataclasses.replace(STRUCTURE, sh_degree=sh_degree), torch.float32)
    for name, change in changes.items():
        made[name] = change(made[name].clone())
    return made


def put(value, *index):
    """Returns a function that sets an entry of a tensor."""

    def change(tensor):
        tensor[index] = value
        return tensor

    return change


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2e12, -3e38])
@pytest.mark.parametrize("name", ["means", "quats", "scales", "colors"])
def test_invalid_gaussian_is_culled_and_has_no_gradient(name, value, backend):
    found, meta = run(scene(**{name: put(value, 3, 1)}), backend=backend, packed=False)
    assert int(meta["n_invalid"]) == 1
    assert not (meta["radii"][..., 3, :] > 0).any()
    for key in ("means", "quats", "scales", "opacities", "colors"):
        assert not found[f"v_{key}"][3].any()
        assert found[f"v_{key}"].isfinite().all()
    clean, _ = run(scene(opacities=put(0.0, 3)), backend=backend)
    assert torch.equal(found["colors"], clean["colors"])


def test_zero_quaternion_is_culled():
    found, meta = run(scene(quats=put(0.0, 4)))
    assert int(meta["n_invalid"]) == 1
    assert not found["v_quats"][4].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_number_of_invalid_gaussians(backend):
    structure = scenes.Structure(n=5, cameras=2, per_camera_colors=True, width=8, height=8, seed=1)
    scene = scenes.make(structure, torch.float32)
    scene["quats"][1] = 0.0
    scene["quats"][2] = 1e-13
    scene["colors"][1, 3, 0] = math.nan
    found, meta = run(scene, backend=backend, packed=False)
    assert int(meta["n_invalid"]) == 3
    assert not meta["radii"][:, 1:4].any()
    assert not found["v_quats"][1:4].any()


@pytest.mark.triton
@pytest.mark.parametrize("packed", [False, True])
def test_invalid_colors_of_many_channels_are_culled(packed):
    structure = scenes.Structure(n=5, width=12, height=9, channels=16, seed=2)
    scene = scenes.make(structure, torch.float64)
    invalid = {name: tensor.clone() if torch.is_tensor(tensor) else tensor for name, tensor in scene.items()}
    invalid["colors"][0] = float("nan")
    invalid["opacities"][0] = 0.5
    results = []
    for backend in ("triton", "torch"):
        colors, alphas, meta = tsplat.rasterization(**invalid, backend=backend, packed=packed, tile_size=4)
        assert int(meta["n_invalid"]) == 1
        results.append((colors, alphas))
        assert colors.isfinite().all()
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_colors_in_half_precision_are_invalid(backend, dtype, value):
    made = scene()
    made["colors"] = made["colors"].to(dtype)
    made["colors"][3, 1] = value
    colors, _, meta = tsplat.rasterization(**made, backend=backend, packed=False)
    assert int(meta["n_invalid"]) == 1 and not meta["radii"][:, 3].any()
    assert colors.isfinite().all()
    with pytest.raises(tsplat.InvalidValueError, match="colors: 1 of 12 Gaussians are not finite"):
        tsplat.rasterization(**made, backend=backend, validate="error")


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize(
    "change",
    [
        dict(viewmats=put(math.nan, 0, 1, 2)),
        dict(viewmats=put(0.0, 0, slice(3), slice(3))),
        dict(Ks=put(math.inf, 0, 0, 2)),
        dict(Ks=put(0.0, 0, 1, 1)),
    ],
    ids=["not finite", "singular", "intrinsics", "focal length"],
)
def test_invalid_camera_renders_background_only(change, backend):
    found, meta = run(scene(sh_degree=1, **change), backend=backend)
    clean, _ = run(scene(sh_degree=1), backend=backend)
    background = scene(sh_degree=1)["backgrounds"][0]
    assert torch.equal(found["colors"][0], background.expand_as(found["colors"][0]))
    assert torch.equal(found["colors"][1], clean["colors"][1])
    assert not found["v_viewmats"][0].any()
    assert all(t.isfinite().all() for t in found.values() if t is not None)
    assert int(meta["n_invalid"]) == 0


CAMERAS = {
    "valid": lambda viewmats, Ks: None,
    "not finite": lambda viewmats, Ks: viewmats[1, :, 3, 1].fill_(math.nan),
    "large": lambda viewmats, Ks: Ks[0, :, 2, 0].fill_(-2e12),
    "focal length": lambda viewmats, Ks: Ks[..., 1, 1].mul_(1e-14),
    "scaled": lambda viewmats, Ks: viewmats[..., :3, :3].mul_(1.7),
    # Determinants around the smallest valid one.
    "singular": lambda viewmats, Ks: viewmats[..., :3, :3].mul_(torch.linspace(0.9, 1.1, 50)[:, None, None] * 1e-4),
}


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numerics", ["gsplat-1.5", "gsplat-1.6"])
@pytest.mark.parametrize("change", CAMERAS)
def test_cameras_equal_those_of_pytorch_operators(change, numerics, dtype):
    made = scenes.make(dataclasses.replace(STRUCTURE, batch=(2,), cameras=50), dtype)
    viewmats, Ks = made["viewmats"].clone(), made["Ks"].clone()
    CAMERAS[change](viewmats, Ks)
    kernels = pytest.importorskip("tsplat.kernels")
    cameras, gaussians = Cameras(viewmats, Ks), Gaussians3D(*(made.get(k) for k in Gaussians3D._fields))
    for checked in (None, gaussians):
        _, found, centers, valid = kernels.find_valid(checked, {}, cameras, PRESETS[numerics])
        _, *expected = kernels_torch.find_valid(checked, {}, cameras, PRESETS[numerics])
        for a, b in zip((*found, centers, valid), (*expected[0], *expected[1:]), strict=True):
            assert (a is None and b is None) or torch.equal(a.nan_to_num(), b.nan_to_num())
    n_valid = int(valid.sum())
    assert n_valid == {"valid": 100, "scaled": 100, "focal length": 0}.get(change, n_valid)
    assert change in ("valid", "scaled", "focal length") or 0 < n_valid < 100


@pytest.mark.parametrize("numerics", ["gsplat-1.5", "gsplat-1.6"])
@pytest.mark.parametrize("check", [False, True])
def test_gradients_of_prepared_cameras(check, numerics):
    made = scenes.make(dataclasses.replace(STRUCTURE, batch=(1,), cameras=3), torch.float64)
    made["viewmats"][0, 1, :3, :3] *= 1.3
    if check:
        made["viewmats"][0, 2, 0, 0] = math.nan
    gaussians = Gaussians3D(*(made.get(k) for k in Gaussians3D._fields))
    viewmats = made["viewmats"].requires_grad_()

    made_cameras = Cameras(viewmats, made["Ks"])
    _, cameras, centers = mark_valid(gaussians, {}, made_cameras, PRESETS[numerics], "torch", check=check)
    (found,) = torch.autograd.grad((cameras.viewmats * cameras.viewmats).sum() + centers.square().sum(), viewmats)
    leaf = cameras.viewmats.detach().requires_grad_()
    squares = leaf.square().sum() + camera_centers(leaf, PRESETS[numerics]).square().sum()
    (expected,) = torch.autograd.grad(squares, leaf)
    assert torch.equal(found[0, :2], expected[0, :2])
    assert torch.equal(found[0, 2], torch.zeros(4, 4, dtype=torch.float64) if check else expected[0, 2])


def test_off_renders_invalid_values():
    found, meta = run(scene(colors=put(math.nan, 3)), validate="off")
    assert meta["n_invalid"] is None
    assert found["colors"].isnan().any()


def test_infinite_gradients_are_kept_for_gradient_scaling():
    inputs = scenes.leaves(scene())
    colors, _, _ = tsplat.rasterization(**inputs)
    colors.backward(torch.full_like(colors, math.inf))
    assert not inputs["means"].grad.isfinite().all()


MESSAGES = {
    "viewmats: 1 of 2 cameras are not finite (first: camera 1); check the poses": dict(viewmats=put(math.nan, 1, 0, 3)),
    "Ks: 1 of 2 cameras exceed 1e+12 in magnitude (first: camera 0); check the intrinsics": dict(Ks=put(1e13, 0, 0, 0)),
    f"means: 2 of 12 Gaussians are not finite (first: Gaussian 2); {STEPPED}": dict(means=put(math.nan, [2, 7], 0)),
    f"colors: 1 of 12 Gaussians exceed 1e+12 in magnitude (first: Gaussian 5); {STEPPED}": dict(colors=put(1e20, 5)),
    f"opacities: 1 of 12 Gaussians are not finite (first: Gaussian 1); {STEPPED}": dict(opacities=put(math.inf, 1)),
    "Ks: 1 of 2 cameras have a focal length of zero (first: camera 0); check the intrinsics": dict(
        Ks=put(0.0, 0, 0, 0)
    ),
    "viewmats: 1 of 2 cameras have a singular rotation (first: camera 0); check the poses": dict(
        viewmats=put(0.0, 0, slice(3), slice(3))
    ),
    "quats: 3 of 12 Gaussians have zero norm (first: Gaussian 0); remove them, or set them to 1 0 0 0": dict(
        quats=put(0.0, slice(3))
    ),
    "scales: 2 of 12 Gaussians are negative (first: Gaussian 9); is exp() missing?": dict(
        scales=put(-1.0, slice(9, 11), 1)
    ),
    "opacities: 1 of 12 Gaussians are outside [0, 1] (first: Gaussian 8); is sigmoid() missing?": dict(
        opacities=put(1.5, 8)
    ),
    "was exp() applied twice?": dict(scales=lambda scales: (scales + 4).exp()),
}


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("message", MESSAGES)
def test_error_messages(message, backend):
    with pytest.raises(tsplat.InvalidValueError) as caught:
        tsplat.rasterization(**scene(**MESSAGES[message]), validate="error", backend=backend)
    assert str(caught.value).endswith(message) if message.startswith("was") else str(caught.value) == message


def test_error_mode_accepts_valid_scenes():
    clean, _ = run(scene())
    checked, _ = run(scene(), validate="error")
    assert all(torch.equal(clean[name], checked[name]) for name in clean)


def test_error_mode_with_covariances_and_colors_per_camera():
    structure = scenes.Structure(n=6, cameras=2, covars=True, per_camera_colors=True, sh_degree=1, batch=(2,), seed=1)
    made = scenes.make(structure, torch.float32)
    tsplat.rasterization(**made, validate="error")
    made["colors"][1, 0, 4, 2, 1] = math.nan
    with pytest.raises(
        tsplat.InvalidValueError, match=r"colors: 1 of 12 Gaussians are not finite \(first: Gaussian 10\)"
    ):
        tsplat.rasterization(**made, validate="error")


NOTHING = {
    r"all Gaussians ahead are nearer than near_plane, 100, at depths of up to \d.*; if": dict(near_plane=100.0),
    r"all Gaussians ahead are farther than far_plane, 0.02, at depths of up to \d": dict(far_plane=0.02),
    "all Gaussians are behind the cameras; check the poses": dict(viewmats=lambda poses: ahead(poses, -50.0)),
    "all opacities are below 1/255, up to 0.001": dict(opacities=lambda opacities: 0.001 + 0 * opacities),
}


def ahead(poses, depth=50.0):
    """Poses from which the origin is at a depth."""
    poses = torch.eye(4).expand_as(poses).clone()
    poses[..., 2, 3] = depth
    return poses


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("reason", NOTHING)
def test_error_mode_says_why_nothing_is_visible(reason, backend, recwarn):
    near = dict(viewmats=ahead)
    changes = near | {name: change for name, change in NOTHING[reason].items() if callable(change)}
    planes = {name: value for name, value in NOTHING[reason].items() if not callable(value)}
    made = {**scene(**changes), **planes}
    with pytest.warns(UserWarning, match=f"nothing is visible: {reason}"):
        _, alphas, _ = tsplat.rasterization(**made, validate="error", backend=backend)
    assert not alphas.any()
    recwarn.clear()
    tsplat.rasterization(**made, backend=backend)
    tsplat.rasterization(**scene(**near), validate="error", backend=backend)
    assert not [warning for warning in recwarn if "nothing is visible" in str(warning.message)]


def test_unknown_mode_raises():
    with pytest.raises(tsplat.ArgumentError, match="validate: expected one of 'cull', 'error', 'off', found 'warn'"):
        tsplat.rasterization(**scene(), validate="warn")
