"""Bar charts of measured and predicted times."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

COLORS = ("#c2410c", "#b9c6d6", "#3b6ea5")
"""Colors of the first, second and third bar of a group; the first is tsplat."""

BACKENDS = {
    "triton": "tsplat: kernels compiled by Triton",
    "torch": "the same pipeline in PyTorch",
    "reference": "dense reference of the tests",
}
"""What the backends are, by the names that records have for them."""

DESCRIPTIONS = {
    "cloud": ["2,000 Gaussians,", "96×64"],
    "dense": ["one tile with a list", "100 times the median"],
    "kettle": ["kettle, trained model,", "101,407 Gaussians"],
    "garden": ["garden, 138,766 Gaussians,"],
}
"""First line, and start of the second, of what scenes are, by the first part of their names."""

PARTS = {"tile": "", "eval3d": "evaluated in 3D", "2dgs": "2D Gaussians"}
"""What other parts of names mean, besides sizes; empty for nothing."""


def describe_scene(name: str) -> str:
    """Returns a description of a scene in two lines, for people who do not know its name."""
    measured = re.fullmatch(r"(\d+) at (\d+)x(\d+), .*", name)
    if measured:
        return f"{int(measured[1]):,} Gaussians,\n{measured[2]}×{measured[3]}"
    base, *parts = name.replace(" at ", "-").split("-")
    if base not in DESCRIPTIONS:
        return name
    first, *second = DESCRIPTIONS[base]
    second += [PARTS.get(part, part.replace("x", "×")) for part in parts]
    return f"{first}\n{', '.join(filter(None, second))}"


def plot_times(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Mapping[str, float]]],
    unit: str,
    write: Callable[[float], str],
) -> None:
    """Writes bar charts beside each other, with a group of bars per scene; shorter bars are better.

    Args:
        path: The image.
        title: Title of the image.
        panels: Times by the title of the chart, the legend of the bar, and the scene.
        unit: Unit of the times.
        write: Formats a time.
    """
    from matplotlib.figure import Figure

    bars = list(dict.fromkeys(legend for groups in panels.values() for legend in groups))
    scenes = list(dict.fromkeys(s for groups in panels.values() for times in groups.values() for s in times))
    figure = Figure(figsize=(11, 1.6 + 0.95 * len(scenes)), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=14)
    for axes, (panel, groups) in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items()):
        own = [time for times in groups.values() for time in times.values()]
        for scene_index, scene in enumerate(scenes):
            shown = [legend for legend in bars if scene in groups.get(legend, {})]
            for i, legend in enumerate(shown):
                place = scene_index + 0.25 * (i - (len(shown) - 1) / 2)
                time = groups[legend][scene]
                axes.barh(place, time, 0.24, color=COLORS[bars.index(legend)])
                axes.annotate(write(time), (time, place), (4, 0), textcoords="offset points", va="center", fontsize=10)
        axes.set_title(panel, fontsize=12)
        axes.set_yticks(range(len(scenes)), [describe_scene(scene) for scene in scenes], fontsize=11)
        axes.set(xscale="log", ylim=(len(scenes) - 0.5, -0.5))
        axes.set_xlim(10.0 ** math.floor(math.log10(min(own))), 3 * max(own))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel(f"{unit}, logarithmic scale; shorter is better", fontsize=11)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(False)
    _add_legend(figure, bars)
    figure.savefig(path)


def _add_legend(figure: Any, bars: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=color, label=legend) for legend, color in zip(bars, COLORS)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(bars), fontsize=11, frameon=False)
