"""Writes and reads random models in every format: `python -m tests.tools.round_trips --count 500`.

Models have 0 to 10,000 Gaussians with SH degree 0 to 4 at any position and scale, some with extreme values. Each model
is written in its local frame and in the frame of a scene in UTM, Swiss (LV95) or geocentric (ECEF) coordinates. Errors
must be within the writers' documented tolerances.
"""

import argparse
import collections
import importlib.util
import itertools
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch

from tests.support.forked_usd import forked_usd
from tests.support.round_trips import RoundTripError, check_round_trip
from tsplat.errors import ArgumentError
from tsplat.scene import Gaussians, Georeference, read_georeference, read_model, set_sh_degree, write_model
from tsplat.scene.formats.models import ABSOLUTE
from tsplat.scene.formats.spz_writer import POSITION_MAX
from tsplat.scene.option_types import FRAMES, ModelFrame
from tsplat.scene.rotation import axis_rotations, similarity

DEGREES_MAX = {
    "ply": 3,
    "compressed-ply": 3,
    "splat": 0,
    "spz": 3,
    "spz4": 4,
    "sog": 3,
    "streamed-sog": 3,
    "glb": 3,
    "gltf": 3,
}
DEGREES_MAX |= dict.fromkeys(("usda", "usdc", "usdz"), 4) if importlib.util.find_spec("pxr") else {}
"""Format -> maximum SH degree. Higher degrees of a model are not written."""

ORIGINS = (
    (448_256.0, 5_411_840.0, 304.0),
    (2_600_123.4567, 1_200_234.5678, 543.2109),
    (4_278_990.123, 642_567.891, 4_670_543.219),
)
"""Origins of models in UTM, LV95 and ECEF coordinates."""

EDGES = (0, 1, 2, 3, 255, 256, 257, 10_000)

Rng = np.random.Generator


def random_model(rng: Rng, degree_max: int = 3) -> Gaussians:
    """Returns a random model. In a quarter of the models, the number of Gaussians is one of `EDGES`."""
    count = int(rng.choice(EDGES)) if rng.random() < 0.25 else round(10_001 ** float(rng.random())) - 1
    degree = int(rng.integers(degree_max + 1))
    means = rng.normal(size=(count, 3)) * 10 ** rng.uniform(-3, 3) + rng.normal(size=3) * 10 ** rng.uniform(-3, 3)
    shape = (count, (degree + 1) ** 2 - 1, 3)
    arrays = {
        "means": means,
        "log_scales": rng.normal(size=(count, 3)) * rng.uniform(0, 3) + rng.uniform(-9, 3),
        "quats": rng.normal(size=(count, 4)) * 10 ** rng.uniform(-3, 3),
        "opacity_logits": rng.normal(size=count) * rng.uniform(0, 6),
        "sh0": rng.normal(size=(count, 1, 3)) * rng.uniform(0, 2),
        "shN": rng.normal(size=shape) * rng.uniform(0, 0.5),
    }
    if rng.random() < 0.5:
        for change in rng.choice(CHANGES, int(rng.integers(1, 4))):
            change(rng, arrays)
    tensors = {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}
    return Gaussians(**tensors, antialiased=bool(rng.integers(2)))


def _some(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Returns a random mask of about a tenth of the values, [N, ...]."""
    return rng.random(array.shape) < 0.1


def infinite(rng, arrays):
    for name in ("log_scales", "opacity_logits"):
        array = arrays[name]
        array[_some(rng, array)] = rng.choice([-np.inf, np.inf])


def outliers(rng, arrays):
    for name in ("log_scales", "sh0", "shN"):
        array = arrays[name]
        array[_some(rng, array)] *= 10 ** rng.uniform(0, 6)


def distant(rng, arrays):
    means = arrays["means"]
    means[_some(rng, means)] *= 10 ** rng.uniform(0, 8)


def unusual_rotations(rng, arrays):
    quats = arrays["quats"]
    quats[_some(rng, quats)] = 0
    quats[_some(rng, quats[:, 0])] *= 10 ** rng.uniform(-12, 12)
    quats[_some(rng, quats[:, 0])] = 0.5
    quats[_some(rng, quats[:, 0])] = [0, 0, -1, 0]
    quats[np.linalg.norm(quats.astype(np.float32), axis=1) < 1e-11] = [3, 0, 0, 0]  # only PLY can store zeros


def constant(rng, arrays):
    for array in arrays.values():
        if rng.random() < 0.5:
            array[:] = array[:1]


def repeated(rng, arrays):
    count = len(arrays["means"])
    if count:
        ids = rng.integers(1 + count // 10, size=count)
        for array in arrays.values():
            array[:] = array[ids]


CHANGES = (infinite, outliers, distant, unusual_rotations, constant, repeated)


def random_georeference(rng: Rng) -> Georeference:
    """Returns a random georeference. Half of the models have the axes and the unit of their scene's files."""
    origin = torch.tensor(ORIGINS[int(rng.integers(len(ORIGINS)))], dtype=torch.float64)
    rotation, unit = similarity()[:3, :3], 1.0
    if rng.random() < 0.5:
        rotation, unit = axis_rotations(rng.uniform(-180, 180, 3).tolist()), 10 ** float(rng.uniform(-2, 2))
    return Georeference(similarity(rotation, (-unit * rotation @ origin).tolist(), unit))


def check(path: Path, format: str, gaussians: Gaussians, georeference: Georeference, frame: ModelFrame) -> str:
    """Writes and reads a model. Returns "within the tolerances", or "rejected" if SPZ cannot represent the
    positions."""
    gaussians = set_sh_degree(gaussians, min(gaussians.sh_degree, DEGREES_MAX[format]))
    shifted = georeference.shift(gaussians) if frame == "files" else gaussians
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rounded positions and origins
        try:
            write_model(path, gaussians, format=format, georeference=georeference, frame=frame)
        except ArgumentError:
            if format.startswith("spz") and float(shifted.means.abs().max()) >= POSITION_MAX:
                return "rejected"
            raise
        found, found_georeference = read_model(path), read_georeference(path)
    expected = georeference.shifted() if frame == "files" else georeference
    if found_georeference is None or not torch.equal(found_georeference.world, expected.world):
        raise RoundTripError(f"{format}: wrote the georeference {expected}, read {found_georeference}")
    is_absolute = frame == "files" and format in ABSOLUTE
    check_round_trip(format, shifted, found, expected.origin if is_absolute else ())
    return "within the tolerances"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="number of models (500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", nargs="+", choices=DEGREES_MAX, default=DEGREES_MAX, help="formats (all)")
    options = parser.parse_args(arguments)
    outcomes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, forked_usd():
        for seed in range(options.seed, options.seed + options.count):
            rng = np.random.default_rng(seed)
            gaussians, georeference = random_model(rng, 4), random_georeference(rng)
            for format, frame in itertools.product(options.formats, FRAMES):
                path, what = Path(folder) / (f"a.{format}" if format == "splat" else format), f"{format}, {frame}"
                try:
                    outcomes[f"{what}: {check(path, format, gaussians, georeference, frame)}"] += 1
                except Exception:
                    outcomes[f"{what}: failed"] += 1
                    print(f"seed {seed}, {len(gaussians)} Gaussians, {what}:\n{traceback.format_exc()}", flush=True)
    print("\n".join(f"{outcomes[name]:6} {name}" for name in sorted(outcomes)))
    return int(any(name.endswith("failed") for name in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
