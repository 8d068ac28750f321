"""How close is close: the one tolerance policy of all tests. Limits change only with a decision record.

1. The same code in fp64 against the truth: `assert_exact`, a relative error of 1e-9 of the tensor's largest entry.
2. In fp32 against that truth: `assert_fp32`, four times the error of plain PyTorch in fp32, or 64 epsilons of the
   tensor's largest entry. One plain run can be lucky: where it was, more with inputs jittered by half an epsilon
   tell its error (docs/decisions/0004).
3. Decisions (visible, order, counted at a pixel) jump: the truth takes those of the run under test, seen from outside
   with `observe_decisions`; `assert_decisions` then bounds where they may differ from the truth's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tsplat
from tests.support.scenes import leaves, random_like
from tsplat import reference
from tsplat.config import PRESETS

EXACT = 1e-9
FP32_RATIO = 4.0
FP32_EPSILONS = 64.0
SAMPLES = 32
DECISION_MARGIN = 2e-5
"""Relative distance from a threshold within which an fp32 run may decide otherwise: 170 epsilons."""

LAYOUT = ("packed", "tile_size", "channel_chunk", "absgrad")


def assert_exact(name: str, found: Tensor | None, truth: Tensor | None) -> float:
    return _compare(name, found, truth, EXACT)


def assert_fp32(name: str, found: Tensor | None, truth: Tensor | None, plain: Tensor | None) -> float:
    """`plain` is the same in fp32 by plain PyTorch."""
    error = 0.0
    if truth is not None and plain is not None and truth.numel() > 0:
        scale = float(truth.abs().max())
        error = float((plain.to(truth.dtype) - truth).abs().max()) / scale if scale > 0 else 0.0
    return _compare(name, found, truth, max(FP32_RATIO * error, FP32_EPSILONS * torch.finfo(torch.float32).eps))


def _compare(name: str, found: Tensor | None, truth: Tensor | None, relative: float) -> float:
    """Largest error over its bound."""
    if found is None or truth is None:
        # A tensor that the picture does not depend on has no gradient, or one of zeros.
        rest = found if truth is None else truth
        assert rest is None or not rest.any(), f"{name}: one side has no gradient, the other one that is not zero"
        return 0.0
    found, truth = found.detach(), truth.detach()
    assert found.shape == truth.shape, f"{name}: shape {tuple(found.shape)}, truth has {tuple(truth.shape)}"
    assert found.isfinite().all(), f"{name}: {int((~found.isfinite()).sum())} entries are not finite"
    if truth.numel() == 0:
        return 0.0
    error = (found.to(truth.dtype) - truth).abs()
    bound = relative * float(truth.abs().max()) + 1e-30
    worst = float(error.max())
    assert worst <= bound, (
        f"{name}: error {worst:.3e} > {bound:.3e} at {tuple(int(i) for i in (error == error.max()).nonzero()[0])}, "
        f"{int((error > bound).sum())} of {error.numel()} entries off"
    )
    return worst / bound


def run(scene: dict[str, Any], seed: int = 0, **settings: Any) -> tuple[dict[str, Tensor | None], dict[str, Any]]:
    """Images, `meta`, and gradients of a random loss on colors and alphas, of every differentiable input."""
    inputs = leaves(scene)
    colors, alphas, meta = tsplat.rasterization(**inputs, **settings)
    return _with_gradients(inputs, colors, alphas, seed), meta


def run_reference(
    scene: dict[str, Any], seed: int = 0, decisions: reference.Decisions | None = None, **settings: Any
) -> tuple[dict[str, Tensor | None], reference.Truth]:
    """The same by the reference; settings that only concern layout are left out."""
    inputs = leaves(scene)
    settings = {name: value for name, value in settings.items() if name not in (*LAYOUT, "backend")}
    settings["numerics"] = PRESETS[settings.get("numerics", "gsplat-1.5")]
    truth = reference.rasterize(**inputs, **settings, decisions=decisions)
    return _with_gradients(inputs, truth.colors, truth.alphas, seed), truth


def _with_gradients(inputs: dict[str, Any], colors: Tensor, alphas: Tensor, seed: int) -> dict[str, Tensor | None]:
    wanted = {name: t for name, t in inputs.items() if isinstance(t, Tensor) and t.requires_grad}
    gradients: tuple[Tensor | None, ...] = (None,) * len(wanted)
    # An image of no Gaussians depends on nothing but its background.
    images = [pair for pair in zip((colors, alphas), random_like((colors, alphas), seed)) if pair[0].requires_grad]
    if images:
        outputs, v_outputs = zip(*images)
        gradients = torch.autograd.grad(outputs, tuple(wanted.values()), v_outputs, allow_unused=True)
    return {"colors": colors.detach(), "alphas": alphas.detach()} | {
        f"v_{name}": gradient for name, gradient in zip(wanted, gradients)
    }


def assert_run_exact(scene: dict[str, Any], seed: int = 0, **settings: Any) -> float:
    """A run in fp64 against the truth: images and every gradient."""
    found, _ = run(scene, seed, **settings)
    truth, _ = run_reference(scene, seed, **settings)
    return max(assert_exact(name, found[name], truth[name]) for name in truth)


def observe_decisions(scene: dict[str, Any], **settings: Any) -> reference.Decisions:
    """What a run decided, seen from outside: rendering each Gaussian in a channel of its own gives its weights."""
    n = scene["means"].shape[-2]
    batch = scene["means"].shape[:-2]
    own = torch.eye(n, max(n, 1)).expand(*batch, n, max(n, 1)).to(scene["means"])
    probe = dict(scene, colors=own, sh_degree=None, backgrounds=None)
    settings = {**settings, "packed": False, "render_mode": "RGB"}
    weights, _, meta = tsplat.rasterization(**probe, **settings)
    visible = (meta["radii"] > 0).all(-1)
    behind = torch.where(visible, meta["depths"], torch.inf)
    return reference.Decisions(visible, torch.argsort(behind, dim=-1, stable=True), weights[..., :n] > 0)


def assert_run_fp32(scene32: dict[str, Any], seed: int = 0, **settings: Any) -> float:
    """A run in fp32 against the fp64 truth with the run's own decisions."""
    decisions = observe_decisions(scene32, **settings)
    found, _ = run(scene32, seed, **settings)
    truth, _ = run_reference(_double(scene32), seed, decisions, **settings)
    plain, _ = run_reference(scene32, seed, decisions, **settings)
    try:
        return max(assert_fp32(name, found[name], truth[name], plain[name]) for name in truth)
    except AssertionError:
        plain = {name: _furthest(truth[name], [plain[name]]) for name in truth}
        for sample in range(SAMPLES):
            jittered = _jitter(scene32, seed + sample)
            one, _ = run_reference(jittered, seed, decisions, **settings)
            its_truth, _ = run_reference(_double(jittered), seed, decisions, **settings)
            for name, tensor in truth.items():
                if tensor is not None and one[name] is not None and its_truth[name] is not None:
                    error = one[name].double() - its_truth[name]  # type: ignore[union-attr]
                    plain[name] = _furthest(tensor, [plain[name], tensor + error])
        return max(assert_fp32(name, found[name], truth[name], plain[name]) for name in truth)


def _double(scene: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) else v for k, v in scene.items()}


def _furthest(truth: Tensor | None, candidates: list[Tensor | None]) -> Tensor | None:
    """The candidate with the largest error."""
    known = [c.to(truth.dtype) for c in candidates if c is not None] if truth is not None else []
    return max(known, key=lambda c: float((c - truth).abs().max()) if c.numel() else 0.0) if known else None


def _jitter(scene: dict[str, Any], seed: int) -> dict[str, Any]:
    """Every number moved by up to half an epsilon of itself, either way."""
    generator = torch.Generator().manual_seed(seed)
    eps = torch.finfo(torch.float32).eps

    def move(tensor: Tensor) -> Tensor:
        noise = 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1
        return (tensor.double() * (1 + eps * noise.to(tensor.device))).float()

    return {k: move(v) if isinstance(v, Tensor) else v for k, v in scene.items()}


def assert_decisions(scene32: dict[str, Any], **settings: Any) -> tuple[int, int]:
    """Decisions of an fp32 run differ from the truth's only near a threshold. Returns differing and all pixels."""
    found = observe_decisions(scene32, **settings)
    _, truth = run_reference(_double(scene32), **settings)
    assert found.visible is not None and found.order is not None and found.contributes is not None
    own = truth.decisions
    assert own.visible is not None and own.order is not None and own.contributes is not None
    unsure = truth.margins.visible < DECISION_MARGIN
    assert bool(((found.visible == own.visible) | unsure).all()), "visible: differs away from its thresholds"
    if not torch.equal(found.visible, own.visible) or not torch.equal(found.order, own.order):
        nearest = truth.margins.order.amin(-1)[..., None] < DECISION_MARGIN
        assert bool(((found.order == own.order) | nearest | unsure.any(-1, keepdim=True)).all()), "order differs"
        return 0, 0
    # In front-to-back order, the first Gaussian decided otherwise at a pixel must have been near a threshold.
    index = own.order[..., None, None, :].expand_as(own.contributes)
    differ = (found.contributes != own.contributes).gather(-1, index)
    margin = torch.minimum(truth.margins.alpha, truth.margins.stop).gather(-1, index)
    pixels = differ.any(-1)
    first = differ.to(torch.int8).argmax(-1, keepdim=True)
    assert bool((margin.gather(-1, first)[..., 0] < DECISION_MARGIN)[pixels].all()), "a pixel differs off thresholds"
    return int(pixels.sum()), pixels.numel()
