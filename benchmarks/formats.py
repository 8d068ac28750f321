"""Measures sizes and losses of model formats on trained models.

    python -m benchmarks.formats [--models FOLDER] [--splat-transform COMMAND] [--write]

Each model is written in every format and read again. The first table has the size of the file, the CPU time to write
it on one thread, and the PSNR of a rendered view compared with the same view of the original. The second table has the
largest error of each parameter. Models that do not exist are skipped.

`--splat-transform` is the command of PlayCanvas's converter, such as "node cli.mjs", which converts the same models to
compare sizes. `--write` writes the tables to docs/formats.md.
"""

import argparse
import dataclasses
import math
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.pages import write_tables
from tests.support.paths import MODELS
from tests.support.round_trips import LINEAR, angles_between, check_round_trip, file_order
from tsplat.scene import Camera, Gaussians, intrinsics, read_model, write_model
from tsplat.scene.option_types import Format
from tsplat.scene.quantization import levels
from tsplat.viewing import look_at_all, render

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"

WIDTH, HEIGHT, FOV = 320, 240, 50.0
CLUSTERED = 1 << 16
"""Maximum number of Gaussians whose SH coefficients splat-transform clusters without a GPU."""


@dataclasses.dataclass(frozen=True)
class Known:
    """A format of `write_model`: its name in the table, and the ending and options of splat-transform."""

    title: str
    ending: str | None = None
    options: tuple[str, ...] = ()


FORMATS: dict[Format, Known] = {
    "ply": Known("PLY"),
    "compressed-ply": Known("compressed PLY", ".compressed.ply"),
    "splat": Known("`.splat`"),
    "spz": Known("SPZ 3", ".spz", ("--spz-version", "3")),
    "spz4": Known("SPZ 4", ".spz", ("--spz-version", "4")),
    "sog": Known("SOG 2", ".sog", ("-g", "cpu")),
    "streamed-sog": Known("Streamed SOG 1"),
    "glb": Known("glTF, `.glb`"),
    "gltf": Known("glTF, `.gltf`"),
    "usda": Known("OpenUSD, `.usda`"),
    "usdc": Known("OpenUSD, `.usdc`"),
    "usdz": Known("OpenUSD, `.usdz`"),
}
DEGREE_4: tuple[Format, ...] = ("spz4", "usda", "usdc", "usdz")
"""Formats that keep SH coefficients of degree 4."""

ORIGINALS = {
    "kettle": ("kettle.spz", ()),
    "biker": ("biker.compressed.ply", ("biker.spz",)),
    "luma-seal": ("luma-seal.splat", ()),
    "playbot_3": ("playbot_3.sog", ()),
}
"""For each model, the file that is read, and other files of the same model."""
EXTENDED = "kettle"
"""The model that is also measured with coefficients of degree 4."""

SIZES = """| model | Gaussians | SH degree | format | bytes | splat-transform | seconds | PSNR (dB) |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |
"""
ERRORS = """| model | format | means | log scales | rotations (degrees) | opacities | sh0 | shN |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def measure(name: str, gaussians: Gaussians, converter: list[str], folder: Path) -> tuple[str, str]:
    """Returns the rows of a model in both tables."""
    viewmat, _ = look_at_all(gaussians, WIDTH, HEIGHT, FOV)
    target = view(gaussians, viewmat)
    is_known = gaussians.sh_degree < 4  # splat-transform supports it
    if is_known:
        write_model(folder / "original.ply", gaussians)
    sizes = errors = ""
    for format in FORMATS if is_known else DEGREE_4:
        known = FORMATS[format]
        path = folder / f"{name}.{format}"
        if format == "streamed-sog":
            path = path / "lod-meta.json"
        start = time.process_time()
        write_model(path, gaussians, format=format)
        seconds = time.process_time() - start
        found = read_model(path)
        # The check does not support several levels of detail.
        if format not in ("splat", "streamed-sog"):
            check_round_trip(format, gaussians, found)
        is_clustered = format == "sog" and gaussians.sh_degree > 0 and len(gaussians) > CLUSTERED
        theirs = "not run" if is_clustered else converted_size(known, gaussians.sh_degree, converter * is_known, folder)
        mse = float((view(found, viewmat) - target).square().mean())
        psnr = f"{-10 * math.log10(mse):.1f}" if mse else "identical"
        written = file_size(path.parent if format == "streamed-sog" else path)
        head = f"| {name} | {len(gaussians):,} | {gaussians.sh_degree} | {known.title}"
        sizes += f"{head} | {written:,} | {theirs} | {seconds:.1f} | {psnr} |\n"
        errors += f"| {name} | {known.title} | {' | '.join(largest_errors(format, gaussians, found))} |\n"
    return sizes, errors


def degree_4(gaussians: Gaussians) -> Gaussians:
    """Returns a model of degree 3 whose coefficients of degree 4 are its last nine."""
    return dataclasses.replace(gaussians, shN=torch.cat([gaussians.shN, gaussians.shN[:, -9:]], 1))


def view(gaussians: Gaussians, viewmat: Tensor) -> Tensor:
    """Renders a view, clamped to [0, 1]."""
    return render(gaussians, Camera(viewmat, intrinsics(WIDTH, HEIGHT, FOV), WIDTH, HEIGHT)).clamp(0, 1)


def converted_size(format: Known, sh_degree: int, converter: list[str], folder: Path) -> str:
    """Returns the size of the model as splat-transform writes it."""
    if not converter or format.ending is None:
        return ""
    out = folder / f"theirs{format.ending}"
    out.unlink(missing_ok=True)
    # PLY files always have coefficients of degree 3.
    degree = ["--filter-harmonics", str(sh_degree)] if sh_degree < 3 else []
    command = [*converter, "-q", str(folder / "original.ply"), *degree, *format.options, str(out)]
    subprocess.run(command, check=True)
    return f"{out.stat().st_size:,}"


def largest_errors(format: Format, gaussians: Gaussians, found: Gaussians) -> list[str]:
    """Returns the largest error of each parameter in the columns of the table."""
    if format == "splat":
        # The writer sorts Gaussians by the values in the file.
        opacities = levels(gaussians.opacity_logits.double().sigmoid().numpy() * 255).astype(np.uint8)
        scales = gaussians.log_scales.double().exp().numpy().astype(np.float32)
        sizes = np.log(scales.astype(np.float64)).sum(1) + np.log(opacities)
        order = torch.from_numpy(np.argsort(-sizes, kind="stable"))
    elif format == "ply" or format in LINEAR:
        order = torch.arange(len(gaussians))
    else:
        order = file_order("spz" if format == "spz4" else format, gaussians)
    expected = gaussians.map(lambda tensor: tensor[order])
    size = min(expected.shN.shape[1], found.shN.shape[1])
    shN = found.shN[:, :size], expected.shN[:, :size]
    columns = (
        (found.means, expected.means),
        (found.log_scales, expected.log_scales),
        (angles_between(found, expected).rad2deg(), torch.zeros(len(found))),
        (found.opacities, expected.opacities),
        (found.sh0, expected.sh0),
        shN if size or not gaussians.sh_degree else (expected.shN, torch.zeros_like(expected.shN)),
    )
    return [text(float((a - b).abs().max())) if a.numel() else "" for a, b in columns]


def text(error: float) -> str:
    return "0" if error < 1e-12 else f"{error:.2g}"


def tables(models: Path, converter: list[str]) -> str:
    """Returns both tables and the sizes of the files that were read, as Markdown."""
    sizes, errors = SIZES, ERRORS
    files = []
    for name, (original, others) in ORIGINALS.items():
        if not (models / original).exists():
            print(f"{models / original} does not exist")
            continue
        gaussians = read_model(models / original)
        measured = {name: gaussians} | ({f"{name} (degree 4)": degree_4(gaussians)} if name == EXTENDED else {})
        for title, model in measured.items():
            with tempfile.TemporaryDirectory() as folder:
                rows = measure(title, model, converter, Path(folder))
            sizes, errors = sizes + rows[0], errors + rows[1]
            print("".join(rows), flush=True)
        files += [f"`{file}` {file_size(models / file):,}" for file in (original, *others)]
    originals = f"Bytes of the files that were read, and of other files of the same models: {', '.join(files)}."
    return f"### Sizes and views\n\n{sizes}\n{originals}\n\n### Largest errors\n\n{errors}"


def file_size(path: Path) -> int:
    """Returns the size in bytes of a file, or of all files in a folder, recursively."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--splat-transform", default="", metavar="COMMAND", help="command of PlayCanvas's converter")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/formats.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = tables(options.models, shlex.split(options.splat_transform))
    if options.write:
        write_tables(PAGE, found)


if __name__ == "__main__":
    main()
