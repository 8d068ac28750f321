"""Culling by boxes, and one by one, does not change images."""

import dataclasses

import pytest
import torch

from tests.support.slow import slow_after
from tsplat.rendering import render_views
from tsplat.scene import Camera, Gaussians, culling, intrinsics, look_at
from tsplat.scene.culling import CulledModel, rows_in_sight


def model(n, seed, *, surfels=False, size=-3.0):
    generator = torch.Generator().manual_seed(seed)
    gaussians = Gaussians.from_points(
        4 * torch.randn(n, 3, generator=generator), torch.rand(n, 3, generator=generator), 1
    )
    values = gaussians.tensors() | dict(
        log_scales=size + torch.randn(n, 3, generator=generator),
        quats=torch.randn(n, 4, generator=generator),
        opacity_logits=4 * torch.randn(n, generator=generator),
    )
    gaussians = Gaussians(**values)
    return gaussians.as_surfels() if surfels else gaussians


def camera(seed, **options):
    generator = torch.Generator().manual_seed(1000 + seed)
    eye, target = (6 * torch.randn(2, 3, generator=generator)).tolist()
    K = intrinsics(24, 16, 20.0 + 130 * float(torch.rand((), generator=generator)))
    K[:2, 2] += 40 * torch.randn(2, generator=generator)
    return Camera(look_at(eye, target), K, 24, 16, **options)


@pytest.fixture(autouse=True)
def chunks_of_one(monkeypatch):
    monkeypatch.setattr(culling, "CHUNK", 1)


@pytest.mark.parametrize("surfels", slow_after(1, [False, True]))
@pytest.mark.parametrize("antialiased", slow_after(1, [False, True]))
def test_images_are_equal(surfels, antialiased):
    if surfels and antialiased:
        pytest.skip("2D Gaussians are not antialiased")
    n, culled = 300, 0
    for seed in range(60):
        gaussians = model(n, seed, surfels=surfels, size=-seed % 5 - 4.0)
        gaussians = dataclasses.replace(gaussians, antialiased=antialiased)
        view = camera(seed)
        seen = CulledModel(gaussians).seen_by(view)
        culled += n - len(seen)
        for image, expected in zip(*(render_views(g, [view], backend="torch")[:2] for g in (seen, gaussians))):
            torch.testing.assert_close(image, expected, rtol=0, atol=1e-6)
    assert culled > 10 * n


@pytest.mark.parametrize(("eps2d", "chunk"), slow_after(1, [(0.3, 1), (30.0, 1), (0.3, 8)]))
def test_what_is_left_out_has_no_radius(eps2d, chunk, monkeypatch):
    monkeypatch.setattr(culling, "CHUNK", chunk)
    for seed in range(60):
        gaussians, view = model(400, seed, size=-2.0), camera(seed)
        # Colors that are ids find the Gaussians that are left.
        ids = torch.arange(400.0)[:, None, None].expand(400, 1, 3)
        seen = CulledModel(dataclasses.replace(gaussians, sh0=ids)).seen_by(view, near=1.0, eps2d=eps2d).sh0[:, 0, 0]
        radii = render_views(gaussians, [view], backend="torch", near_plane=1.0, eps2d=eps2d)[2]["radii"][0]
        shown = (radii > 0).all(-1).nonzero().squeeze(1).tolist()
        assert set(shown) <= set(seen.long().tolist())


@pytest.mark.parametrize(("eps2d", "far_away"), slow_after(1, [(0.3, 0.0), (30.0, 0.0), (0.3, 3000.0)]))
def test_rows_in_sight_are_at_least_those_that_are_shown(eps2d, far_away, monkeypatch):
    monkeypatch.setattr(culling, "BLOCK", 150)
    n_rows = n_shown = 0
    for seed in range(60):
        gaussians, view = model(400, seed, size=-seed % 5 - 3.0), camera(seed)
        if seed % 3 == 0:  # poses may scale
            viewmat = view.viewmat.clone()
            viewmat[:3] *= 3.0
            view = dataclasses.replace(view, viewmat=viewmat)
        moved = gaussians.means + far_away
        moved[::7] *= torch.tensor(float("nan")) if seed == 1 else 1.0
        gaussians = dataclasses.replace(gaussians, means=moved)
        shift = torch.eye(4)
        shift[:3, 3] = -far_away
        view = dataclasses.replace(view, viewmat=view.viewmat @ shift)
        rows = rows_in_sight(gaussians.means, gaussians.log_scales, view, near=1.0, eps2d=eps2d)
        radii = render_views(gaussians, [view], backend="torch", near_plane=1.0, eps2d=eps2d)[2]["radii"][0]
        shown = (radii > 0).all(-1).nonzero().squeeze(1).tolist()
        assert rows.tolist() == sorted(set(rows.tolist())) and set(shown) <= set(rows.tolist())
        n_rows, n_shown = n_rows + len(rows), n_shown + len(shown)
    assert far_away or n_rows < 60 * 400 / 2
    assert n_shown > 100


def test_few_rows_are_in_sight_that_are_not_shown():
    gaussians = model(4096, 0, size=-6.0)
    view = Camera(look_at((0.0, 0, -3), (0, 0, 0)), intrinsics(240, 160, 30.0), 240, 160)
    radii = render_views(gaussians, [view], backend="torch")[2]["radii"][0]
    n_shown = int((radii > 0).all(-1).sum())
    n_rows = len(rows_in_sight(gaussians.means, gaussians.log_scales, view))
    assert 50 < n_shown <= n_rows < 1.2 * n_shown


def test_chunks_hide_what_is_behind_the_camera():
    gaussians = model(4096, 0, size=-6.0)
    view = Camera(look_at((0.0, 0, -3), (0, 0, -30)), intrinsics(24, 16, 60.0), 24, 16)
    n_ahead = int((gaussians.means[:, 2] < -3).sum())
    assert len(CulledModel(gaussians).seen_by(view)) < 1.01 * n_ahead


@pytest.mark.parametrize("sample", [8, 1 << 15])
@pytest.mark.parametrize("options", [dict(), dict(model="ortho"), dict(model="fisheye")], ids=str)
@pytest.mark.parametrize("antialiased", [False, True])
def test_largest_are_chosen_by_opacity_and_area(sample, options, antialiased, monkeypatch):
    monkeypatch.setattr(culling, "SAMPLE", sample)
    gaussians = dataclasses.replace(model(300, 0), antialiased=antialiased)
    view = dataclasses.replace(camera(0), **options)
    culled = CulledModel(gaussians)
    seen = culled.seen_by(view, near=0.5)
    ids = (gaussians.means[:, None] == seen.means).all(-1).nonzero()[:, 0]
    local = seen.means @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
    distances = {"pinhole": local[:, 2].clamp_min(0.5), "ortho": 1.0, "fisheye": local.norm(dim=-1)}[view.model]
    areas = seen.scales.sort(-1).values[:, 1:].prod(1) * view.K[0, 0] * view.K[1, 1] / distances**2
    weights = seen.opacities * (areas + (0.0 if antialiased else 0.3))
    for n in (1, 20, len(seen) - 1):
        found = culled.seen_by(view, near=0.5, n_max=n)
        assert torch.equal(found.means, gaussians.means[ids[weights.topk(n).indices].sort().values])
    assert len(culled.seen_by(view, near=0.5, n_max=len(seen))) == len(seen)


@pytest.mark.parametrize(
    "options",
    [dict(model="fisheye"), dict(model="ortho"), dict(distortion=torch.tensor([0.1, 0, 0, 0])),
     dict(viewmat_end=torch.eye(4), readout="ROLLING_TOP_TO_BOTTOM")],
    ids=["fisheye", "ortho", "distortion", "rolling shutter"],
)  # fmt: skip
def test_other_cameras_see_all(options):
    gaussians = model(64, 0)
    assert CulledModel(gaussians).seen_by(camera(0, **options)) is gaussians


def test_empty_and_non_finite_models():
    empty = model(5, 0).select(slice(0))
    assert len(CulledModel(empty).seen_by(camera(0))) == 0
    gaussians = model(12, 0)
    gaussians.means[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    gaussians.log_scales[3:6] = torch.tensor([torch.nan, torch.inf, 90.0])[:, None]
    for seed in range(5):
        view = camera(seed)
        seen = CulledModel(gaussians).seen_by(view)
        images = [render_views(g, [view], backend="torch")[0] for g in (seen, gaussians)]
        torch.testing.assert_close(*images, rtol=0, atol=1e-6)
