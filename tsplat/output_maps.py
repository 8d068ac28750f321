"""Outputs: the maps that a call renders, by name, and what a pixel makes of its Gaussians for each.

Colors and alphas are in every call. The others are objects of :class:`Output`, from which settings, stages, operators
and passes take what they need. "Where new things go" in docs/architecture.md says how to add one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor


class Rule(enum.Enum):
    """Says what a pixel makes of its Gaussians, and how the gradient v of the map reaches weights and features.

    A Gaussian has weight w, features f, and depth z, the last of these. Matrix products compute sums only, walks all.
    """

    SUM = "the sum of w f; v becomes w v for f, and v . f for w"
    FACING = "the sum of w f, where f that point along the ray of the pixel are negated; so are their gradients"
    HIT = (
        "the sum of w |t|, distances along the ray to where Gaussians are highest, in place of z; see footprints/ray.py"
    )
    PLANE = (
        "the sum of w z of where the ray meets the plane of the Gaussian, in place of its center's; v becomes w v for "
        "that z; see footprints/surfel.py"
    )
    DISTORTION = "the sum of w_i w_j |z_i - z_j|, as a channel after the features; see distortion.py"
    MEDIAN = (
        "z, of the center or as with PLANE, of the last Gaussian with T > 1/2 in front of it; v becomes v for that z"
    )


@dataclasses.dataclass(frozen=True)
class Output:
    """A map of a call, besides colors and alphas.

    Attributes:
        name: Its name among the maps.
        rule: What a pixel makes of its Gaussians.
        channels: The number of its channels.
        features: Returns the features [nnz, channels] of ``ProjectedGaussians``, which are composited before the
            colors; None if the output takes depths, the last features.
        meta: Its name in the ``meta`` of the rendering function; empty if that returns it otherwise.
        argument: The argument of :func:`tsplat.rasterization` that asks for it, or empty.
        needs: The argument that must be true for that, or empty.
    """

    name: str
    rule: Rule
    channels: int = 1
    features: Callable[[Any], Tensor] | None = None
    meta: str = ""
    argument: str = ""
    needs: str = ""


def _normals(projected: Any) -> Tensor:
    normals: Tensor = projected.normals
    return normals


RAY_NORMALS = Output(
    "normals", Rule.FACING, 3, _normals, meta="normals", argument="return_normals", needs="with_eval3d"
)  # fmt: skip
DEPTHS = Output("depths", Rule.SUM)
HITS = Output("hits", Rule.HIT, argument="render_mode", needs="with_eval3d")
"""Distances along rays. These, or depths, are the last channel of colors, which ``render_mode`` asks for."""

SURFEL_NORMALS = Output("normals", Rule.SUM, 3, _normals)
DISTORTIONS = Output("distortions", Rule.DISTORTION, meta="render_distort")
MEDIANS = Output("medians", Rule.MEDIAN)
PLANE_DEPTHS = Output("depths", Rule.PLANE, argument="depth_mode")
"""Depths of planes, in place of :data:`DEPTHS`. Distortion and median are then of these, too."""
OF_SURFELS = (SURFEL_NORMALS, DISTORTIONS, MEDIANS)
"""Outputs that :func:`tsplat.rasterization_2dgs` renders in every call, with depths."""

ON_REQUEST = (RAY_NORMALS,)
"""Outputs that arguments of :func:`tsplat.rasterization` ask for."""

EXTRA_SIGNALS = Output("extra_signals", Rule.SUM, 0, meta="render_extra_signals", argument="extra_signals")
"""Channels between colors and depth, as many as the caller passes."""

IN_META = tuple(o for o in (EXTRA_SIGNALS, *ON_REQUEST, *OF_SURFELS) if o.meta)
"""Outputs that ``meta`` has."""


def leading_channels(outputs: Iterable[Output]) -> int:
    """Returns the number of channels before colors."""
    return sum(output.channels for output in outputs if output.features is not None)


def split_channels(channels: Tensor, outputs: tuple[Output, ...]) -> dict[str, Tensor]:
    """Returns maps by name, as views of channels [I, H, W, D]: of outputs before colors; colors, with depths or
    distances as the last of these; and distortions."""
    maps, begin, end = dict[str, Tensor](), leading_channels(outputs), channels.shape[-1]
    if any(output.rule is Rule.DISTORTION for output in outputs):
        end -= 1
        maps["distortions"] = channels[..., end:]
    maps["colors"] = channels[..., begin:end] if end - begin < channels.shape[-1] else channels
    begin = 0
    for output in outputs:
        if output.features is not None:
            maps[output.name] = channels[..., begin : begin + output.channels]
            begin += output.channels
    return maps
