"""Line charts and histograms as inline SVG, which needs no script: a pointer shows the values at its position.

Colors come from the style sheet of the page, by the classes of the elements.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

from .markup import Html, element, join

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 24, 36
"""Size of a chart and its margins, in SVG units."""

POINTS_MAX = 120
"""Number of points of a series that a chart shows at most."""

TICKS = 4

Point = tuple[float, float]
Format = Callable[[float], str]


@dataclasses.dataclass(frozen=True)
class Series:
    """A curve.

    Attributes:
        label: What it shows, for the legend.
        points: x and y; points that are not finite are left out.
        style: "main" has a marker at each point; "faint" is a thin line, of which long parts are averaged.
    """

    label: str
    points: Sequence[Point]
    style: Literal["main", "faint"] = "main"


@dataclasses.dataclass(frozen=True)
class _Axes:
    """Limits of both axes, and the mapping to SVG units."""

    low: Point
    high: Point

    def x(self, value: float) -> float:
        return LEFT + (value - self.low[0]) / (self.high[0] - self.low[0]) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.low[1]) / (self.high[1] - self.low[1]) * (HEIGHT - TOP - BOTTOM)


def line_chart(title: str, series: Sequence[Series], *, x_label: str, show: Format, from_zero: bool = False) -> Html:
    """Returns a figure with curves over a common axis.

    Args:
        title: What is plotted, with its unit.
        series: The curves; later ones are drawn over earlier ones.
        x_label: Name of the horizontal axis.
        show: Formats a value for display.
        from_zero: Whether the vertical axis starts at zero.

    Returns:
        The figure; with a remark instead of a chart if there is no finite point.
    """
    curves = [(one, _thin(_finite(one.points), one.style)) for one in series]
    curves = [(one, points) for one, points in curves if points]
    everything = [point for _, points in curves for point in points]
    if not everything:
        return _figure(title, [], element("p", "No values were recorded.", class_="missing"))
    xs, ys = [x for x, _ in everything], [y for _, y in everything]
    bottom = min(0.0, *ys) if from_zero else min(ys)
    (x_low, x_high), (y_low, y_high) = _padded(min(0.0, *xs), max(xs), 0.0), _padded(bottom, max(ys), 0.06)
    axes = _Axes((x_low, 0.0 if from_zero and bottom == 0 else y_low), (x_high, y_high))
    body = [_grid(axes, [(value, compact(value)) for value in ticks(x_low, x_high)], x_label)]
    for one, points in curves:
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
        body.append(element("polyline", points=path, class_=one.style))
        if one.style == "main":
            body += [element("circle", cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=2.5) for x, y in points]
    body.append(_hover_lines(axes, curves, x_label, show))
    keys = [(one.label, one.style) for one, _ in curves]
    return _figure(title, keys, _svg(title, body))


def histogram(title: str, edges: Sequence[float], counts: Sequence[int], *, log: bool = False, noun: str = "") -> Html:
    """Returns a figure with bars.

    Args:
        title: What is counted.
        edges: Limits of the bars, one more than `counts`, increasing; their decimal logarithms if `log`.
        counts: Heights of the bars.
        log: Whether the horizontal axis is logarithmic.
        noun: What is counted, plural.
    """
    axes = _Axes((edges[0], 0.0), (edges[-1], 1.05 * max(1, *counts)))
    marks = _log_ticks(edges[0], edges[-1]) if log else [(v, compact(v)) for v in ticks(edges[0], edges[-1])]
    body = [_grid(axes, marks, "")]
    for low, high, count in zip(edges, edges[1:], counts):
        left, right, top = axes.x(low), axes.x(high), axes.y(count)
        limits = [f"{10**edge if log else edge:.3g}" for edge in (low, high)]
        text = f"{limits[0]} to {limits[1]}: {count:,} {noun}".rstrip()
        bar = element(
            "rect",
            x=f"{left:.1f}",
            y=f"{top:.1f}",
            width=f"{max(right - left - 1, 0.5):.1f}",
            height=f"{HEIGHT - BOTTOM - top:.1f}",
            class_="bar",
        )
        body.append(element("g", _hit(left, right), bar, _readout(text), class_="at"))
    return _figure(title, [], _svg(title, body))


def ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Returns about `count` round numbers from `low` to `high`: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= 0.999 * span / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def compact(value: float) -> str:
    """Formats a number for an axis: 0.25, 500, 12k, 1.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < 1e15:
            return f"{value / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{value:.4g}"


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Positions and labels for limits that are decimal logarithms; at most about six."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [(k + math.log10(f), f * 10.0**k) for k in powers for f in factors]
        inside = [(position, f"{value:.3g}") for position, value in values if low <= position <= high]
        if len(inside) <= 6:
            break
    if len(inside) < 3:
        inside = [(math.log10(value), f"{value:.3g}") for value in ticks(10.0**low, 10.0**high) if value > 0]
    return inside[:: max(1, math.ceil(len(inside) / 6))]


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _thin(points: list[Point], style: str) -> list[Point]:
    """At most :data:`POINTS_MAX` points: means of neighbors or, with markers, a selection with the last one."""
    n = math.ceil(len(points) / POINTS_MAX)
    if n <= 1:
        return points
    if style == "main":
        return points[:-1][::n][: POINTS_MAX - 1] + points[-1:]
    groups = [points[i : i + n] for i in range(0, len(points), n)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    """Limits of an axis: with a margin, and never equal."""
    margin = share * (high - low)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = 0.05 * max(abs(low), abs(high)) or 1.0
    return low - margin, high + margin


def _grid(axes: _Axes, marks: Sequence[tuple[float, str]], x_label: str) -> Html:
    """Lines and numbers of both axes."""
    parts = []
    for value in ticks(axes.low[1], axes.high[1]):
        y = f"{axes.y(value):.1f}"
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        parts.append(element("text", compact(value), x=LEFT - 7, y=f"{axes.y(value) + 4:.1f}", class_="end"))
    bottom = HEIGHT - BOTTOM
    parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"))
    for value, label in marks:
        parts.append(element("text", label, x=f"{axes.x(value):.1f}", y=bottom + 16, class_="middle"))
    if x_label:
        parts.append(element("text", x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 3, class_="middle"))
    return element("g", *parts, class_="grid")


def _hover_lines(axes: _Axes, curves: Sequence[tuple[Series, list[Point]]], x_label: str, show: Format) -> Html:
    """For each position with points, an area that shows their values while the pointer is over it."""
    at: dict[float, list[tuple[str, float]]] = {}
    for one, points in curves:
        for x, y in points:
            at.setdefault(x, []).append((one.label, y))
    xs = sorted(at)
    middles = [(axes.x(a) + axes.x(b)) / 2 for a, b in itertools.pairwise(xs)]
    limits = [float(LEFT), *middles, float(WIDTH - RIGHT)]
    parts = []
    for x, left, right in zip(xs, limits, limits[1:]):
        values = "  ".join(f"{show(y)} {label}" if len(curves) > 1 else show(y) for label, y in at[x])
        dots = [element("circle", cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=4) for _, y in at[x]]
        text = f"{x_label.rstrip('s')} {x:,.0f}: {values}"
        parts.append(element("g", _hit(left, right), *dots, _readout(text), class_="at"))
    return join(parts)


def _hit(left: float, right: float) -> Html:
    """The area over which a pointer shows a value."""
    width = max(right - left, 0.5)
    return element("rect", x=f"{left:.1f}", y=TOP, width=f"{width:.1f}", height=HEIGHT - TOP - BOTTOM, class_="hit")


def _readout(text: str) -> Html:
    return element("text", text, x=WIDTH - RIGHT, y=14, class_="end readout")


def _svg(title: str, body: Sequence[Html]) -> Html:
    return element("svg", *body, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)


def _figure(title: str, keys: Sequence[tuple[str, str]], body: Html) -> Html:
    legend = [element("span", label, class_=f"key {style}") for label, style in (keys if len(keys) > 1 else [])]
    return element("figure", element("figcaption", element("b", title), *legend), body, class_="chart")
