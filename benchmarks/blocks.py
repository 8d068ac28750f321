"""Compares training a town in blocks with training it in one run.

    python -m benchmarks.blocks OUT [--lots 12] [--views 400] [--points 1000000] [--steps 1400] [--blocks 9] [--write]
        [OPTIONS of tsplat train]

`--steps` is the number of steps of the one run. The number of steps of each block is proportional to its number of
training views, so all runs use each of their views equally often.

Each command runs in a separate process, whose peak memory is measured. `tsplat blocks train` of the middle block is
killed and started again. Results that already exist in the folder OUT are reused.

Besides the PSNR of held-out views, the PSNR of their pixels near borders is computed: pixels that show a point whose
position on the ground, known from the ray tracer, is within BAND of a border between blocks. `--write` writes the table
to docs/blocks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from benchmarks.pages import write_tables
from benchmarks.sheets import draw_sheet
from benchmarks.town import Town, make_town, render_town, town_cameras, write_town
from tsplat.scene import Capture, Gaussians, read_capture, read_ply
from tsplat.scene.capture.block_plans import BlockPlan, read_plan
from tsplat.scene.images import to_bytes
from tsplat.support.files import write_json
from tsplat.training import Evaluation, evaluate, read_newest

PAGE = Path(__file__).parents[1] / "docs" / "blocks.md"
BAND = 0.4
"""Distance from a border, in world units; a lot is 4 wide."""


def run(log: Path, *words: str, kill_when: Path | None = None) -> float:
    """Runs `tsplat` with output in a file. Returns its peak memory in MB.

    With `kill_when`, kills it as soon as this path exists, and returns -1.
    """
    with log.open("a") as file:
        process = subprocess.Popen([sys.executable, "-m", "tsplat", *words], stdout=file, stderr=subprocess.STDOUT)
        while kill_when is not None and process.poll() is None:
            if kill_when.exists():
                process.send_signal(signal.SIGKILL)
                process.wait()
                return -1
            time.sleep(0.05)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"tsplat {' '.join(words)}: status {process.returncode}; see {log}")
    return usage.ru_maxrss / 1024


def border_distances(plan: BlockPlan, points: Tensor) -> Tensor:
    """Returns the distances on the ground of points [P, 3] to the nearest border between blocks, [P]."""
    places, distances = plan.ground(points), points.new_full(points.shape[:1], torch.inf, dtype=torch.float64)
    for k, block in enumerate(plan.blocks):
        low, high = places.new_tensor(block.low), places.new_tensor(block.high)
        inside = torch.minimum(places - low, high - places).amin(-1)
        distances = torch.where(plan.contains(k, points), inside, distances)
    return distances


def band_masks(plan: BlockPlan, town: Town, capture: Capture) -> list[Tensor]:
    """Returns, for each held-out view, a mask [H, W] of the pixels that show points near a border."""
    masks = []
    for view in capture.test:
        points = render_town(town, view.camera, 1)[1]
        near = border_distances(plan, points.view(-1, 3)) < BAND
        masks.append((near & points.view(-1, 3).isfinite().all(-1)).view(points.shape[:2]))
    return masks


def band_psnr(scores: Evaluation, masks: list[Tensor]) -> float:
    """Returns the PSNR in dB over all pixels of the masks."""
    errors = [(score.image - score.view.pixels)[mask].square() for score, mask in zip(scores, masks, strict=True)]
    return float(-10 * torch.cat(errors).mean().log10())


def draw(path: Path, scores: dict[str, Evaluation], masks: list[Tensor]) -> None:
    """Writes a PNG of the held-out view that shows most of the borders, see :func:`sheet`."""
    i = max(range(len(masks)), key=lambda i: float(masks[i].double().mean()))
    view = scores["whole"][i].view
    marked = torch.where(masks[i][..., None], 0.6 * view.pixels + torch.tensor([0.4, 0.0, 0.0]), view.pixels)
    images = [evaluation[i].image for evaluation in scores.values()]
    errors = [
        (4 * (image - view.pixels).abs().mean(-1, keepdim=True)).clamp(0, 1).expand(-1, -1, 3) for image in images
    ]
    panels = [Image.fromarray(to_bytes(image).numpy()) for image in (view.pixels, *images, marked, *errors)]
    # A palette of 128 colors makes the file a quarter as large.
    sheet(panels).quantize(128).save(path, optimize=True)


def sheet(images: Sequence[Image.Image]) -> Image.Image:
    """Draws six images of a view, with titles, in three columns.

    The first row has the photograph, the one run, and the blocks; the second row has the photograph with pixels near
    borders marked, and the errors of both. Images of at most 160 pixels are enlarged
    to 320.
    """
    names = (
        "photograph", "one run", "blocks",
        "near borders, in red", "error of one run, times 4", "error of blocks, times 4",
    )  # fmt: skip
    cells = ((k % 3, k // 3, name, image) for k, (name, image) in enumerate(zip(names, images, strict=True)))
    return draw_sheet(cells, max(1, 320 // images[0].width))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    sizes = dict(lots=12, views=400, width=160, height=120, points=1_000_000, steps=1400, blocks=9)
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--write", action="store_true", help="write the table to docs/blocks.md")
    options, rest = parser.parse_known_args()
    out, plan, log = options.out, options.out / "plan", options.out / "log.txt"
    town = make_town(options.lots)
    if not (out / "scene" / "points.ply").exists():
        cameras = town_cameras(town, options.views, options.width, options.height)
        write_town(out / "scene", town, cameras, options.points)
    memory: dict[str, float] = json.loads((out / "memory.json").read_text()) if (out / "memory.json").exists() else {}

    def measure(name: str, steps: int, *words: str, kill_when: Path | None = None) -> None:
        if name in memory:
            return
        command = (*words, "--steps", str(steps), "--eval-every", str(steps), "--device", "cpu", *rest)
        if kill_when is not None:
            run(log, *command, kill_when=kill_when)
        memory[name] = run(log, *command)
        write_json(out / "memory.json", memory)

    measure("whole", options.steps, "train", str(out / "scene"), "--out", str(out / "whole"))
    if not (plan / "plan.json").exists():
        run(log, "blocks", "plan", str(out / "scene"), "--out", str(plan), "--blocks", str(options.blocks))
    capture, found = read_capture(out / "scene"), read_plan(plan)
    trained_on = {view.name for view in capture.train}
    views = [len(trained_on.intersection(block.views)) for block in found.blocks]
    steps = [round(options.steps * n / len(trained_on)) for n in views]
    for k, n in enumerate(steps):
        middle = plan / f"block_{k}" / "checkpoints" / "latest" if k == len(steps) // 2 else None
        measure(f"block {k}", n, "blocks", "train", str(plan), str(k), kill_when=middle)
    run(log, "blocks", "merge", str(plan), "--out", str(out / "merged.ply"))

    models: dict[str, Gaussians] = {
        "whole": read_newest(out / "whole")[1].gaussians,
        "blocks": read_ply(out / "merged.ply"),
    }
    masks = band_masks(found, town, capture)
    counts = [len(read_newest(plan / f"block_{k}")[1].gaussians) for k in range(len(steps))]
    scores = {name: evaluate(model, capture.test) for name, model in models.items()}
    draw(out / "comparison.png", scores, masks)
    share = torch.stack(masks).double().mean()
    table = (
        "| | steps | Gaussians of the model | of the largest run | peak memory, MB | PSNR, held out "
        "| PSNR near borders |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    )
    rows = {
        "whole": ("one run", f"{options.steps:,}", len(models["whole"]), memory["whole"]),
        "blocks": (
            f"{len(steps)} blocks",
            f"{min(steps):,} to {max(steps):,}, {sum(steps):,} in all",
            max(counts),
            max(memory[f"block {k}"] for k in range(len(steps))),
        ),
    }
    for name, (title, taken, largest, peak) in rows.items():
        table += (
            f"| {title} | {taken} | {len(models[name]):,} | {largest:,} | {peak:.0f} | {scores[name].psnr:.2f} dB "
            f"| {band_psnr(scores[name], masks):.2f} dB |\n"
        )
    print(
        f"{len(capture.train)} training views, {min(views)} to {max(views)} of a block, {len(capture.points)} points; "
        f"{share:.0%} of pixels near borders"
    )
    print(table)
    if options.write:
        write_tables(PAGE, table)


if __name__ == "__main__":
    main()
