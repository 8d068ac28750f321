"""Compares the decisions of an fp32 run (visibility, order, contributions) with the decisions of the fp64 reference.

A decision may differ where a value is closer to its threshold than `DECISION_MARGIN`, or than four times the error of
plain PyTorch in fp32. This error is the largest of 32 runs on inputs that are jittered by half an epsilon. A decision
may also differ where one of these runs decides differently, and in tiles whose border is within `BOX_MARGIN` of a
Gaussian's box.

As in gsplat, radii of the unscented transform are computed from compensated opacities, even if opacities are not
compensated. Whether such a Gaussian contributes to pixels outside of its box depends on the tiles, so these
contributions may be missing. This does not concern panoramas or evaluation in 3D.
"""

import dataclasses
import functools
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import tsplat
from tests.stages import test_surfels
from tests.support.closeness import DECISION_MARGIN, FP32_RATIO, SAMPLES, jitter
from tsplat import reference
from tsplat.reference import Decisions, surfel_formulas

BOX_MARGIN = 1e-3
"""Maximum difference in pixels between boxes of Gaussians in fp32 and in the reference."""

MEASURED = ("visible", "order", "contributes")
"""Decisions in the order in which they are compared. For each one, the reference uses the run's earlier decisions."""

EVERYWHERE = torch.ones((), dtype=torch.bool)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The reference's decisions (`made`), and the relative distances of its values from the threshold (`margin`).

    `bounded` marks contributions inside the Gaussian's box, which must not be missing. It is True for all other
    decisions.
    """

    made: Tensor
    margin: Tensor
    bounded: Tensor = EVERYWHERE


def check_decisions(scene: dict[str, Any], options: dict[str, Any], found: Decisions, seed: int = 0) -> None:
    """Raises AssertionError if a decision differs from the reference although its value is not close to a threshold."""
    taken = Decisions()
    choices = choose(double(scene), options, taken)
    for name in MEASURED:
        own, decided = choices[name], getattr(found, name)
        differ = decided != own.made
        if name == "contributes":
            # Only the first difference of each pixel counts, as it changes the transmittance of the rest.
            index = found.order[..., None, None, :].expand_as(differ)  # type: ignore[index]
            in_order = differ.gather(-1, index)
            first = in_order & (in_order.cumsum(-1) == 1)
            differ = torch.zeros_like(differ).scatter(-1, index, first)
        far = differ & ~_near(name, scene, options, taken, own, differ, seed)
        assert not far.any(), (
            f"{name}: {int(far.sum())} of {far.numel()} decisions differ away from thresholds, "
            f"one at {tuple(far.nonzero()[0].tolist())}"
        )
        taken = dataclasses.replace(taken, **{name: decided})
        if differ.any() and name != MEASURED[-1]:
            choices = choose(double(scene), options, taken)


def _near(
    name: str, scene: dict[str, Any], options: dict[str, Any], taken: Decisions, own: Choice, differ: Tensor, seed: int
) -> Tensor:
    """Returns a mask of the decisions within rounding errors of a threshold. Stops as soon as it covers all of
    `differ`."""
    near = own.margin < DECISION_MARGIN
    if name == "order":
        # If two Gaussians with nearly equal depths swap, the positions of all Gaussians between them change.
        near = near.any(-1, keepdim=True).expand_as(near)
    if name == "contributes" and (differ & ~near).any():
        boxes = [choose(double(scene), options, taken, growth)[name] for growth in (BOX_MARGIN, -BOX_MARGIN)]
        near = near | (boxes[0].made != boxes[1].made) | ~own.bounded
    for sample in range(SAMPLES):
        if not (differ & ~near).any():
            break
        moved = jitter(scene, seed + sample)
        plain, exact = (choose(s, options, taken)[name] for s in (moved, double(moved)))
        error = (plain.margin.double() - exact.margin.double()).abs().nan_to_num()
        unsure = (plain.made != exact.made) | (own.margin < FP32_RATIO * error)
        near = near | (unsure.any(-1, keepdim=True) if name == "order" else unsure)
    return near


def choose(scene: dict[str, Any], options: dict[str, Any], taken: Decisions, growth: float = 0.0) -> dict[str, Choice]:
    """Returns the reference's decisions by name. The reference uses the decisions in `taken` instead of its own. Boxes
    of Gaussians are enlarged by `growth` pixels before they are assigned to tiles."""
    in_tiles = reference._in_tiles

    def of_grown_boxes(means2d: Tensor, radii: Tensor, *others: Any) -> Tensor:
        return in_tiles(means2d, radii + growth, *others)

    with (
        torch.no_grad(),
        patch.object(reference, "_in_tiles", of_grown_boxes),
        patch.object(surfel_formulas, "_in_tiles", of_grown_boxes),
    ):
        choices = (_of_gaussians if "with_eval3d" in options else _of_surfels)(scene, options, taken)
    return dict(zip(MEASURED, choices))


def _of_gaussians(scene: dict[str, Any], options: dict[str, Any], taken: Decisions) -> tuple[Choice, ...]:
    rasterize, kept = reference.rasterize, []

    @functools.wraps(rasterize)
    def keep(**named: Any) -> Any:
        kept.append(rasterize(**named | dict(decisions=taken)))
        return kept[0]

    with patch.object(reference, "rasterize", keep):
        tsplat.rasterization(**scene, **options | dict(backend="reference", packed=False))
    (found,) = kept
    own, margins = found.decisions, found.margins
    bounded = EVERYWHERE
    is_of_screens = not options["with_eval3d"] and scene["camera_model"] != "equirectangular"
    if is_of_screens and scene["with_ut"] and options["rasterize_mode"] == "classic":
        bounded = _in_boxes(found.projection, scene["width"], scene["height"])
    return (
        Choice(own.visible, margins.visible), Choice(own.order, margins.order),
        Choice(own.contributes, margins.alpha.minimum(margins.stop), bounded),
    )  # fmt: skip


def _in_boxes(projection: reference.Projection, width: int, height: int) -> Tensor:
    """Returns whether pixel centers are inside the boxes mean ± radii, [..., C, H, W, N]."""
    inside = EVERYWHERE
    for axis, size in enumerate((width, height)):
        centers = torch.arange(size) + 0.5
        centers = centers[None, :, None] if axis == 0 else centers[:, None, None]
        offsets = centers - projection.means2d[..., None, None, :, axis]
        inside = inside & (offsets.abs() <= projection.radii[..., None, None, :, axis])
    return inside


def _of_surfels(scene: dict[str, Any], options: dict[str, Any], taken: Decisions) -> tuple[Choice, ...]:
    """Returns the decisions for surfels. Ignores `taken`: the reference of surfels can use `contributes` only, which is
    compared last."""
    composite, kept = surfel_formulas.composite, []

    def keep(*arguments: Any, **named: Any) -> Any:
        kept.append(composite(*arguments, **named))
        return kept[0]

    with patch.object(surfel_formulas, "composite", keep):
        *_, surfels = test_surfels.render_reference(**scene, **{k: v for k, v in options.items() if k != "packed"})
    (image,) = kept
    order, gaps = reference._depth_order(surfels.visible, surfels.depths)
    return (
        Choice(surfels.visible, surfels.margin), Choice(order, gaps),
        Choice(image.weights > 0, image.alpha_margin.minimum(image.stop_margin)),
    )  # fmt: skip


def double(scene: dict[str, Any]) -> dict[str, Any]:
    return {name: value.double() if isinstance(value, Tensor) else value for name, value in scene.items()}
