"""Gradients of cameras: coefficients of lenses and both poses of a rolling shutter, with either footprint."""

import pytest
import torch

import tsplat
from tests.stages.test_unscented import images_and_gradients
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tests.support.lenses import PARAMETERS, make
from tests.support.slow import slow_after
from tsplat.training.view_corrections import apply_motion

COEFFICIENTS = ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs")


def names_of(scene):
    """What a scene's cameras have gradients of."""
    return ["viewmats", *(name for name in ("viewmats_rs", *COEFFICIENTS) if name in scene)]


@pytest.mark.parametrize("with_eval3d", slow_after(1, [True, False]))
@pytest.mark.parametrize(("kind", "readout"), PARAMETERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_match_reference(backend, kind, readout, with_eval3d):
    n = 150 if (kind, readout) == ("distorted pinhole", "ROLLING_TOP_TO_BOTTOM") else 15  # several blocks
    scene = make(kind, readout, 1, batch=(2,), sh_degree=2, n=n) | {"with_eval3d": with_eval3d}
    names = ["means", *names_of(scene)]
    options = dict(rasterize_mode="antialiased", render_mode="RGB+D")
    scene["backgrounds"] = None
    *found, _ = images_and_gradients(scene, names, backend=backend, packed=True, **options)
    *expected, _ = images_and_gradients(scene, names, backend="reference", packed=False, **options)
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        assert_exact(name, one, other)
    assert all(t.abs().max() > 1e-3 for t in found[3:])


@pytest.mark.parametrize(
    ("with_eval3d", "numerics"), slow_after(2, [(False, "gsplat-1.5"), (True, "gsplat-1.5"), (False, "gsplat-1.6")])
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_fast_motions_match_reference(backend, with_eval3d, numerics):
    """Iterations that find the time of an exposure converge slowly if a point moves by much of a small image."""
    scene = make("pinhole", "ROLLING_TOP_TO_BOTTOM", 2, width=7, height=5, n=30)
    scene |= {"with_eval3d": with_eval3d, "backgrounds": None, "numerics": numerics}
    scene["viewmats_rs"][:, 1, 3] += 0.4
    names = ["means", "scales", *names_of(scene)]
    *found, meta = images_and_gradients(scene, names, backend=backend, packed=False)
    *expected, _ = images_and_gradients(scene, names, backend="reference", packed=False)
    assert (meta["radii"] > 0).all(-1).sum() > 3
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        assert_exact(name, one, other)


@pytest.mark.parametrize("with_eval3d", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_cameras_that_do_not_turn_match_reference(backend, with_eval3d):
    """The angle between both rotations is 0, but each of them has a gradient."""
    scene = make("pinhole", "ROLLING_TOP_TO_BOTTOM", 1) | {"with_eval3d": with_eval3d, "backgrounds": None}
    for name in ("viewmats", "viewmats_rs"):
        scene[name][..., :3, :3] = torch.eye(3)
    *found, _ = images_and_gradients(scene, names_of(scene), backend=backend)
    *expected, _ = images_and_gradients(scene, names_of(scene), backend="reference")
    for name, one, other in zip(["colors", "alphas", *names_of(scene)], found, expected):
        assert_exact(name, one, other)
    assert found[-1][..., :3, :3].abs().max() > 1e-3


@pytest.mark.parametrize("with_eval3d", slow_after(1, [False, True]))
@pytest.mark.parametrize(("kind", "readout"), PARAMETERS)
def test_gradcheck(kind, readout, with_eval3d):
    """Finite differences of the reference, along motions of cameras and every coefficient: a camera for each.

    They are those of three random sums of all pixels. Bounds and steps are those of torch.autograd.gradcheck.
    """
    scene = make(kind, readout, n=4, cameras=1, width=12, height=9, sh_degree=1)
    scene |= {"with_eval3d": with_eval3d, "backgrounds": None, "backend": "reference", "packed": False}
    names = names_of(scene)
    sizes = [6 if name.startswith("viewmats") else scene[name].shape[-1] for name in names]
    start = torch.cat([torch.zeros(6) if name.startswith("viewmats") else scene[name][0] for name in names]).double()
    weights = torch.randn(3, 9, 12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def render(cameras):  # [C, P] -> [C, 3]
        given = scene | {"Ks": scene["Ks"].expand(len(cameras), 3, 3)}
        for name, values in zip(names, cameras.split(sizes, 1)):
            if name.startswith("viewmats"):
                values = torch.stack([apply_motion(scene[name][0], motion) for motion in values])
            given[name] = values
        colors, alphas, _ = tsplat.rasterization(**given)
        return torch.einsum("chwd,shwd->cs", torch.cat([colors, alphas], -1), weights)

    steps = 1e-6 * torch.eye(len(start), dtype=torch.float64)
    with torch.no_grad():
        expected = (render(start + steps) - render(start - steps)) / 2e-6
    start.requires_grad_()
    found = torch.stack([torch.autograd.grad(one, start, retain_graph=True)[0] for one in render(start[None])[0]], 1)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_not_asked_for_do_not_change_the_others(backend):
    scene = make("distorted pinhole", "ROLLING_TOP_TO_BOTTOM", dtype=torch.float32) | {"with_eval3d": True}
    *found, _ = images_and_gradients(scene, ["means", "quats", *names_of(scene)], backend=backend)
    *expected, _ = images_and_gradients(scene, ["means", "quats"], backend=backend)
    assert all(torch.equal(one, other) for one, other in zip(found, expected))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turn", [0.0, 1e-6, 1e-3, 0.1])
def test_fp32_poses_of_small_and_large_turns(backend, turn):
    """Turns of less than an epsilon are none; gradients of both poses stay precise above."""
    scene = make("pinhole", "ROLLING_TOP_TO_BOTTOM", n=40, width=40, height=30, sh_degree=0)
    rotation = scenes._small_rotations(torch.tensor([0.2, -0.3, 0.9], dtype=torch.float64) * turn)
    start = scene["viewmats"].float().double()
    scene["viewmats"], scene["viewmats_rs"] = start, start.clone()
    scene["viewmats_rs"][:, :3, :3] = rotation @ start[:, :3, :3]
    scene["viewmats_rs"][:, :3, 3] += 0.02
    single = {k: t.float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for k, t in scene.items()}
    names = ["viewmats", "viewmats_rs"]
    *_, start32, end32, _ = images_and_gradients(single, names, backend=backend)
    *_, start64, end64, _ = images_and_gradients(scene, names, backend="torch")
    for one, other in ((start32, start64), (end32, end64)):
        assert (one.double() - other).abs().max() < 5e-3 * other.abs().max()


@pytest.mark.parametrize("row", [torch.nan, 0.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_invalid_cameras_have_no_gradient(backend, row):
    """A row of zeros makes a rotation singular."""
    scene = make("distorted fisheye", "ROLLING_LEFT_TO_RIGHT", sh_degree=1) | {"with_eval3d": True}
    scene["viewmats_rs"][1, 0, :3] = row
    names = names_of(scene)
    *found, _ = images_and_gradients(scene, names, backend=backend)
    assert all(t.isfinite().all() for t in found)
    assert all(t[0].any() and not t[1].any() for t in found[2:])


@pytest.mark.slow
@pytest.mark.parametrize("with_eval3d", [False, True])
def test_a_lens_and_poses_are_found_from_images(with_eval3d):
    """Gradient descent finds the distortion and the motion that images were rendered with."""
    scene = make("distorted pinhole", "ROLLING_TOP_TO_BOTTOM", 3, dtype=torch.float32, n=60, width=48, height=40)
    scene |= {"with_eval3d": with_eval3d, "backgrounds": None}
    radial, end = scene["radial_coeffs"], scene["viewmats_rs"]
    with torch.no_grad():
        target = tsplat.rasterization(**scene)[0]
    found = torch.zeros_like(radial[:, :2]).requires_grad_()
    shift = torch.zeros(len(end), 3).requires_grad_()
    true_shift = torch.tensor([0.05, -0.03, 0.04])
    start = end.clone()
    start[:, :3, 3] -= true_shift
    optimizer = torch.optim.Adam([{"params": [found], "lr": 0.01}, {"params": [shift], "lr": 0.004}])
    rest = radial[:, 2:]
    losses = []
    for _ in range(150):
        for group in optimizer.param_groups:
            group["lr"] *= 0.985
        moved = torch.cat([start[:, :3, :3], start[:, :3, 3:] + shift[..., None]], -1)
        scene["viewmats_rs"] = torch.cat([moved, start[:, 3:]], 1)
        scene["radial_coeffs"] = torch.cat([found, rest], -1)
        loss = (tsplat.rasterization(**scene)[0] - target).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.02 * losses[0]
    assert (shift - true_shift).abs().max() < 0.01
