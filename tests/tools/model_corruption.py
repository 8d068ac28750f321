"""Reads randomly damaged models: `python -m tests.tools.model_corruption spz --count 2000`.

A reader must reject a damaged model with a typed error that names its file, or return what the file still contains. It
may take 5 seconds and allocate twice the file's size plus 200 MB. If the format has checksums, the reader must return
the intact model or an error. `tests.tools.corruption` has more kinds of damage for PLY files and checkpoints.

OpenUSD files are read in forked processes within the memory limit of docs/decisions/0032. The tool prints the exit
statuses of these processes (negative numbers are signals) and their peak memory.
"""

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.support.forked_usd import forked_usd
from tests.support.ksplat_files import ksplat_bytes
from tests.support.lcc_files import lcc_files, write_lcc2
from tests.support.model_files import (
    compressed_ply_bytes,
    ply_bytes,
    ply_names,
    random_gaussians,
    sog_files,
    spz_bytes,
    write_folder,
    write_zip,
)
from tests.support.rad_files import COMPACT, PLAIN, rad_files
from tests.support.training_scenes import make_checkpoint
from tests.tools.corruption import checkpoint_bytes
from tests.tools.damage import Damage, DamagedFiles, inside, run, truncated
from tsplat.scene import Gaussians, open_model, write_model, write_splat
from tsplat.scene.formats.png_images import PARAMETERS, write_png_images
from tsplat.scene.formats.streaming.streamed_sog_writer import write_streamed_sog
from tsplat.training import write_checkpoint

N = 300
"""Gaussians in a model."""

RECORD_MIN = 14
"""Minimum size of a Gaussian in bytes, in all formats without compression."""


def _ply(encoding: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        names = [*ply_names(1, normals=True), "filter_3D"]
        values = np.random.default_rng(0).normal(size=(N, len(names))).astype(np.float32)
        values[:, -1] = abs(values[:, -1])
        return _written(folder / "a.ply", ply_bytes(names, values, encoding))

    return write


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _written_by_us(path: Path) -> Path:
    write_model(path, random_gaussians(N, 2, antialiased=True))
    return path


def _streamed_sog(folder: Path) -> Path:
    write_streamed_sog(folder / "a", random_gaussians(N, 1), n_levels=3)
    return folder / "a"


def _splat(folder: Path) -> Path:
    write_splat(folder / "a.splat", random_gaussians(N))
    return folder / "a.splat"


def _spz(version: int, raw: bool = False) -> Callable[[Path], Path]:
    extension = bytes.fromhex("0300bead0400000006000000")  # right, down, forward
    content = spz_bytes(random_gaussians(N, 2), version, flags=3, raw=raw, extensions=extension)
    return lambda folder: _written(folder / "a.spz", content)


def _png_images(folder: Path) -> Path:
    g = random_gaussians(289, 1)
    write_png_images(folder / "a", {name: getattr(g, field) for name, field in PARAMETERS.items()})
    return folder / "a"


def _rad(folder: Path, encodings: dict[str, str], **options: object) -> Path:
    write_folder(folder / "a", rad_files(random_gaussians(N, 2), encodings, 128, **options))
    return folder / "a" / "a.rad"


def _inria(folder: Path) -> Path:
    g = random_gaussians(N, 3)
    tensors = [torch.nn.Parameter(t) for t in (g.means, g.sh0, g.shN, g.log_scales, g.quats, g.opacity_logits[:, None])]
    state = {"state": {0: {"exp_avg": torch.zeros(N, 3)}}, "param_groups": [{"lr": 0.1}]}
    model = (3, *tensors, torch.zeros(N), torch.zeros(N, 1), torch.zeros(N, 1), state, 2.5)
    torch.save((model, 30_000), folder / "a.pth")
    return folder / "a.pth"


def _gsplat(zipped: bool) -> Callable[[Path], Path]:
    return lambda folder: _written(folder / "a.pt", checkpoint_bytes(np.random.default_rng(0), N, zipped))


def _checkpoint(folder: Path) -> Path:
    write_checkpoint(folder / "run" / "checkpoints", make_checkpoint(7, N))
    return folder / "run"


FORMATS: dict[str, tuple[Callable[[Path], Path], bool]] = {
    "ply_binary": (_ply("binary_little_endian"), False),
    "ply_big_endian": (_ply("binary_big_endian"), False),
    "ply_ascii": (_ply("ascii"), False),
    "compressed_ply": (
        lambda folder: _written(folder / "a.ply", compressed_ply_bytes(np.random.default_rng(0), N, 2)),
        False,
    ),
    "splat": (_splat, False),
    "spz_2": (lambda folder: _spz(2)(folder), True),
    "spz_3": (lambda folder: _spz(3)(folder), True),
    "spz_raw": (lambda folder: _spz(3, raw=True)(folder), False),
    "spz_4": (lambda folder: _spz(4)(folder), False),
    "sog": (lambda folder: write_zip(folder / "a.sog", sog_files()[0]), True),
    "streamed_sog": (_streamed_sog, False),
    "glb": (lambda folder: _written_by_us(folder / "a.glb"), False),
    "gltf": (lambda folder: _written_by_us(folder / "a.gltf"), False),
    "usda": (lambda folder: _written_by_us(folder / "a.usda"), False),
    "usdc": (lambda folder: _written_by_us(folder / "a.usdc"), False),
    "usdz": (lambda folder: _written_by_us(folder / "a.usdz"), False),
    "sog_folder": (lambda folder: write_folder(folder / "a", sog_files()[0]), False),
    "png_images": (_png_images, False),
    "gsplat": (_gsplat(zipped=True), True),
    "gsplat_legacy": (_gsplat(zipped=False), False),
    "inria": (_inria, True),
    "ksplat_0": (lambda folder: _written(folder / "a.ksplat", ksplat_bytes(random_gaussians(N, 2), 0, (2, 0))), False),
    "ksplat_2": (lambda folder: _written(folder / "a.ksplat", ksplat_bytes(random_gaussians(N, 2), 2, (1, 2))), False),
    "lcc": (lambda folder: write_folder(folder / "a", lcc_files(random_gaussians(N, 3), around=9)), False),
    "lcc2": (lambda folder: write_lcc2(folder / "a", random_gaussians(N, 1), around=9).parent, False),
    "rad": (lambda folder: _rad(folder, COMPACT, palette=9, tree=True), False),
    "rad_plain": (lambda folder: _rad(folder, PLAIN), False),
    "checkpoint": (_checkpoint, True),
}
"""Name -> function that writes a model to a folder and returns its path, and whether the format has checksums."""


class Model(DamagedFiles):
    """A model with damaged files, and its intact Gaussians."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(exist_ok=True)
        self.kind = kind
        write, self.has_checksums = FORMATS[kind]
        path = write(folder)
        # Copied, because the tensors of a checkpoint are mapped to its file.
        self.intact = open_model(path, warn=str).map(torch.clone)
        super().__init__(path, filter(Path.is_file, path.rglob("*")) if path.is_dir() else [path])

    def read(self) -> Gaussians:
        return open_model(self.path, warn=str)

    def problem(self, found: Gaussians, damaged: bytes, damage: Damage) -> str | None:
        if self.has_checksums and damage is not inside:
            return None if _equal(found, self.intact) else "silently read as another model"
        if len(found) > max(self.size, len(damaged)) / RECORD_MIN:
            return f"{len(found)} Gaussians in {len(damaged)} bytes"
        if damage is not truncated:
            return None
        if self.kind == "splat":
            start = self.intact.map(lambda tensor: tensor[: len(found)])
            return None if _equal(found, start) else "the start of the file is not the start of the model"
        if self.kind == "ply_ascii" and len(found) == len(self.intact):
            # A reader cannot detect missing digits at the end of the last number.
            one, other = (gaussians.map(lambda tensor: tensor[:-1]) for gaussians in (found, self.intact))
            return None if _equal(one, other) else "rows before the last one differ"
        return None if _equal(found, self.intact) else "a truncated file was read"


def _equal(one: Gaussians, other: Gaussians) -> bool:
    return one.antialiased == other.antialiased and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
        for a, b in zip(one.tensors().values(), other.tensors().values())
    )


if __name__ == "__main__":
    with forked_usd() as statuses:
        status = run(__doc__ or "", Model, FORMATS)
    if statuses:
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
        print(f"exit statuses of USD's processes: {dict(statuses)}; largest memory {peak:.0f} MB")
    raise SystemExit(status)
