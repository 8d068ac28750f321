"""Decisions of a run in fp32 (visibility, order, contributions) against those that the fp64 reference takes itself.

A decision may differ where a value is nearer to its threshold than `DECISION_MARGIN`, or than four times the error of
plain PyTorch in fp32 there: the largest of 32 runs on inputs that are jittered by half an epsilon. It may also differ
where one of these runs decides otherwise, and in tiles that a box touches or leaves by less than `BOX_MARGIN`.

Radii of the unscented transform are gsplat's, those of compensated opacities, also if opacities are not compensated.
What such a Gaussian adds to pixels outside of its box depends on the tiles there, and may be missing; neither
panoramas nor evaluation in 3D have this.
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
"""Pixels by which boxes of Gaussians in fp32 may differ from those of the reference."""

MEASURED = ("visible", "order", "contributes")
"""Decisions in turn: the reference takes over those in front."""

EVERYWHERE = torch.ones((), dtype=torch.bool)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the reference decides, and the relative distances of its values from the threshold.

    ``bounded`` marks the contributions inside of the Gaussian's radii, which must be listed; it is True everywhere for
    other decisions.
    """

    made: Tensor
    margin: Tensor
    bounded: Tensor = EVERYWHERE


def check_decisions(scene: dict[str, Any], options: dict[str, Any], found: Decisions, seed: int = 0) -> None:
    """Raises AssertionError where decisions differ from those of the reference, although no threshold is near."""
    taken = Decisions()
    choices = choose(double(scene), options, taken)
    for name in MEASURED:
        own, decided = choices[name], getattr(found, name)
        differ = decided != own.made
        if name == "contributes":
            # Of those of a pixel, the first from the front: it changes the light that the others get.
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
    """Which decisions are within rounding of a threshold. Looks no further if these are all that differ."""
    near = own.margin < DECISION_MARGIN
    if name == "order":
        # Two Gaussians of nearly equal depths change places, and all between them.
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
    """Returns the reference's decisions by name, given the decisions that it takes over. The boxes by which tiles list
    Gaussians are enlarged by `growth` pixels."""
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
    """Whether the centers of pixels are in the boxes mean +- radii. [..., C, H, W, N]"""
    inside = EVERYWHERE
    for axis, size in enumerate((width, height)):
        centers = torch.arange(size) + 0.5
        centers = centers[None, :, None] if axis == 0 else centers[:, None, None]
        offsets = centers - projection.means2d[..., None, None, :, axis]
        inside = inside & (offsets.abs() <= projection.radii[..., None, None, :, axis])
    return inside


def _of_surfels(scene: dict[str, Any], options: dict[str, Any], taken: Decisions) -> tuple[Choice, ...]:
    """The same of surfels; what the reference of surfels takes over is which contribute."""
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
