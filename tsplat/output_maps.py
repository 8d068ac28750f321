"""Outputs: the maps that a call renders besides colors and alphas, such as normals and distortion.

Each output is an :class:`Output`, with a name, a number of channels and a rule that says how a pixel is computed.
Settings, stages, operators and passes loop over the outputs of a call. "Adding an output" in docs/architecture.md says
how to add one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor


class Rule(enum.Enum):
    """The formula of a pixel, and how its gradient v reaches weights and features.

    A Gaussian has a weight w = alpha T, features f, and a depth z, the last feature. Compositing by matrix products
    implements ``SUM`` only, walks implement all rules. ``MEDIAN`` is computed together with ``DISTORTION``.
    """

    SUM = "sum of w f; the gradient is w v for f, and v . f for w"
    FACING = "sum of w f, with f negated if it points along the ray of the pixel, and its gradient likewise"
    HIT = "sum of w |t|, with |t| the distance along the ray to the Gaussian's maximum, instead of z; footprints/ray.py"
    PLANE = (
        "sum of w z, with z the depth at which the ray meets the plane of the Gaussian; the gradient is w v for this "
        "z; footprints/surfel.py"
    )
    DISTORTION = "sum of w_i w_j |z_i - z_j|, as a channel after the features; distortion.py"
    MEDIAN = "z, as with SUM or PLANE, of the last Gaussian with T > 1/2 in front of it; the gradient is v for this z"


@dataclasses.dataclass(frozen=True)
class Output:
    """A map of a call, besides colors and alphas.

    Attributes:
        name: The name of the map.
        rule: How a pixel is computed.
        channels: The number of channels.
        features: Returns the features [nnz, channels] of ``ProjectedGaussians``, which are composited before the
            colors; None if the output is computed from depths, the last feature, or from the caller's channels.
        meta: The key of the map in ``meta``; empty if it is not in ``meta``.
        argument: The argument of the rendering function that selects the output, for messages, or empty. An output of
            ``ON_REQUEST`` is rendered if it is true.
        needs: Another argument that must then be true, or empty.
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
"""Distances along rays. ``render_mode`` selects either these or depths as the last channel of colors."""

SURFEL_NORMALS = Output("normals", Rule.SUM, 3, _normals)
DISTORTIONS = Output("distortions", Rule.DISTORTION, meta="render_distort")
MEDIANS = Output("medians", Rule.MEDIAN)
PLANE_DEPTHS = Output("depths", Rule.PLANE, argument="depth_mode")
"""Depths at which rays meet the planes of surfels, instead of :data:`DEPTHS`; also used by distortion and median."""
OF_SURFELS = (SURFEL_NORMALS, DISTORTIONS, MEDIANS)
"""Outputs that :func:`tsplat.rasterization_2dgs` renders in every call, with depths."""

ON_REQUEST = (RAY_NORMALS,)
"""Outputs that :func:`tsplat.rasterization` renders if an argument requests them."""

EXTRA_SIGNALS = Output("extra_signals", Rule.SUM, 0, meta="render_extra_signals", argument="extra_signals")
"""Channels between colors and depth. The caller chooses their number."""

IN_META = tuple(o for o in (EXTRA_SIGNALS, *ON_REQUEST, *OF_SURFELS) if o.meta)
"""Outputs with a key in ``meta``."""


def leading_channels(outputs: Iterable[Output]) -> int:
    """Returns the number of channels before colors."""
    return sum(output.channels for output in outputs if output.features is not None)


def split_channels(channels: Tensor, outputs: tuple[Output, ...]) -> dict[str, Tensor]:
    """Splits composited channels [I, H, W, D] into maps by name, as views.

    Channels are ordered: outputs with features, colors (the last one may be depth), distortion.
    """
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
