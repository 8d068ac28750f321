"""Tolerances: the policy by which all tests compare numbers. Limits change only with a decision record.

1. fp64 results against the reference: `assert_exact` allows an error of 1e-9 of the tensor's largest entry. If a scene
   is so ill-conditioned that plain PyTorch in fp32 is off by more than 13 %, four times that error, scaled to fp64, is
   allowed instead (docs/decisions/0017).
2. fp32 results against the fp64 reference: `assert_fp32` allows four times the error of plain PyTorch in fp32, or 64
   epsilons of the tensor's largest entry. A single plain run can be accurate by luck. Therefore, a failed comparison is
   repeated with the largest error of 32 plain runs with inputs jittered by half an epsilon (docs/decisions/0004).
3. Decisions (visibility, order, whether a Gaussian contributes to a pixel) are discontinuous. The reference takes them
   from the run under test, where `observe_decisions` observes them from outside; `assert_decisions` then bounds where
   they may differ from the reference's own decisions.
"""

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
"""Relative distance from a threshold within which an fp32 run may decide differently: 170 epsilons."""

PROBE_CHANNELS = (3, 9, 15)
"""Numbers of channels below 16 that `observe_decisions` renders; from 16 on, kernels do not depend on the number."""

LAYOUT = ("packed", "tile_size", "channel_chunk", "absgrad")
"""Options of `rasterization` that do not change the image, and that calls of the reference here leave out. With
`with_eval3d`, `tile_size` does change it."""


def assert_exact(name: str, found: Tensor | None, expected: Tensor | None, plain: Tensor | None = None) -> float:
    """Compares fp64 results, given the fp32 results of plain PyTorch. Returns the largest ratio of error to bound."""
    fp32_to_fp64 = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    return compare(name, found, expected, max(FP32_RATIO * _error(expected, plain) * fp32_to_fp64, EXACT))


def assert_fp32(name: str, found: Tensor | None, expected: Tensor | None, plain: Tensor | None) -> float:
    """Compares an fp32 result with an fp64 result, given the fp32 result of plain PyTorch."""
    bound = max(FP32_RATIO * _error(expected, plain), FP32_EPSILONS * torch.finfo(torch.float32).eps)
    return compare(name, found, expected, bound)


def _error(expected: Tensor | None, plain: Tensor | None) -> float:
    """Returns the error of plain PyTorch in fp32, relative to the largest expected entry."""
    if expected is None or plain is None or expected.numel() == 0:
        return 0.0
    scale = float(expected.abs().max())
    return float((plain.to(expected.dtype) - expected).abs().max()) / scale if scale > 0 else 0.0


def compare(name: str, found: Tensor | None, expected: Tensor | None, relative: float) -> float:
    """Bounds the error relative to the largest expected entry. Returns the largest ratio of error to bound."""
    if found is None or expected is None:
        # A tensor that the image does not depend on has no gradient, or zeros.
        given = found if expected is None else expected
        assert given is None or not given.any(), f"{name}: one side has no gradient, the other a nonzero one"
        return 0.0
    found, expected = found.detach(), expected.detach()
    assert found.shape == expected.shape, f"{name}: expected shape {tuple(expected.shape)}, found {tuple(found.shape)}"
    assert found.isfinite().all(), f"{name}: {int((~found.isfinite()).sum())} entries are not finite"
    if expected.numel() == 0:
        return 0.0
    error = (found.to(expected.dtype) - expected).abs()
    bound = relative * float(expected.abs().max()) + 1e-30
    worst = float(error.max())
    assert worst <= bound, (
        f"{name}: error {worst:.3e} > {bound:.3e} at {tuple(int(i) for i in (error == error.max()).nonzero()[0])}, "
        f"{int((error > bound).sum())} of {error.numel()} entries off"
    )
    return worst / bound


def run(scene: dict[str, Any], seed: int = 0, **settings: Any) -> tuple[dict[str, Tensor | None], dict[str, Any]]:
    """Returns images, the gradients of all differentiable inputs for a random loss on colors and alphas, and `meta`."""
    inputs = leaves(scene)
    colors, alphas, meta = tsplat.rasterization(**inputs, **settings)
    return _with_gradients(inputs, colors, alphas, seed), meta


def run_reference(
    scene: dict[str, Any], seed: int = 0, decisions: reference.Decisions | None = None, **settings: Any
) -> tuple[dict[str, Tensor | None], Any]:
    """Returns the same for the reference, and its complete result. Settings that only concern layout are ignored."""
    inputs = leaves(scene)
    settings = {name: value for name, value in settings.items() if name not in (*LAYOUT, "backend")}
    settings["numerics"] = PRESETS[settings.get("numerics", "gsplat-1.5")]
    truth = reference.rasterize(**inputs, **settings, decisions=decisions)
    return _with_gradients(inputs, truth.colors, truth.alphas, seed), truth


def _with_gradients(inputs: dict[str, Any], colors: Tensor, alphas: Tensor, seed: int) -> dict[str, Tensor | None]:
    wanted = {name: t for name, t in inputs.items() if isinstance(t, Tensor) and t.requires_grad}
    gradients: tuple[Tensor | None, ...] = (None,) * len(wanted)
    # An image without Gaussians depends only on its background.
    images = [
        (image, v) for image, v in zip((colors, alphas), random_like((colors, alphas), seed)) if image.requires_grad
    ]
    if images:
        outputs, v_outputs = zip(*images)
        gradients = torch.autograd.grad(outputs, tuple(wanted.values()), v_outputs, allow_unused=True)
    return {"colors": colors.detach(), "alphas": alphas.detach()} | {
        f"v_{name}": gradient for name, gradient in zip(wanted, gradients)
    }


def assert_run_exact(scene: dict[str, Any], seed: int = 0, **settings: Any) -> float:
    """Compares a run in fp64 with the reference: images and every gradient."""
    found, _ = run(scene, seed, **settings)
    truth, truth_run = run_reference(scene, seed, **settings)
    try:
        return max(assert_exact(name, found[name], truth[name]) for name in truth)
    except AssertionError:
        plain, _ = run_reference(_single(scene), seed, truth_run.decisions, **settings)
        return max(assert_exact(name, found[name], truth[name], plain[name]) for name in truth)


def assert_same_bits(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> float:
    """Compares two runs bit by bit: images and every gradient."""
    for name, tensor in one.items():
        if tensor is None or other[name] is None:
            assert tensor is other[name], f"{name}: one side has no gradient"
        else:
            assert tensor.dtype == other[name].dtype, f"{name}: {tensor.dtype} and {other[name].dtype}"
            assert torch.equal(tensor, other[name]), f"{name}: bits differ"
    return 0.0


def observe_decisions(scene: dict[str, Any], **settings: Any) -> reference.Decisions:
    """Returns the decisions of a run, observed by rendering each Gaussian in a separate channel, which shows its
    weights."""
    n = scene["means"].shape[-2]
    batch = scene["means"].shape[:-2]
    # Use few numbers of channels, because kernels are compiled for each.
    channels = next((count for count in PROBE_CHANNELS if count >= n), n)
    one_hot = torch.eye(n, channels).expand(*batch, n, channels).to(scene["means"])
    probe = dict(scene, colors=one_hot, sh_degree=None, backgrounds=None)
    settings = {**settings, "packed": False, "render_mode": "RGB"}
    weights, _, meta = tsplat.rasterization(**probe, **settings)
    visible = (meta["radii"] > 0).all(-1)
    behind = torch.where(visible, meta["depths"], torch.inf)
    return reference.Decisions(visible, torch.argsort(behind, dim=-1, stable=True), weights[..., :n] > 0)


def assert_run_fp32(scene32: dict[str, Any], seed: int = 0, **settings: Any) -> float:
    """Compares a run in fp32 with the fp64 reference that uses the run's decisions."""
    decisions = observe_decisions(scene32, **settings)
    found, _ = run(scene32, seed, **settings)
    truth, _ = run_reference(_double(scene32), seed, decisions, **settings)
    plain, _ = run_reference(scene32, seed, decisions, **settings)
    try:
        return max(assert_fp32(name, found[name], truth[name], plain[name]) for name in truth)
    except AssertionError:
        plain = {name: _furthest(truth[name], [plain[name]]) for name in truth}
        for sample in range(SAMPLES):
            jittered = jitter(scene32, seed + sample)
            one, _ = run_reference(jittered, seed, decisions, **settings)
            its_truth, _ = run_reference(_double(jittered), seed, decisions, **settings)
            for name, tensor in truth.items():
                if tensor is not None and one[name] is not None and its_truth[name] is not None:
                    error = one[name].double() - its_truth[name]  # type: ignore[union-attr]
                    plain[name] = _furthest(tensor, [plain[name], tensor + error])
        return max(assert_fp32(name, found[name], truth[name], plain[name]) for name in truth)


def _double(scene: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) else v for k, v in scene.items()}


def _single(scene: dict[str, Any]) -> dict[str, Any]:
    return {k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in scene.items()}


def _furthest(truth: Tensor | None, candidates: list[Tensor | None]) -> Tensor | None:
    """Returns the candidate with the largest error."""
    known = [c.to(truth.dtype) for c in candidates if c is not None] if truth is not None else []
    return max(known, key=lambda c: float((c - truth).abs().max()) if c.numel() else 0.0) if known else None


def jitter(scene: dict[str, Any], seed: int) -> dict[str, Any]:
    """Moves every number by up to half an epsilon of itself, up or down."""
    generator = torch.Generator().manual_seed(seed)
    eps = torch.finfo(torch.float32).eps

    def move(tensor: Tensor) -> Tensor:
        noise = 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1
        return (tensor.double() * (1 + eps * noise.to(tensor.device))).float()

    return {k: move(v) if isinstance(v, Tensor) else v for k, v in scene.items()}


def assert_decisions(scene32: dict[str, Any], **settings: Any) -> tuple[int, int]:
    """Checks that fp32 decisions differ from the reference's only near thresholds; returns the number of differing
    pixels and of all pixels."""
    found = observe_decisions(scene32, **settings)
    _, truth = run_reference(_double(scene32), **settings)
    assert found.visible is not None and found.order is not None and found.contributes is not None
    expected = truth.decisions
    unsure = truth.margins.visible < DECISION_MARGIN
    assert bool(((found.visible == expected.visible) | unsure).all()), "visibility differs away from its thresholds"
    if not torch.equal(found.visible, expected.visible) or not torch.equal(found.order, expected.order):
        nearest = truth.margins.order.amin(-1)[..., None] < DECISION_MARGIN
        same = (found.order == expected.order) | nearest | unsure.any(-1, keepdim=True)
        assert bool(same.all()), "order differs between depths that are not nearly equal"
        return 0, 0
    # In front-to-back order, the first Gaussian whose decision differs at a pixel must have been near a threshold.
    index = expected.order[..., None, None, :].expand_as(expected.contributes)
    differ = (found.contributes != expected.contributes).gather(-1, index)
    margin = torch.minimum(truth.margins.alpha, truth.margins.stop).gather(-1, index)
    pixels = differ.any(-1)
    first = differ.to(torch.int8).argmax(-1, keepdim=True)
    near = (margin.gather(-1, first)[..., 0] < DECISION_MARGIN)[pixels]
    assert bool(near.all()), "contributions to a pixel differ away from their thresholds"
    return int(pixels.sum()), pixels.numel()
