"""Compares training recipes at equal steps and an equal budget of Gaussians, on photographs and on rendered captures.

    python -m benchmarks.trainers [--captures NAME ...] [--scenes PATH ...] [--downscale N] [--recipes RECIPE ...]
        [--steps N ...] [--seeds N ...] [--budget FACTOR] [--lpips WEIGHTS] [--json FILE] [--figure FILE] [--table]

A recipe is `gsplat`, `mcmc`, `standard` or `compact`, or one of these with other settings:
`standard:antialiased=false`, `standard:means_rate*=2,strategy.refine_every=5`. The budget is the maximum number of
Gaussians, as a factor of the number of initial points; 0 for that of the recipe. Captures whose photographs do not
exist are skipped. `--scenes` adds scenes that `tsplat train` reads, downscaled by `--downscale`.

`--json` appends a line per run. `--table` and `--figure` show means over seeds of all lines in that file; the figure
shows PSNR over time. `--lpips` also measures LPIPS, with the weights that `benchmarks.perceptual` describes. Times are
CPU times of the steps, without evaluations.
"""

import argparse
import dataclasses
import functools
import json
import math
import re
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.perceptual import Lpips
from benchmarks.room import room_capture
from tests.support.paths import SCENES
from tsplat.scene import Capture, prepare, read_capture
from tsplat.strategies import MCMCStrategy
from tsplat.training import RunConfig, Trainer, evaluate, preset
from tsplat.training.configuration import from_json, to_json
from tsplat.training.presets import SCHEDULE_STEPS
from tsplat.training.report.quality import floater_shares
from tsplat.training.runs.initial_gaussians import initial_gaussians


def prepared_capture() -> Capture:
    """Returns the photographs of `banana` with the cameras and points of `tsplat prepare`."""
    folder = TemporaryDirectory()
    scene = Path(folder.name) / "scene"
    prepare(SCENES / "banana" / "images", scene)
    capture = read_capture(scene, downscale=4)
    weakref.finalize(capture, folder.cleanup)  # not before, as images are read on demand
    return capture


CAPTURES: dict[str, Callable[[], Capture]] = {
    "banana": lambda: read_capture(SCENES / "banana", downscale=4),
    "lego": lambda: read_capture(SCENES / "lego_400", downscale=4),
    "lego-2": lambda: read_capture(SCENES / "lego_400", downscale=2),
    "prepared": prepared_capture,
    "room": room_capture,
    "exposure": lambda: room_capture(exposure=0.25),
    "sky": lambda: room_capture(sky=True),
    "rolling": lambda: room_capture(rolling=0.01),
    "tiny": lambda: room_capture(32, 24, n_train=4, n_test=2, n_points=200),
}
DEFAULT_CAPTURES = ("banana", "prepared", "lego", "room", "exposure")
FOLDERS = {"banana": "banana", "prepared": "banana", "lego": "lego_400", "lego-2": "lego_400"}
"""Folders of the captures that are read from files."""

TITLES = {
    "banana": "banana ÷4, 13 photographs",
    "prepared": "banana by tsplat prepare, ÷4",
    "lego": "lego_400 ÷4, 100 images",
    "room": "room, 36 images",
    "exposure": "room, varying exposure",
}
"""Titles of the captures in plots."""

LABELS = {"gsplat": "gsplat's MCMC", "standard": "tsplat, preset standard", "compact": "tsplat, preset compact"}
"""Labels of the recipes in plots."""

EVALUATIONS = 10
"""Number of evaluations of the held-out views during a run."""


def gsplat(steps: int) -> RunConfig:
    """Returns the settings of gsplat 1.5.3's trainer with MCMC, shortened from 30,000 steps by its `steps_scaler`."""
    factor = steps / SCHEDULE_STEPS

    def scaled(n: int) -> int:
        return max(1, int(n * factor))

    strategy = MCMCStrategy(
        refine_start_iter=scaled(500), refine_stop_iter=scaled(25_000), refine_every=scaled(100)
    )  # fmt: skip
    return dataclasses.replace(preset("mcmc", steps), strategy=strategy, sh_interval=scaled(1000))


RECIPES: dict[str, Callable[[int], RunConfig]] = {
    "gsplat": gsplat,
    "mcmc": lambda steps: preset("mcmc", steps),
    "standard": lambda steps: preset("standard", steps),
    "compact": lambda steps: preset("compact", steps),
}


def configure(recipe: str, steps: int) -> RunConfig:
    """Returns the configuration of a recipe, with its changed settings."""
    name, _, settings = recipe.partition(":")
    values = to_json(RECIPES[name](steps))
    for setting in filter(None, settings.split(",")):
        match = re.fullmatch(r"(strategy\.)?(\w+)(\*?)=(.+)", setting)
        if match is None:
            raise SystemExit(f"{recipe}: expected NAME=VALUE or NAME*=FACTOR, found {setting}")
        of_strategy, key, factor, text = match.groups()
        target = values["strategy"] if of_strategy else values
        target[key] = target[key] * float(text) if factor else json.loads(text)
    return from_json(values, recipe)


def run(
    name: str, capture: Capture, recipe: str, steps: int, seed: int, budget: float, lpips: Lpips | None = None
) -> dict[str, Any]:
    """Trains once and returns the figures of the run."""
    config = dataclasses.replace(configure(recipe, steps), seed=seed, background=capture.background)
    if budget:
        config = dataclasses.replace(config, max_gaussians=int(budget * len(capture.points)))
    trainer = Trainer(initial_gaussians(config, capture), capture.train, config)
    seconds, curve = 0.0, []
    for step in range(1, steps + 1):
        start = time.process_time()
        trainer.advance()
        seconds += time.process_time() - start
        if step % max(1, steps // EVALUATIONS) == 0 and step < steps:
            psnr = evaluate(trainer.gaussians, capture.test, background=config.backdrop).psnr
            curve.append((round(seconds, 2), step, round(psnr, 3)))
    found, fitted = (
        evaluate(trainer.gaussians, views, background=config.backdrop) for views in (capture.test, capture.train)
    )
    curve.append((round(seconds, 2), steps, round(found.psnr, 3)))
    return {
        "capture": name,
        "recipe": recipe,
        "steps": steps,
        "seed": seed,
        "psnr": round(found.psnr, 3),
        "ssim": round(found.ssim, 4),
        "lpips": lpips and round(mean(lpips(score.image, score.view.pixels) for score in found), 4),
        "gaussians": trainer.n_gaussians,
        "seconds": round(seconds, 1),
        "train_psnr": round(fitted.psnr, 3),
        "floaters": round(mean(floater_shares(trainer.gaussians, [view.camera for view in capture.test])), 4),
        "curve": curve,
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Returns means over seeds, with half the range of PSNR, as Markdown; LPIPS is a mean of runs that measured it."""
    rows = defaultdict(list)
    for line in lines:
        rows[line["capture"], line["steps"], line["recipe"]].append(line)
    text = "| capture | steps | recipe | seeds | Gaussians | PSNR (dB) | SSIM | LPIPS | training PSNR | floaters "
    text += "| seconds |\n| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    for (capture, steps, recipe), runs in sorted(rows.items()):
        psnr = [line["psnr"] for line in runs]
        n, ssim, fitted, front, seconds = (
            mean(line[key] for line in runs) for key in ("gaussians", "ssim", "train_psnr", "floaters", "seconds")
        )
        distances = [line["lpips"] for line in runs if line.get("lpips") is not None]
        lpips = f"{mean(distances):.3f}" if distances else ""
        text += (
            f"| {capture} | {steps:,} | {recipe} | {len(runs)} | {n:,.0f} | {mean(psnr):.2f} ± "
            f"{(max(psnr) - min(psnr)) / 2:.2f} | {ssim:.3f} | {lpips} | {fitted:.2f} | {100 * front:.1f} % "
            f"| {seconds:.0f} |\n"
        )
    return text


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws PSNR over seconds: a panel for each capture and number of steps, a curve for each recipe.

    A dotted line marks the final PSNR of the first recipe, and a label the final PSNR of each curve.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = sorted({(line["capture"], line["steps"]) for line in lines}, key=lambda panel: (panel[1], panel[0]))
    recipes = list(dict.fromkeys(line["recipe"] for line in lines))
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    with pyplot.rc_context({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 3.9 * rows), squeeze=False)
        for ax in axes.flat[len(panels) :]:
            ax.remove()
        for panel, ax in zip(panels, axes.flat):
            finals = []
            for i, recipe in enumerate(recipes):
                curves = [x["curve"] for x in lines if (x["capture"], x["steps"], x["recipe"]) == (*panel, recipe)]
                if not curves:
                    continue
                means = [[mean(values) for values in zip(*points)] for points in zip(*curves)]
                seconds, _, psnr = zip(*means)
                ax.plot(
                    seconds,
                    psnr,
                    marker="o",
                    markersize=4,
                    linewidth=2,
                    color=f"C{i}",
                    label=LABELS.get(recipe, recipe),
                )
                label = dict(xytext=(-4, 7), textcoords="offset points", ha="right", color=f"C{i}", weight="bold")
                ax.annotate(f"{psnr[-1]:.1f}", (seconds[-1], psnr[-1]), **label)
                finals.append(psnr[-1])
            ax.axhline(finals[0], color="gray", linestyle=":", linewidth=1.5)
            ax.set(
                title=f"{TITLES.get(panel[0], panel[0])}, {panel[1]:,} steps", ylim=(finals[0] - 10, max(finals) + 2)
            )
            ax.set(xlim=(0, None), xlabel="CPU time of the steps (s)", ylabel="held-out PSNR (dB)")
            ax.grid(alpha=0.3)
        handles = {label: handle for ax in figure.axes for handle, label in zip(*ax.get_legend_handles_labels())}
        figure.legend(handles.values(), handles, ncols=len(handles), loc="upper center", frameon=False, fontsize=14)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / (3.9 * rows)))
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--captures", nargs="+", choices=CAPTURES, help="five, unless scenes are given")
    parser.add_argument("--scenes", nargs="*", type=Path, default=(), help="folders of scenes, named as the folders")
    parser.add_argument("--downscale", type=int, default=4, help="factor by which images of --scenes are downscaled")
    parser.add_argument("--recipes", nargs="*", default=("gsplat", "standard"))
    parser.add_argument("--steps", nargs="+", type=int, default=(1500,))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--budget", type=float, default=3.2, help="Gaussians per initial point; 0 for no limit")
    parser.add_argument("--lpips", type=Path, help="file of weights, to measure LPIPS")
    parser.add_argument("--json", type=Path, help="file to append a line per run to")
    parser.add_argument("--table", action="store_true", help="print a table of all runs in that file")
    parser.add_argument("--figure", type=Path, help="file for a plot of PSNR over time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lpips = Lpips(options.lpips) if options.lpips else None
    lines = []
    names = options.captures or (() if options.scenes else DEFAULT_CAPTURES)
    captures = {name: CAPTURES[name] for name in names}
    for scene in options.scenes:
        captures[scene.resolve().name] = functools.partial(read_capture, scene, downscale=options.downscale)
    for name, load in captures.items() if options.recipes else ():
        folder = FOLDERS.get(name) if name in names else None
        if folder and not (SCENES / folder).is_dir():
            print(f"{name}: skipped, as {SCENES / folder} does not exist")
            continue
        capture = load()
        for steps in options.steps:
            for seed in options.seeds:
                for recipe in options.recipes:
                    lines.append(run(name, capture, recipe, steps, seed, options.budget, lpips))
                    print(json.dumps({key: value for key, value in lines[-1].items() if key != "curve"}), flush=True)
                    if options.json:
                        with options.json.open("a") as file:
                            file.write(json.dumps(lines[-1]) + "\n")
    if options.json and options.json.exists():
        lines = [json.loads(line) for line in options.json.read_text().splitlines()]
    if options.table:
        print(table(lines))
    if options.figure and lines:
        draw(lines, options.figure)


if __name__ == "__main__":
    main()
