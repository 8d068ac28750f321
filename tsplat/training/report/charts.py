"""Line charts and histograms as SVG, drawn by Matplotlib; hovering shows the values at the pointer.

The style sheet of the page defines the colors as variables, so that charts follow its light and dark modes.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ...support.extras import require
from ...viewing.markup import Html, escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 400, 220
"""Size of a chart in SVG units."""

POINTS_MAX = 120
"""Maximum number of points of a series in a chart."""

TICKS = 4
VALUE_MAX = 1e100
"""Values are clamped to this magnitude, so that Matplotlib can compute the limits of its axes."""

VARIABLES = {"#000001": "--accent", "#000002": "--faint", "#000003": "--bar", "#000004": "--line", "#000005": "--soft"}
"""Placeholder colors of drawings, and the style sheet's variable that replaces each of them."""

ACCENT, FAINT, BAR, LINE, SOFT = VARIABLES

UNUSED_SVG = re.compile(
    r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->|(?<=<g) id=\"(?!at-)[^\"]*\"", re.DOTALL
)
"""Parts of Matplotlib's SVG that the page does not need."""

Point = tuple[float, float]
Format = Callable[[float], str]
Chart = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Series:
    """A curve of points (x, y) and its label in the legend. Points that are not finite are not drawn.

    "main" has a marker at each point; "faint" is a thin line, which is averaged if it has many points.
    """

    label: str
    points: Sequence[Point]
    style: Literal["main", "faint"] = "main"


def line_chart(title: str, series: Sequence[Series], *, show: Format, from_zero: bool = False) -> Chart:
    """Draws curves over steps, in the order of `series`; `show` formats a value for display.

    Returns `title`; `keys`, the label and style of each curve if there are several; and `svg`, None without finite
    points.
    """
    curves = [(curve, _thin_out(_finite(curve.points), curve.style)) for curve in series]
    curves = [(curve, points) for curve, points in curves if points]
    if not curves:
        return {"title": title, "keys": [], "svg": None}
    readouts: dict[float, list[str]] = {}
    for curve, points in curves:
        for x, y in points:
            readouts.setdefault(x, []).append(f"{show(y)} {curve.label}" if len(curves) > 1 else show(y))

    def draw(axes: Axes) -> dict[str, str]:
        for curve, points in curves:
            is_main = curve.style == "main"
            axes.plot(
                *zip(*points), color=ACCENT if is_main or len(curves) == 1 else FAINT,
                linewidth=1.6 if is_main else 1.2, marker="o" if is_main else "", markersize=4,
            )  # fmt: skip
        axes.set_xlabel("steps")
        if from_zero and min(y for _, points in curves for _, y in points) >= 0:
            axes.set_ylim(bottom=0)
        texts = {x: f"step {x:,.0f}: {'  '.join(values)}" for x, values in sorted(readouts.items())}
        left, right = axes.get_xlim()
        limits = [left, *((a + b) / 2 for a, b in itertools.pairwise(texts)), right]
        return _add_readouts(axes, list(itertools.pairwise(limits)), list(texts.values()))

    keys = [{"label": curve.label, "style": curve.style} for curve, _ in curves] if len(curves) > 1 else []
    return {"title": title, "keys": keys, "svg": _svg(title, draw)}


def histogram(title: str, edges: Sequence[float], counts: Sequence[int], *, log: bool = False, noun: str = "") -> Chart:
    """Draws one bar per count, between n + 1 `edges`, and returns the `title` and `svg`.

    Edges increase; they are decimal logarithms if `log`. `noun` names the counted objects, in the plural.
    """
    limits = [10.0**edge if log else edge for edge in edges]

    def draw(axes: Axes) -> dict[str, str]:
        if log:
            axes.set_xscale("log")
        axes.stairs(counts, limits, fill=True, color=BAR)
        axes.set_xlim(limits[0], limits[-1])
        axes.set_ylim(0, 1.05 * max(1, *counts))
        bars = list(itertools.pairwise(limits))
        texts = [f"{low:.3g} to {high:.3g}: {n:,} {noun}".rstrip() for (low, high), n in zip(bars, counts)]
        return _add_readouts(axes, bars, texts)

    return {"title": title, "svg": _svg(title, draw)}


def compact(value: float, _position: int | None = None) -> str:
    """Formats a number for an axis: 0.25, 500, 1,500, 12k, 1.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < 1e13:
            return f"{value / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{value:,.4g}"


def _finite(points: Sequence[Point]) -> list[Point]:
    """Returns the finite points, with y within :data:`VALUE_MAX`."""
    finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return [(x, max(-VALUE_MAX, min(VALUE_MAX, y))) for x, y in finite]


def _thin_out(points: list[Point], style: str) -> list[Point]:
    """Returns at most :data:`POINTS_MAX` points: means of neighbors or, for "main", a subset with the last point."""
    n = math.ceil(len(points) / POINTS_MAX)
    if n <= 1:
        return points
    if style == "main":
        return points[:-1][::n][: POINTS_MAX - 1] + points[-1:]
    groups = [points[i : i + n] for i in range(0, len(points), n)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _add_readouts(axes: Axes, limits: Sequence[Point], texts: Sequence[str]) -> dict[str, str]:
    """Adds areas that show a text while the pointer is over them. Returns the texts by the areas' names in the SVG."""
    for i, (left, right) in enumerate(limits):
        axes.axvspan(left, right, alpha=0, linewidth=0, gid=f"at-{i}")
    return {f"at-{i}": text for i, text in enumerate(texts)}


def _svg(title: str, draw: Callable[[Axes], dict[str, str]]) -> Html:
    """Draws a chart as SVG, deterministically.

    `draw` draws on the axes, and returns the texts to show while hovering, by the name of an element.
    """
    require("matplotlib")
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    style = {
        "svg.fonttype": "none", "svg.hashsalt": title, "font.size": 14, "text.color": SOFT, "axes.labelcolor": SOFT,
        "xtick.labelcolor": SOFT, "ytick.labelcolor": SOFT, "grid.color": LINE, "axes.edgecolor": LINE,
        "xtick.color": LINE, "ytick.color": LINE, "axes.spines.top": False, "axes.spines.right": False,
        "axes.spines.left": False, "ytick.major.size": 0, "axes.axisbelow": True,
    }  # fmt: skip
    with mpl.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        axes.grid(axis="y")
        texts = draw(axes)
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            if axis.get_scale() == "linear" or high < 20 * low:
                axis.set_major_locator(MaxNLocator(TICKS, steps=[1, 2, 2.5, 5, 10]))
            axis.set_major_formatter(FuncFormatter(compact))
            axis.set_minor_formatter(NullFormatter())
        with io.StringIO() as file:
            figure.savefig(file, format="svg")
            drawn = file.getvalue()
    body = UNUSED_SVG.sub("", drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")])
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body.replace("xlink:href", "href"))
    for color, variable in VARIABLES.items():
        body = body.replace(color, f"var({variable})")
    for name, text in texts.items():
        body = body.replace(f'<g id="{name}">', f'<g class="at"><title>{escape(text)}</title>', 1)
    return Html(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>')
