"""Computes the values of the report template, one function per section."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...scalars import to_float
from ...scene.gaussians import Gaussians
from ..configuration import Config, RunConfig, to_json
from ..history import History
from ..presets import closest_preset, preset
from .charts import Series, histogram, line_chart
from .data_urls import EncodedImage
from .numbers import MISSING, decibels, duration, fixed, size
from .quality import REGIONS, Patch, RegionScore

Values = dict[str, Any]

BARS = 40
"""Number of bars of a histogram."""

TAIL_FRACTION = 0.001
"""Fraction of the Gaussians at each end of the range that the first and the last bar of a histogram collect."""

PARTS = ("reading", "training", "evaluation", "saving", "viewing")
"""Parts of a run whose time is shown."""

ROWS_SHORT = 14
"""Maximum number of views whose table has no scroll bar."""

VIEW_COLUMNS = (("psnr", "PSNR, dB"), ("ssim", "SSIM"), ("lpips", "LPIPS"), ("seconds", "Time, ms"))
"""Columns of the table of views."""


def header(name: str, config: Config | None, metrics: Values, notes: Sequence[str]) -> Values:
    """Returns the title, a line about the run, and notes about missing parts."""
    scene = Path(config.scene).name if isinstance(config, RunConfig) else ""
    about = [f"Scene {scene}"] if scene else []
    if config is not None:
        about.append(f"preset {closest_preset(config)}")
        steps = to_float(metrics.get("steps"))
        if steps is not None and steps < config.steps:
            about.append(f"stopped after {steps:,.0f} of {config.steps:,} steps")
    left_out = metrics.get("left_out")
    if isinstance(left_out, list) and left_out:
        about.append(f"{len(left_out)} photograph{'s' * (len(left_out) > 1)} with distant cameras left out")
    text = ", ".join(about)
    incomplete = {"notes": [{"note": note} for note in notes]} if notes else None
    return {"name": name, "about": text[:1].upper() + text[1:], "incomplete": incomplete}


def cards(metrics: Values, gaussians: Gaussians | None, model_bytes: int | None) -> list[Values]:
    """Returns the key figures."""
    is_test = bool(metrics.get("views"))
    kind = "" if is_test or to_float(metrics.get("psnr_train")) is None else ", training views"
    psnr = metrics.get("psnr" if is_test else "psnr_train")
    ssim, steps, seconds = (metrics.get(key) for key in ("ssim", "steps", "seconds"))
    n_gaussians = metrics.get("num_gaussians", None if gaussians is None else len(gaussians))
    psnr_before, ssim_before, speed = (
        "" if (number := to_float(metrics.get(key))) is None else text.format(number)
        for key, text in (
            ("psnr_initial", "from {:.2f}"), ("ssim_initial", "from {:.4f}"), ("images_per_second", "{:.1f} images/s"),
        )
    )  # fmt: skip
    degree = "PLY" if gaussians is None else f"PLY, SH degree {gaussians.sh_degree}"
    rows = [
        (f"PSNR{kind}", decibels(psnr, infinite=is_test), psnr, psnr_before),
        ("SSIM", fixed(ssim, ".4f"), ssim, ssim_before),
        ("Gaussians", fixed(n_gaussians, ",.0f"), n_gaussians, ""),
        ("Steps", fixed(steps, ",.0f"), steps, ""),
        ("Duration", duration(seconds), seconds, speed),
        ("Model", size(model_bytes), model_bytes, degree),
    ]
    return [
        {
            "label": label,
            "unit": "dB" if known and label.startswith("PSNR") else "",
            "remark": remark if known else "",
            **_sortable(text, value),
        }
        for label, text, value, remark in rows
        for known in [text != MISSING]
    ]


def curves(history: History | None) -> Values | None:
    """Draws charts of PSNR, loss and number of Gaussians over the steps."""
    if history is None or not (history.train_steps or history.test_steps):
        return None

    psnr = [
        Series("training", list(zip(history.train_steps, history.train_psnr)), "faint"),
        Series("test, mean", list(zip(history.test_steps, history.test_psnr))),
    ]
    loss = [Series("training", list(zip(history.train_steps, history.train_loss)), "faint")]
    counts = [Series("Gaussians", list(zip(history.test_steps, history.test_gaussians)))]
    charts = [
        line_chart("PSNR in dB", psnr, show="{:.2f} dB".format),
        line_chart("Loss", loss, show="{:.4f}".format, from_zero=True),
        line_chart("Gaussians", counts, show="{:,.0f}".format, from_zero=True),
    ]
    return {"charts": charts}


def table(rows: Sequence[Values], metrics: Values, shown: Sequence[Values], *, is_test: bool) -> Values | None:
    """Returns the table of views; views with images are linked to them."""
    if not rows:
        return None
    columns = [(key, label) for key, label in VIEW_COLUMNS if any(key in row for row in rows)]

    def cells(row: Values) -> list[Values]:
        return [_sortable(_metric(key, row.get(key)), row.get(key)) for key, _ in columns]

    places = {id(row): i + 1 for i, row in enumerate(shown)}
    means = {**metrics, "seconds": metrics.get("seconds_per_image")}
    return {
        "is_long": len(rows) > ROWS_SHORT,
        "columns": [{"label": label} for _, label in columns],
        "rows": [{"row_name": row.get("name"), "place": places.get(id(row)), "cells": cells(row)} for row in rows],
        "means": {"n_views": len(rows), "cells": cells(means)} if is_test and len(rows) > 1 else None,
    }


def quality(
    rows: Sequence[Values],
    metrics: Values,
    scores: Sequence[dict[str, RegionScore]],
    in_front: Sequence[float],
    patches: Sequence[Patch],
    images: Sequence[EncodedImage],
) -> Values:
    """Returns metrics of regions, floaters, the gap between training and test views, and the worst patches.

    `rows` are the views. `scores` has the metrics of the regions of each view, and `in_front` its fraction of floating
    Gaussians, see :func:`.quality.floater_shares`; empty if unknown. `images` are the original and the rendering of
    each patch.
    """

    def cells(scores: Sequence[dict[str, RegionScore]], in_front: Sequence[float]) -> list[Values]:
        """Returns the means over views."""
        columns = [[getattr(score[name], key) for score in scores] for key in ("psnr", "ssim") for name in REGIONS]
        columns += [[100 * part for part in in_front]]
        formats = [".2f"] * len(REGIONS) + [".4f"] * len(REGIONS) + [".1f"]
        means = [float(np.mean(known)) if (known := [v for v in c if v is not None]) else np.nan for c in columns]
        return [_sortable("\N{INFINITY}" if v == np.inf else fixed(v, text), v) for v, text in zip(means, formats)]

    trained, held_out = to_float(metrics.get("psnr_train")), to_float(metrics.get("psnr"))
    return {
        "gap": None
        if trained is None or held_out is None
        else {"trained": f"{trained:.2f}", "gap": f"{trained - held_out:+.2f}"},
        "region_columns": [{"label": f"{metric}, {name}"} for metric in ("PSNR", "SSIM") for name in REGIONS]
        + [{"label": "Floaters, %"}],
        "region_rows": [
            {"row_name": row.get("name"), "cells": cells([scores[i]], in_front[i : i + 1])}
            for i, row in enumerate(rows)
        ],
        "region_means": {"n_views": len(rows), "cells": cells(scores, in_front)} if len(rows) > 1 else None,
        "patches": [
            {
                "view_name": rows[patch.view].get("name"),
                "psnr": decibels(patch.psnr),
                "at": f"{patch.left}, {patch.top}",
                "target": target,
                "rendered": rendered,
            }
            for patch, target, rendered in zip(patches, images[::2], images[1::2])
        ],
    }


def distributions(gaussians: Gaussians | None) -> Values | None:
    """Draws histograms of opacity, scale and anisotropy."""
    if gaussians is None or not (valid := gaussians.valid).any():
        return None
    with torch.no_grad():
        opacities = gaussians.opacities[valid].double().cpu().numpy()
        scales = gaussians.scales[valid].double().cpu().numpy()
    n_invalid = len(gaussians) - len(opacities)
    largest, smallest = scales.max(-1), np.maximum(scales.min(-1), np.finfo(np.float64).tiny)
    counts, edges = np.histogram(opacities, BARS, (0.0, 1.0))
    charts = [
        histogram("Opacity", edges.tolist(), counts.tolist(), noun="Gaussians"),
        _log_histogram("Scale: largest axis, world units", largest),
        _log_histogram("Anisotropy: largest over smallest axis", np.maximum(largest / smallest, 1.0)),
    ]
    return {"charts": charts, "n_invalid": f"{n_invalid:,}" if n_invalid else ""}


def configuration(config: Config | None) -> Values | None:
    """Returns the settings that differ from the preset, and all settings; None without a configuration."""
    if config is None:
        return None
    values, name = _flatten(to_json(config)), closest_preset(config)
    # The preset is that for the run's number of steps, but other numbers than the default count as changed. 0 views per
    # step mean one per rank.
    each = 1 if config.views_per_step else 0
    base = dataclasses.replace(preset(name, config.steps), steps=RunConfig.steps, views_per_step=each)
    defaults = _flatten(to_json(base))
    settings = [
        {"key": key, "value": _setting(value), "default": _setting(defaults.get(key))} for key, value in values.items()
    ]
    changed = [setting for setting in settings if values[setting["key"]] != defaults.get(setting["key"])]
    differences = {"changed": changed} if changed else None
    return {"preset": name, "differences": differences, "settings": settings, "n_settings": len(settings)}


def machine(sessions: Sequence[Values], metrics: Values) -> Values | None:
    """Returns the hardware and software versions of the last session."""
    last = sessions[-1] if sessions else {}
    hardware, software = (value if isinstance(value := last.get(key), dict) else {} for key in ("machine", "software"))
    cpu, cores, ranks = hardware.get("cpu"), hardware.get("cores"), to_float(hardware.get("ranks"))
    device = (hardware.get("device", metrics.get("device")), metrics.get("backend"))
    facts = {
        "GPU": hardware.get("gpu"),
        "CPU": f"{cpu}, {cores} logical cores" if cpu and cores else cpu,
        "Device": ", ".join(str(part) for part in device if part),
        "Ranks": f"{ranks:.0f}" if ranks is not None and ranks > 1 else None,
        "System": hardware.get("system"),
        **{name: software.get(name) for name in ("tsplat", "torch", "triton")},
        "Python": software.get("python"),
        "Started": last.get("started"),
    }
    known = [{"label": label, "value": value} for label, value in facts.items() if value]
    return {"facts": known} if known else None


def times(sessions: Sequence[Values]) -> Values | None:
    """Returns the duration of each part, summed over all sessions."""
    measured = [seconds for session in sessions if isinstance(seconds := session.get("seconds"), dict)]
    seconds_of = {part: [s for seconds in measured if (s := to_float(seconds.get(part))) is not None] for part in PARTS}
    total = {part: sum(values) for part, values in seconds_of.items() if values}
    longest = max(total.values(), default=0.0) or 1.0
    parts = [
        {
            "part": part.capitalize(),
            "width": f"{max(0.0, min(100.0, 100 * seconds / longest)):.1f}",
            **_sortable(duration(seconds), round(seconds, 3)),
        }
        for part, seconds in total.items()
    ]
    return {"parts": parts} if parts else None


def commands(sessions: Sequence[Values]) -> list[Values]:
    """Returns the command line of each session."""
    return [{"command": command} for session in sessions if isinstance(command := session.get("command"), str)]


def view(row: Values, remark: str, place: int, *, is_large: bool, images: Values) -> Values:
    """Returns a view with images: photograph and rendering under a slider, error and depth.

    `row` has the metrics of the view, and `place` its number among the views with images, from 1. A large view takes
    the whole width. `images` are the `target`, the `rendered` image, and `others` with labels.
    """
    return {
        "view_name": row.get("name"),
        "remark": remark,
        "place": place,
        "psnr": _metric("psnr", row.get("psnr")),
        "ssim": _metric("ssim", row.get("ssim")),
        "is_large": is_large,
        "is_tall": images["target"]["height"] > images["target"]["width"],
        **images,
    }


def _metric(key: str, value: Any) -> str:
    if key == "psnr":
        return decibels(value)
    return fixed(value, ".1f", 1000) if key == "seconds" else fixed(value, ".4f")


def _sortable(text: str, value: Any) -> Values:
    """Returns a text and the value by which tables are sorted; it is empty unless it is finite."""
    return {"text": text, "raw": value if to_float(value) is not None else ""}


def _log_histogram(title: str, values: np.ndarray) -> Values:
    """Draws a histogram of logarithms; the first and the last bar include all values beyond the range."""
    logs = np.log10(np.maximum(values, np.finfo(np.float64).tiny))
    low, high = (float(edge) for edge in np.quantile(logs, (TAIL_FRACTION, 1 - TAIL_FRACTION)))
    if high - low < 1e-3:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(logs.clip(low, high), BARS, (low, high))
    return histogram(title, edges.tolist(), counts.tolist(), log=True, noun="Gaussians")


def _setting(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _flatten(values: Values) -> Values:
    """Flattens settings: those of the strategy get a prefix. Its kind is left out, as the preset implies it."""
    flat = {key: value for key, value in values.items() if key != "strategy"}
    strategy = values.get("strategy") or {}
    return flat | {f"strategy.{key}": value for key, value in strategy.items() if key != "kind"}
