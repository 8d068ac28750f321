"""The sections of a run's page, as HTML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...scene.gaussians import Gaussians
from ...viewing.charts import Series, histogram, line_chart
from ...viewing.data_urls import ERROR_GAIN, EncodedImage
from ...viewing.markup import Html, element
from ..configuration import Config, RunConfig, preset, to_json
from ..history import History
from .numbers import MISSING, before, decibels, duration, fixed, integer, milliseconds, number, size

BARS = 40
"""Number of bars of a histogram."""

BEYOND = 0.001
"""Share of the Gaussians, at either end, that the first or the last bar of a histogram includes."""

PRESET_OF = {"mcmc": "mcmc", "default": "adaptive"}
"""The preset of each kind of strategy; without a strategy it is fixed."""

PARTS = ("reading", "training", "evaluation", "saving", "viewing")
"""Parts of a run whose time is shown."""

ROWS_SHORT = 14
"""Number of views from which their table has a scroll bar of its own."""


@dataclasses.dataclass(frozen=True)
class ViewImages:
    """The images of a view.

    Attributes:
        row: Its metrics.
        remark: Its place among all views, such as "worst".
        is_large: Whether it takes the whole width.
        target, rendered, error, depth: The images.
    """

    row: dict[str, Any]
    remark: str
    is_large: bool
    target: EncodedImage
    rendered: EncodedImage
    error: EncodedImage
    depth: EncodedImage | None


def header(name: str, config: Config | None, metrics: dict[str, Any], notes: Sequence[str]) -> Html:
    """The title and what is missing."""
    scene = Path(config.scene).name if isinstance(config, RunConfig) else ""
    about = [f"Scene {scene}" if scene else None, f"preset {_preset_name(config)}" if config is not None else None]
    steps, planned = number(metrics.get("steps")), None if config is None else config.steps
    if steps is not None and planned is not None and steps < planned:
        about.append(f"stopped after {steps:,.0f} of {planned:,} steps")
    text = ", ".join(part for part in about if part)
    missing = None
    if notes:
        entries = [element("li", note) for note in notes]
        missing = element("div", element("b", "Incomplete"), element("ul", *entries), class_="notes")
    return element(
        "header",
        element("p", "tsplat run report", class_="over"),
        element("h1", name),
        element("p", text[:1].upper() + text[1:], class_="under") if text else None,
        missing,
    )


def cards(metrics: dict[str, Any], gaussians: Gaussians | None, model_bytes: int | None) -> Html:
    """The key figures."""
    count = len(gaussians) if gaussians is not None else None
    is_test = bool(metrics.get("views"))
    kind = "" if is_test or number(metrics.get("psnr_train")) is None else ", training views"
    psnr = metrics.get("psnr") if is_test else metrics.get("psnr_train")
    rate = number(metrics.get("images_per_second"))
    degree = f"PLY, SH degree {gaussians.sh_degree}" if gaussians is not None else "PLY"
    ssim, seconds, steps = (metrics.get(key) for key in ("ssim", "seconds", "steps"))
    n_gaussians = metrics.get("num_gaussians", count)
    speed = "" if rate is None else f"{rate:.1f} images/s"
    rows = [
        (f"PSNR{kind}", decibels(psnr, infinite=is_test), "dB", psnr, before(metrics.get("psnr_initial"), ".2f")),
        ("SSIM", fixed(ssim, ".4f"), "", ssim, before(metrics.get("ssim_initial"), ".4f")),
        ("Gaussians", integer(n_gaussians), "", n_gaussians, ""),
        ("Steps", integer(steps), "", steps, ""),
        ("Duration", duration(seconds), "", seconds, speed),
        ("Model", size(model_bytes), "", model_bytes, degree),
    ]
    entries = []
    for label, text, unit, raw, remark in rows:
        known = text != MISSING
        figure = element("data", text, element("small", f" {unit}") if unit and known else None, value=_raw(raw))
        below = element("dd", remark, class_="sub") if remark and known else None
        entries.append(element("div", element("dt", label), element("dd", figure), below, class_="card"))
    return element("dl", *entries, class_="cards")


def curves(history: History | None) -> Html:
    """PSNR, loss and number of Gaussians over the steps."""
    if history is None or not (history.train_steps or history.test_steps):
        return section("Curves", _missing("No values over the steps were recorded."))

    def points(steps: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
        return [(float(step), float(value)) for step, value in zip(steps, values)]

    psnr = [
        Series("training", points(history.train_steps, history.train_psnr), "faint"),
        Series("test, mean", points(history.test_steps, history.test_psnr)),
    ]
    loss = [Series("training", points(history.train_steps, history.train_loss), "faint")]
    counts = [Series("Gaussians", points(history.test_steps, history.test_gaussians))]
    charts = [
        line_chart("PSNR in dB", psnr, x_label="steps", show=lambda value: f"{value:.2f} dB"),
        line_chart("Loss", loss, x_label="steps", show=lambda value: f"{value:.4f}", from_zero=True),
        line_chart("Gaussians", counts, x_label="steps", show=lambda value: f"{value:,.0f}", from_zero=True),
    ]
    return section("Curves", element("div", *charts, class_="charts"))


def table(
    rows: Sequence[dict[str, Any]], metrics: dict[str, Any], shown: Sequence[dict[str, Any]], *, is_test: bool
) -> Html:
    """A table of views, those with images linked to them."""
    title = "Test views" if is_test else "Training views"
    if not rows:
        return section(title, _missing("There are no metrics of single views."))
    columns: list[tuple[str, str, Callable[[Any], str]]] = [
        ("psnr", "PSNR, dB", lambda value: decibels(value, infinite=True)),
        ("ssim", "SSIM", lambda value: fixed(value, ".4f")),
        ("lpips", "LPIPS", lambda value: fixed(value, ".4f")),
        ("seconds", "Time, ms", milliseconds),
    ]
    columns = [column for column in columns if any(column[0] in row for row in rows)]
    heads = [element("th", element("button", "View", type="button"))]
    heads += [element("th", element("button", label, type="button"), class_="number") for _, label, _ in columns]
    places = {id(row): i for i, row in enumerate(shown)}
    body = []
    for row in rows:
        name = row.get("name", "")
        link = element("a", name, href=f"#view-{places[id(row)] + 1}") if id(row) in places else name
        cells = [_cell(row.get(key), text) for key, _, text in columns]
        body.append(element("tr", element("th", link, scope="row"), *cells))
    foot = None
    if is_test and len(rows) > 1:
        means = {**metrics, "seconds": metrics.get("seconds_per_image")}
        cells = [_cell(means.get(key), text) for key, _, text in columns]
        foot = element("tfoot", element("tr", element("th", f"Mean of {len(rows)}", scope="row"), *cells))
    content = element(
        "table", element("thead", element("tr", *heads)), element("tbody", *body), foot, class_="sortable"
    )
    return section(title, element("div", content, class_="scroll tall" if len(rows) > ROWS_SHORT else "scroll"))


def images(views: Sequence[ViewImages], *, is_test: bool) -> Html:
    """Photograph and rendering under a slider, error and depth of each view."""
    if not views:
        return section("Images", _missing("There are no images."))
    kind = "test" if is_test else "training"
    remark = (
        f"Photographs and renderings of {len(views)} {kind} views: drag across an image to compare. Error is the "
        f"absolute difference averaged over RGB, and is brightest from 1/{ERROR_GAIN} on. In depth, bright is near."
    )
    figures = [_view_figure(i, view) for i, view in enumerate(views)]
    return section("Images", element("p", remark, class_="remark"), element("div", *figures, class_="views"))


def distributions(gaussians: Gaussians | None) -> Html:
    """Histograms of opacity, scale and anisotropy."""
    title = "Distributions"
    if gaussians is None:
        return section(title, _missing("The model was not found."))
    valid = gaussians.valid
    with torch.no_grad():
        opacities = gaussians.opacities[valid].double().cpu().numpy()
        scales = gaussians.scales[valid].double().cpu().numpy()
    if not len(opacities):
        return section(title, _missing("The model has no valid Gaussians."))
    n_invalid = len(gaussians) - len(opacities)
    largest, smallest = scales.max(-1), np.maximum(scales.min(-1), np.finfo(np.float64).tiny)
    counts = np.histogram(opacities, BARS, (0.0, 1.0))[0]
    charts = [
        histogram("Opacity", np.linspace(0, 1, BARS + 1).tolist(), counts.tolist(), noun="Gaussians"),
        _log_histogram("Scale: largest axis, world units", largest),
        _log_histogram("Anisotropy: largest over smallest axis", np.maximum(largest / smallest, 1.0)),
    ]
    left_out = f" {n_invalid:,} Gaussians with invalid values are left out." if n_invalid else ""
    remark = f"Number of Gaussians. The outer bars of scale and anisotropy include what lies beyond them.{left_out}"
    return section(title, element("p", remark, class_="remark"), element("div", *charts, class_="charts"))


def configuration(config: Config | None) -> Html:
    """What differs from the preset, and all settings."""
    if config is None:
        return section("Configuration", _missing("The configuration was not found."))
    values, name = _flatten(to_json(config)), _preset_name(config)
    # The length of a run scales the schedules of its preset. No views per step mean one per rank.
    each = 1 if config.views_per_step else 0
    base = dataclasses.replace(preset(name, config.steps), steps=RunConfig.steps, views_per_step=each)
    defaults = _flatten(to_json(base))
    changed = [(key, value, defaults.get(key)) for key, value in values.items() if value != defaults.get(key)]
    content = element("p", f"All settings are those of the preset {name}.")
    if changed:
        content = _settings(("Setting", "Value", f"Preset {name}"), changed)
    everything = _settings(("Setting", "Value"), list(values.items()))
    return section(
        "Configuration", content, element("details", element("summary", f"All {len(values)} settings"), everything)
    )


def machine(sessions: Sequence[dict[str, Any]], metrics: dict[str, Any]) -> Html:
    """Hardware and versions of the last session."""
    last = sessions[-1] if sessions else {}
    hardware, software = (value if isinstance(value := last.get(key), dict) else {} for key in ("machine", "software"))
    cpu, cores, ranks = hardware.get("cpu"), hardware.get("cores"), number(hardware.get("ranks"))
    backend = metrics.get("backend")
    facts = [
        ("GPU", hardware.get("gpu")),
        ("CPU", f"{cpu}, {cores} logical cores" if cpu and cores else cpu),
        ("Device", ", ".join(str(part) for part in (hardware.get("device", metrics.get("device")), backend) if part)),
        ("Ranks", f"{ranks:.0f}" if ranks is not None and ranks > 1 else None),
        ("System", hardware.get("system")),
        *((name, software.get(name)) for name in ("tsplat", "torch", "triton")),
        ("Python", software.get("python")),
        ("Started", last.get("started")),
    ]
    entries = [entry for label, value in facts if value for entry in (element("dt", label), element("dd", value))]
    content = element("dl", *entries, class_="facts") if entries else _missing("The machine was not recorded.")
    return section("Machine", content)


def times(sessions: Sequence[dict[str, Any]]) -> Html:
    """Seconds per part, of all sessions together."""
    total: dict[str, float] = {}
    for session in sessions:
        seconds = session.get("seconds")
        for part, value in seconds.items() if isinstance(seconds, dict) else ():
            if number(value) is not None:
                total[part] = total.get(part, 0.0) + value
    known = [part for part in PARTS if part in total]
    if not known:
        return section("Time", _missing("The time per part was not recorded."))
    longest = max(total[part] for part in known) or 1.0
    cells = []
    for part in known:
        width = max(0.0, min(100.0, 100 * total[part] / longest))
        cells += [
            element("span", part.capitalize()),
            element("span", element("data", duration(total[part]), value=round(total[part], 3))),
            element("span", element("i", style=f"width:{width:.1f}%")),
        ]
    return section("Time", element("div", *cells, class_="times"))


def commands(sessions: Sequence[dict[str, Any]]) -> Html:
    """The command line of each session."""
    lines = [session["command"] for session in sessions if isinstance(session.get("command"), str)]
    if not lines:
        return section("Command line", _missing("The command line was not recorded."))
    return section("Command line", *(element("pre", line) for line in lines))


def section(title: str, *children: object) -> Html:
    """A section with a heading."""
    return element("section", element("h2", title), *children)


def _view_figure(index: int, view: ViewImages) -> Html:
    name = str(view.row.get("name", ""))
    caption = [element("b", name)]
    if view.remark:
        caption.append(element("span", view.remark, class_="badge"))
    psnr, ssim = decibels(view.row.get("psnr"), infinite=True), fixed(view.row.get("ssim"), ".4f")
    caption.append(element("span", f"{psnr} dB, SSIM {ssim}", class_="under"))
    slider = element(
        "div",
        _image(view.target, f"{name}: photograph"),
        element("div", _image(view.rendered, f"{name}: rendering"), class_="over-image"),
        element("span", "photograph", class_="tag"),
        element("span", "rendering", class_="tag right"),
        element("input", type="range", min=0, max=100, step=0.1, value=50, aria_label=f"{name}: part shown"),
        class_="wipe",
    )
    parts = [slider, _labeled_image(view.error, name, f"error \N{MULTIPLICATION SIGN} {ERROR_GAIN}")]
    if view.depth is not None:
        parts.append(_labeled_image(view.depth, name, "depth"))
    is_tall = view.target.height > view.target.width
    return element(
        "figure",
        element("figcaption", *caption),
        element("div", *parts, class_="images portrait" if is_tall else "images"),
        class_="view first" if view.is_large else "view",
        id=f"view-{index + 1}",
    )


def _labeled_image(image: EncodedImage, name: str, label: str) -> Html:
    return element("div", _image(image, f"{name}: {label}"), element("span", label, class_="tag"), class_="image")


def _image(image: EncodedImage, description: str) -> Html:
    return element("img", src=image.url, width=image.width, height=image.height, alt=description)


def _log_histogram(title: str, values: np.ndarray) -> Html:
    logs = np.log10(np.maximum(values, np.finfo(np.float64).tiny))
    low, high = (float(edge) for edge in np.quantile(logs, (BEYOND, 1 - BEYOND)))
    if high - low < 1e-3:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(logs.clip(low, high), BARS, (low, high))
    return histogram(title, edges.tolist(), counts.tolist(), log=True, noun="Gaussians")


def _settings(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    head = element("thead", element("tr", *(element("th", title) for title in titles)))
    body = []
    for key, *values in rows:
        cells = [element("td", _setting(value), class_="code") for value in values]
        body.append(element("tr", element("th", key, scope="row", class_="code"), *cells))
    return element("div", element("table", head, element("tbody", *body)), class_="scroll")


def _setting(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _flatten(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of the strategy become settings with a prefix; its kind is that of the preset."""
    flat = {key: value for key, value in values.items() if key != "strategy"}
    strategy = values.get("strategy") or {}
    return flat | {f"strategy.{key}": value for key, value in strategy.items() if key != "kind"}


def _preset_name(config: Config) -> Any:
    strategy = to_json(config)["strategy"]
    return "fixed" if strategy is None else PRESET_OF[strategy["kind"]]


def _missing(text: str) -> Html:
    return element("p", text, class_="missing")


def _cell(value: Any, text: Callable[[Any], str]) -> Html:
    return element("td", element("data", text(value), value=_raw(value)), class_="number")


def _raw(value: Any) -> Any:
    """The value of a data element, by which tables are sorted; empty if it is not finite."""
    return value if number(value) is not None else ""
