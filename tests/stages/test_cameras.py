"""A tensor that is added to cameras reaches kernels, validation, and other ranks: here a shift of the image."""

import re
from typing import Annotated, NamedTuple, get_type_hints

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import tsplat
from tests.support import scenes
from tsplat import kernels_torch
from tsplat.config import CameraField
from tsplat.data import Cameras

VIEWMATS, KS, *_ = get_type_hints(Cameras, include_extras=True).values()
PROJECTION = {name: getattr(kernels_torch, name) for name in ("projection_fwd", "projection_bwd")}


class Shifted(NamedTuple):
    """Cameras whose images are shifted by ``shift`` [B, C, 2] pixels."""

    viewmats: VIEWMATS
    Ks: KS
    shift: Annotated[Tensor | None, CameraField((2,), "check the lens", differentiable=True)] = None


class Constant(NamedTuple):
    viewmats: VIEWMATS
    Ks: KS
    shift: Annotated[Tensor, CameraField((2,), "check the lens")]


def plain(cameras):
    """Cameras of today that see the same."""
    moved = cameras.Ks.clone()
    shift = getattr(cameras, "shift", None)
    if shift is not None:
        moved[..., :2, 2] += shift
    return Cameras(cameras.viewmats, moved)


def projection_fwd(gaussians, cameras, settings):
    assert all(tensor is None or tensor.isfinite().all() for tensor in cameras), "invalid tensors reach no kernel"
    return PROJECTION["projection_fwd"](gaussians, plain(cameras), settings)


def projection_bwd(gaussians, cameras, dense_ids, radii, v, settings, needs):
    v_gaussians, v_cameras = PROJECTION["projection_bwd"](
        gaussians, plain(cameras), dense_ids, radii, v, settings, Cameras(needs.viewmats, needs.Ks)
    )
    per_camera = v.v_means2d.view(*cameras.viewmats.shape[:2], -1, 2)
    return v_gaussians, Shifted(v_cameras.viewmats, v_cameras.Ks, shift=per_camera.sum(2) if needs.shift else None)


def render(patch, scene, kind, shift, **options):
    """Renders with cameras that have a shift. Kernels that know it take the place of today's."""
    patch.setattr(kernels_torch, "projection_fwd", projection_fwd)
    patch.setattr(kernels_torch, "projection_bwd", projection_bwd)
    with pytest.MonkeyPatch.context() as within:
        within.setattr("tsplat.stages.call.Cameras", lambda viewmats, Ks: kind(viewmats, Ks, shift))
        return tsplat.rasterization(**scene, packed=False, backend="torch", **options)


def render_plain(scene, shift, **options):
    """Renders the same with cameras of today."""
    cameras = plain(Shifted(scene["viewmats"], scene["Ks"], shift))
    return tsplat.rasterization(
        **scene | {"viewmats": cameras.viewmats, "Ks": cameras.Ks}, packed=False, backend="torch", **options
    )


def make(dtype=torch.float64, **structure):
    return scenes.make(scenes.Structure(**dict(n=20, cameras=2) | structure), dtype)


@pytest.mark.parametrize("batch", [(), (2, 1)])
def test_kernels(monkeypatch, batch):
    scene = make(batch=batch)
    shift = torch.tensor([[3.0, -2.0], [0.5, 4.0]]).expand(*batch, 2, 2).clone().requires_grad_()
    expected = render_plain(scene, shift.detach())
    found = render(monkeypatch, scene, Shifted, shift)
    assert torch.equal(found[0], expected[0]) and not torch.equal(found[0][..., 0, :, :, :], found[0][..., 1, :, :, :])
    found[2]["means2d"].retain_grad()
    found[0].square().sum().backward()
    assert shift.grad.abs().min() > 0
    torch.testing.assert_close(shift.grad, found[2]["means2d"].grad.sum(-2).float())
    without = render(monkeypatch, scene, Shifted, None)
    assert torch.equal(without[0], render_plain(scene, None)[0])


@pytest.mark.parametrize(
    ("kind", "shift", "error", "words"),
    [
        (Shifted, torch.zeros(2, 3), tsplat.ShapeError, "shift: expected [..., C, 2] as viewmats, here [2, 2], found"),
        (Shifted, torch.zeros(3, 2), tsplat.ShapeError, "shift: expected [..., C, 2] as viewmats, here [2, 2], found"),
        (Shifted, torch.zeros(2), tsplat.ShapeError, "add a camera dimension: shift[None]"),
        (Shifted, torch.zeros(2, 2, dtype=torch.int64), tsplat.DtypeError, "shift: expected"),
        (Shifted, torch.zeros(2, 2).to_sparse(), tsplat.UnsupportedError, "shift: tensors of layout torch.sparse_coo"),
        (Shifted, torch.zeros(2, 2, device="meta"), tsplat.DeviceError, "shift: is on meta"),
        (Constant, torch.zeros(2, 2).requires_grad_(), tsplat.UnsupportedError, "shift: its gradient is not impl"),
        (Constant, None, tsplat.ArgumentError, "shift: expected a tensor [..., C, 2] as viewmats, found NoneType"),
    ],
)
def test_checks(monkeypatch, kind, shift, error, words):
    with pytest.raises(error, match=re.escape(words)):
        render(monkeypatch, make(), kind, shift)


def test_validation(monkeypatch):
    scene = make()
    shift = torch.tensor([[3.0, -2.0], [0.5, torch.nan]], requires_grad=True)
    with pytest.raises(tsplat.InvalidValueError, match=r"shift: 1 of 2 cameras are not .* camera 1\); check the lens"):
        render(monkeypatch, scene, Shifted, shift, validate="error")
    colors, alphas, _ = render(monkeypatch, scene, Shifted, shift)
    valid = shift.detach().nan_to_num()
    expected = render_plain(scene, valid)
    assert torch.equal(colors[0], expected[0][0]) and alphas[0].max() > 0
    assert torch.equal(alphas[1], torch.zeros_like(alphas[1])), "the invalid camera sees nothing"
    colors.sum().backward()
    assert shift.grad[0].abs().min() > 0 and torch.equal(shift.grad[1], torch.zeros(2))
    unchecked, _, _ = render(monkeypatch, scene, Shifted, valid, validate="off")
    assert torch.equal(unchecked, render_plain(scene, valid, validate="off")[0])


SHIFT = torch.tensor([[3.0, -2.0], [0.5, 4.0]], dtype=torch.float64)
PER_GAUSSIAN, PER_CAMERA = {"means", "quats", "scales", "opacities", "colors"}, {"viewmats", "Ks", "backgrounds"}


def gradients_of(patch, scene, shift, **options):
    leaves = {name: scene[name].clone().requires_grad_() for name in ("means", "viewmats")}
    shift = shift.clone().requires_grad_()
    colors, _, _ = render(patch, scene | leaves, Shifted, shift, **options)
    colors.square().sum().backward()
    return colors.detach(), leaves["means"].grad, leaves["viewmats"].grad, shift.grad


def run_rank(rank, folder):
    """Two ranks, each with half of the Gaussians and one camera, render what a single process does."""
    torch.set_num_threads(1)
    scene = make()
    with pytest.MonkeyPatch.context() as patch:
        expected = gradients_of(patch, scene, SHIFT)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        gaussians, camera = slice(10 * rank, 10 * rank + 10), slice(rank, rank + 1)
        parts = dict.fromkeys(PER_GAUSSIAN, gaussians) | dict.fromkeys(PER_CAMERA, camera)
        own = scene | {name: scene[name][part] for name, part in parts.items()}
        found = gradients_of(patch, own, SHIFT[camera], distributed=True)
        wanted = (expected[0][camera], expected[1][gaussians], expected[2][camera], expected[3][camera])
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        words = re.escape("shift per camera: [2] on rank 0, None on rank 1")
        with pytest.raises(tsplat.DisagreementError, match=words):
            render(patch, own, Shifted, None if rank else SHIFT[camera], distributed=True)
        dist.destroy_process_group()


RANKS = """
import multiprocessing, sys
from tests.stages.test_cameras import run_rank

ranks = [multiprocessing.get_context("fork").Process(target=run_rank, args=(rank, sys.argv[1])) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
sys.exit(max(rank.exitcode for rank in ranks))
"""


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_two_ranks(forks, tmp_path):
    found = forks.run(RANKS, tmp_path)
    assert found.returncode == 0, found.stderr
