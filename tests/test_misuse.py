"""Misuse of `rasterization`: every call raises a typed error, or renders the image of the reference."""

import contextlib
import dataclasses
import math
import os
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.masked import masked_tensor

import tsplat
from tests.support import lenses, lidars, scenes
from tests.support.backends import BACKENDS
from tsplat.compat import gsplat
from tsplat.compat.inria import rasterizer
from tsplat.ops.adam import Adam
from tsplat.stages.lidars import TABLES
from tsplat.strategies import operations, relocation

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("User", "Deprecation")]  # of PyTorch

EXAMPLES = int(os.environ.get("TSPLAT_MISUSES", "60"))
ERRORS = (
    tsplat.ArgumentError, tsplat.UnsupportedError, tsplat.BackendError, tsplat.MemoryBudgetError,
)  # fmt: skip


class Subclass(torch.Tensor):
    pass


UNREADABLE = {
    "fake": lambda t: FakeTensorMode().from_tensor(t),
    "meta": lambda t: t.to("meta"),
    "COO": lambda t: t.to_sparse(),
    "CSR": lambda t: t.reshape(len(t), -1).to_sparse_csr(),
    "nested": lambda t: torch.nested.as_nested_tensor([t, t]),
    "jagged": lambda t: torch.nested.as_nested_tensor([t, t], layout=torch.jagged),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "masked": lambda t: masked_tensor(t, t > 0),
    "functional": lambda t: torch._to_functional_tensor(t),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "complex": lambda t: t.to(torch.complex64),
}
"""Kinds of tensors that every operation refuses."""
READABLE = {
    "negative": lambda t: torch._neg_view(-t),
    "zero": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "subclass": lambda t: t.as_subclass(Subclass),
    "parameter": torch.nn.Parameter,
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "expanded": lambda t: t[:1].expand(t.shape),
}
OTHERS = {
    "bool": lambda t: t > 0,
    "int": lambda t: t.int(),
    "list": lambda t: t.tolist(),
    "array": lambda t: t.numpy(),
    "scalar": lambda t: t.sum(),
    "empty": lambda t: t[:0],
    "shorter": lambda t: t[1:],
    "one more dimension": lambda t: t[None],
    "None": lambda t: None,
}
KINDS = UNREADABLE | READABLE | OTHERS
TENSORS = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks", "backgrounds", "extra_signals")
VALUES = (
    0, 1, -1, 2.5, -0.3, math.nan, math.inf, -math.inf, 10**20, 10**400, True, None, "no", "RGB", [1], object(), 1j,
    np.float32(0.5), np.int64(16), np.True_, np.zeros(3), torch.tensor(1.0), torch.ones(2), torch.tensor(4),
)  # fmt: skip
SETTINGS = (
    "width", "height", "near_plane", "far_plane", "radius_clip", "eps2d", "sh_degree", "packed", "tile_size",
    "render_mode", "sparse_grad", "absgrad", "rasterize_mode", "channel_chunk", "distributed", "camera_model",
    "segmented", "with_ut", "with_eval3d", "radial_coeffs", "rolling_shutter", "viewmats_rs", "numerics", "validate",
    "ut_params", "ftheta_coeffs", "rays", "memory_budget", "group", "extra_signals_sh_degree", "backend",
    "return_normals", "global_z_order",
)  # fmt: skip


def make_scene():
    structure = scenes.Structure(n=12, cameras=2, width=19, height=13, channels=3, seed=2)
    scene = scenes.make(structure, torch.float32)
    return scene | dict(extra_signals=scene["means"].sin(), backgrounds=torch.ones(2, 6))


def check_misuse(seed, backend):
    r = random.Random(seed)
    call = make_scene() | {"backend": backend}
    tensors = TENSORS
    if r.random() < 0.3:
        rays = torch.rand(2, 13, 19, 6, generator=torch.Generator().manual_seed(3))
        call |= {"with_eval3d": True, "with_ut": r.random() < 0.5, "rays": rays}
        tensors = (*TENSORS, "rays")
    for name in r.sample(tensors, r.choice((0, 1, 1, 2))):
        call[name] = KINDS[r.choice(sorted(KINDS))](call[name])
    for name in r.sample(SETTINGS, r.choice((0, 1, 1, 2))):
        call[name] = r.choice(VALUES)
    try:
        with torch.no_grad():
            image = tsplat.rasterization(**call)[0]
    except ERRORS:
        return "refused"
    plain = {k: v.as_subclass(torch.Tensor).clone() if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    only_fast = dict(absgrad=False, sparse_grad=False, segmented=False, memory_budget=None, backend="reference")
    with torch.no_grad():
        expected = tsplat.rasterization(**(plain | only_fast))[0]
    assert torch.allclose(image.float(), expected.float(), rtol=1e-2, atol=1e-2)
    return "rendered"


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_misuse_is_refused_or_renders(backend):
    """`TSPLAT_MISUSES=1000` tries more."""

    @settings(max_examples=EXAMPLES)
    @given(seed=st.integers(0, 2**31))
    def check(seed):
        check_misuse(seed, backend)

    check()


def _operations(change):
    """Calls of all other operations, each with one changed tensor."""
    scene = make_scene()
    n, t = 12, scene["means"]
    means2d, conics, depths, alphas = torch.rand(1, n, 2), torch.rand(1, n, 3), torch.rand(1, n), torch.rand(1, n)
    radii, offsets, ids = torch.ones(1, n, 2, dtype=torch.int32), torch.zeros(1, 1, 1).int(), torch.zeros(0).int()
    camera = (scene["viewmats"], scene["Ks"], 19, 13)
    parameter = torch.nn.Parameter(t.clone())
    parameter.grad = torch.ones_like(parameter)
    optimizer = Adam([parameter])
    image = torch.rand(13, 12, 3)
    return {
        "projection": lambda: tsplat.fully_fused_projection(change(t), None, scene["quats"], scene["scales"], *camera),
        "intersection": lambda: tsplat.isect_tiles(change(means2d), radii, depths, 16, 1, 1),
        "compositing": lambda: tsplat.rasterize_to_pixels(
            means2d, conics, change(torch.rand(1, n, 3)), alphas, 16, 16, 16, offsets, ids
        ),
        "harmonics": lambda: tsplat.spherical_harmonics(0, change(t), torch.rand(n, 1, 3)),
        "covariances": lambda: tsplat.quat_scale_to_covar_preci(scene["quats"], change(scene["scales"])),
        "loss": lambda: tsplat.l1_ssim_loss(change(image), image),
        "adam": lambda: gsplat.cuda._adam.adam(
            parameter, change(t), torch.zeros_like(t), torch.zeros_like(t), torch.ones(n, dtype=torch.bool), 1, 1, 1, 1
        ),
        "Adam": lambda: optimizer.step(visible=change(torch.ones(n))),
        "degree 0": lambda: gsplat.spherical_harmonics_l0(change(torch.rand(n, 1, 3))),
        "contributors": lambda: gsplat.rasterize_num_contributing_gaussians(
            change(means2d), conics, alphas, offsets, ids, 16, 16, 16
        ),
    }


@pytest.mark.parametrize("kind", UNREADABLE)
def test_unreadable_tensors_are_refused(kind):
    for name, call in _operations(UNREADABLE[kind]).items():
        with pytest.raises((tsplat.ArgumentError, tsplat.UnsupportedError), match=r"^\w+: ") as caught:
            call()
        assert len(str(caught.value)) < 200, name


def _cameras_around():
    """Calls with cameras that are rewritten before they are checked, and their tensors by name."""
    sweep = lidars.make(3, 12, dtype=torch.float32, sweeps=True)
    yield sweep, {name: sweep[name] for name in ("viewmats", "viewmats_rs")}, None
    yield sweep, {name: getattr(sweep["lidar_coeffs"], name) for name in TABLES}, "lidar_coeffs"
    panorama = make_scene() | dict(Ks=None, camera_model="equirectangular", with_ut=True, backgrounds=None)
    yield panorama, {"viewmats": panorama["viewmats"]}, None
    wide = make_scene() | dict(camera_model="ftheta", with_ut=True, ftheta_coeffs=lenses.ftheta("ftheta", 5.0))
    fields = {
        name: torch.tensor(getattr(wide["ftheta_coeffs"], name)) for name in ("angle_to_pixeldist_poly", "max_angle")
    }
    yield wide, fields, "ftheta_coeffs"


@pytest.mark.parametrize("kind", [*UNREADABLE, "bool"])
def test_unreadable_tensors_of_cameras_around_are_refused(kind):
    for call, tensors, owner in _cameras_around():
        for name, tensor in tensors.items():
            try:
                changed = KINDS[kind](tensor)
            except (RuntimeError, IndexError, TypeError):
                continue  # PyTorch has no such tensor
            change = {name: changed} if owner is None else {owner: dataclasses.replace(call[owner], **{name: changed})}
            # Numbers of f-theta lenses may have any type that can be read.
            refused = contextlib.suppress(*ERRORS) if owner == "ftheta_coeffs" else pytest.raises(ERRORS)
            with refused as caught:
                tsplat.rasterization(**call | change)
            if caught is not None:
                assert re.match(rf"[\w.]*{name}: ", str(caught.value)) and len(str(caught.value)) < 250


def _freed(tensor):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def _tensor_arguments():
    """Operations with all their arguments; ``test_every_tensor_is_checked`` changes each of the tensors."""
    scene, n = make_scene(), 12
    means, quats, scales = (scene[name] for name in ("means", "quats", "scales"))
    camera = dict(viewmats=scene["viewmats"], Ks=scene["Ks"])
    splats = dict(means2d=torch.rand(1, n, 2) * 8, conics=torch.rand(1, n, 3), opacities=torch.rand(1, n))
    packed = {name: tensor[0] for name, tensor in splats.items()}
    screen = dict(means2d=splats["means2d"], radii=torch.full((1, n, 2), 4).int(), depths=torch.rand(1, n) + 1)
    ids = torch.zeros(n, dtype=torch.int64)
    grid = dict(tile_size=16, tile_width=1, tile_height=1)
    size = dict(image_width=16, image_height=16, tile_size=16)
    _, isect_ids, flatten_ids = tsplat.isect_tiles(**screen, **grid)
    offsets = tsplat.isect_offset_encode(isect_ids, 1, 1, 1)
    lists = dict(isect_offsets=offsets, flatten_ids=flatten_ids)
    tiles = dict(tile_offsets=offsets, flatten_ids=flatten_ids)
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    pixels = dict(pixels=torch.tensor([[1, 2], [3, 4]]), image_ids=torch.zeros(2, dtype=torch.int64))
    active, _, bits, sums, places = gsplat.build_sparse_tile_layout(**pixels, n_images=1, **grid)
    sparse_offsets = torch.tensor([0, flatten_ids.numel()]).int()
    layout = dict(
        active_tiles=active, tile_offsets=sparse_offsets, flatten_ids=flatten_ids, tile_pixel_mask=bits,
        tile_pixel_cumsum=sums, pixel_map=places, **size, tile_width=1, tile_height=1,
    )  # fmt: skip
    colors, coeffs, visible = torch.rand(1, n, 3), torch.rand(n, 4, 3), torch.rand(n) < 0.5
    counts, _ = gsplat.rasterize_num_contributing_gaussians(**splats, **tiles, **size)
    moments = dict(exp_avg=torch.zeros(n, 3), exp_avg_sq=torch.zeros(n, 3))
    rows = dict(batch_ids=ids, camera_ids=ids, gaussian_ids=torch.arange(n))
    own = dict(opacities=packed["opacities"], scales=scales, ratios=ids + 2, binoms=relocation.binomial_table())
    raster = dict(viewmatrix=torch.eye(4), projmatrix=torch.eye(4), campos=torch.zeros(3), bg=torch.zeros(3))

    def split(mask, **params):
        operations.split(params, {}, {}, mask)

    def inria(viewmatrix, projmatrix, campos, bg, **gaussians):
        settings = rasterizer.GaussianRasterizationSettings(
            16, 16, 1.0, 1.0, bg, 1.0, viewmatrix, projmatrix, 1, campos
        )
        rasterizer.GaussianRasterizer(settings)(**gaussians)

    def step(visible):
        parameter = torch.nn.Parameter(torch.zeros(n, 3))
        parameter.grad = torch.ones(n, 3)
        Adam([parameter]).step(visible=visible)

    return [
        (tsplat.fully_fused_projection, dict(
            means=means, covars=None, quats=quats, scales=scales, opacities=packed["opacities"], width=16, height=16,
            **camera,
        )),
        (tsplat.isect_tiles, dict(**screen, conics=splats["conics"], opacities=splats["opacities"], **grid)),
        (tsplat.isect_tiles, dict(
            **{name: tensor[0] for name, tensor in screen.items()}, packed=True, n_images=1, image_ids=ids, **grid
        )),
        (tsplat.isect_offset_encode, dict(isect_ids=isect_ids, n_images=1, tile_width=1, tile_height=1)),
        (tsplat.rasterize_to_pixels, dict(
            **splats, colors=colors, **lists, masks=mask, backgrounds=torch.zeros(1, 3), **size
        )),
        (tsplat.rasterize_to_pixels_eval3d, dict(
            means=means, quats=quats, scales=scales, colors=colors, opacities=splats["opacities"], **lists,
            **{name: tensor[:1] for name, tensor in camera.items()},
            masks=mask, backgrounds=torch.zeros(1, 3), rays=torch.ones(6), **size,
        )),
        (tsplat.spherical_harmonics, dict(degrees_to_use=1, dirs=means, coeffs=coeffs, masks=visible)),
        (tsplat.l1_ssim_loss, dict(image=torch.rand(12, 12, 3), target=torch.rand(12, 12, 3))),
        (step, dict(visible=visible)),
        (gsplat.cuda._adam.adam, dict(
            param=torch.zeros(n, 3), param_grad=torch.ones(n, 3), **moments, valid=visible, lr=1, b1=0.9, b2=0.9, eps=1
        )),
        (gsplat.cuda._spherical_harmonics.spherical_harmonics_l1_plus, dict(
            degrees_to_use=1, means=means, viewmats=scene["viewmats"], shN=coeffs[:, 1:], masks=visible, **rows
        )),
        (gsplat.rasterize_to_indices_in_range, dict(
            range_start=0, range_end=9, transmittances=torch.ones(1, 16, 16), **splats, **lists, **size
        )),
        (gsplat.accumulate, dict(
            **splats, colors=colors, gaussian_ids=torch.arange(n), pixel_ids=ids, image_ids=ids, image_width=16,
            image_height=16,
        )),
        (gsplat.rasterize_contributing_gaussian_ids, dict(
            **splats, **tiles, **size, num_contributing_gaussians=counts
        )),
        (gsplat.rasterize_num_contributing_gaussians_sparse, dict(**splats, **layout)),
        (gsplat.build_sparse_tile_layout, dict(**pixels, n_images=1, **grid)),
        (gsplat.isect_tiles_sparse, dict(**screen, tile_mask=mask, active_tiles=active, n_images=1, **grid)),
        (gsplat.rasterize_to_pixels_sparse, dict(
            **splats, colors=colors, image_ids=pixels["image_ids"], **layout, masks=mask, backgrounds=torch.zeros(1, 3)
        )),
        (gsplat.utils.depth_to_points, dict(
            depths=torch.ones(2, 4, 4, 1), camtoworlds=scene["viewmats"], Ks=scene["Ks"]
        )),
        (relocation.compute_relocation, own),
        (split, dict(means=means, quats=quats, scales=scales, opacities=packed["opacities"], mask=visible)),
        (inria, dict(
            **raster, means3D=means, means2D=torch.zeros(n, 3), opacities=torch.rand(n, 1), shs=coeffs, scales=scales,
            rotations=quats,
        )),
    ]  # fmt: skip


@pytest.mark.long
def test_every_tensor_is_checked():
    changes = KINDS | {"freed": _freed, "long": lambda t: t.long(), "uint64": lambda t: t.abs().to(torch.uint64)}
    foreign = []
    for function, arguments in _tensor_arguments():
        function(**arguments)
        for name, value in arguments.items():
            for kind, change in changes.items() if isinstance(value, torch.Tensor) else ():
                try:
                    other = change(value.detach().clone())
                except (RuntimeError, TypeError, NotImplementedError, ValueError):
                    continue  # PyTorch has no such tensor
                try:
                    function(**arguments | {name: other})
                except Exception as error:
                    named = re.match(r"[\w: ]+: ", str(error)) and len(str(error)) < 250
                    if not (named and isinstance(error, ERRORS)):
                        foreign.append((function.__name__, name, kind, repr(error)[:90]))
    assert not foreign, "\n".join(map(str, foreign))


def test_tracing_is_refused():
    scene = make_scene()

    def render(means):
        return tsplat.rasterization(**(scene | {"means": means}))[0]

    means, dirs = scene["means"], torch.rand(12, 3)
    with forward_ad.dual_level(), pytest.raises(tsplat.UnsupportedError, match="means: forward-mode"):
        render(forward_ad.make_dual(means, means))
    with FakeTensorMode(), pytest.raises(tsplat.UnsupportedError, match="tracing "):
        render(means)
    with pytest.raises(tsplat.UnsupportedError, match=r"torch\.jit\.trace"):
        torch.jit.trace(render, means)
    with pytest.raises(tsplat.UnsupportedError, match="tracing"):
        make_fx(render)(means)
    with pytest.raises(tsplat.UnsupportedError, match=r"torch\.func transforms"):
        torch.func.vmap(lambda x: x + tsplat.spherical_harmonics(0, dirs, dirs[:, None]))(torch.zeros(2, 12, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_batched_gradients_are_refused(backend):
    dirs = torch.rand(12, 3, requires_grad=True)
    colors = tsplat.spherical_harmonics(0, dirs, torch.rand(12, 1, 3), backend=backend)
    with pytest.raises(tsplat.UnsupportedError, match="is_grads_batched"):
        torch.autograd.grad(colors, dirs, torch.ones(2, 12, 3), is_grads_batched=True)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_freed_tensors_are_refused(backend):
    with pytest.raises(tsplat.ArgumentError, match=r"means: expected values, found .* \[12, 3\] whose memory was"):
        tsplat.rasterization(**(make_scene() | {"means": _freed(torch.rand(12, 3))}), backend=backend)


def test_negative_parameters_of_adam_are_refused():
    parameter = torch._neg_view(torch.ones(3)).requires_grad_()
    parameter.grad = torch.ones(3)
    with pytest.raises(tsplat.ArgumentError, match="params: expected tensors with memory of their own"):
        Adam([parameter]).step()
