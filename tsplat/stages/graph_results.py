"""Results of ``rasterization()`` in graphs of ``torch.compile``, where all sizes must follow from the arguments."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import output_maps
from ..output_maps import EXTRA_SIGNALS
from ..runtime.operators import Arguments, Results
from .meta import ROW_NAMES
from .options import SUPPORTED, choose_tile_size


def _sizes_are_known(a: Arguments) -> bool:
    is_empty = any(isinstance(value, Tensor) and value.numel() == 0 for value in a.values())
    return not is_empty and all(supported.has(a[name]) for name, supported in SUPPORTED["graphs"].items())


def _names(a: Arguments) -> tuple[tuple[str, ...], tuple[str, ...]]:
    asked = [output for output in (EXTRA_SIGNALS, *output_maps.ON_REQUEST) if _is_given(a[output.argument])]
    images = ("render_colors", "render_alphas", *[output.meta for output in asked])
    return images, (*ROW_NAMES, "overflow") if a["validate"] == "off" else (*ROW_NAMES, "n_invalid", "overflow")


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def _unpack(rendering: tuple[Tensor, Tensor, dict[str, Any]]) -> dict[str, Any]:
    render_colors, render_alphas, meta = rendering
    return {**meta, "render_colors": render_colors, "render_alphas": render_alphas}


def _pack(outputs: dict[str, Tensor], a: Arguments) -> tuple[Tensor, Tensor, dict[str, Any]]:
    meta = {name: value for name, value in outputs.items() if name not in ("render_colors", "render_alphas")}
    given = {name: a[name] for name in ("width", "height", "tile_size")}
    if given["tile_size"] is None:
        given["tile_size"] = choose_tile_size(a["width"], a["height"], a["with_eval3d"])
    return (
        outputs["render_colors"],
        outputs["render_alphas"],
        meta | given | {"n_cameras": outputs["render_colors"].shape[-4]},
    )


def _plain(rendering: tuple[Tensor, Tensor, dict[str, Any]]) -> tuple[Tensor, Tensor, dict[str, Any]]:
    render_colors, render_alphas, meta = rendering
    return render_colors, render_alphas, meta.copy()


GRAPH_RESULTS = Results(_sizes_are_known, _names, _unpack, _pack, _plain)
"""Describes these results to operators. ``meta`` has tensors of fixed sizes only."""
