"""Trains two scenes that are translated, rotated, scaled, or extended by distant cameras and points. Compares the PSNR.

    python -m tests.tools.scene_transforms [--steps 100] [--seeds 3]

If a transform does not change the local frame, the metrics must be bit-exact. Otherwise, the mean PSNR of the held-out
views over all seeds must be within 0.3 dB of that of the original scene. The tool prints a line for each transform and
exits with 1 if a result differs.
"""

import argparse
import contextlib
import dataclasses
import io
import math
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.room import room_capture
from tests.support.moved_scenes import write_moved
from tsplat.scene import Capture, procedural_capture
from tsplat.scene.rotation import axis_rotations
from tsplat.training import preset, train

TURN = axis_rotations((20.0, -65.0, 110.0)).numpy()
TRANSFORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "lengths / 1024": (dict(unit=2.0**-10), True),
    "lengths * 8192": (dict(unit=2.0**13), True),
    "moved by 2^20 units": (dict(offset=(2.0**20, -(2.0**19), 2.0**10)), True),
    "lengths * 16, moved": (dict(unit=16.0, offset=(2.0**22, 2.0**12, -(2.0**21))), True),
    "lengths * 0.001": (dict(unit=1e-3), False),
    "lengths * 10000": (dict(unit=1e4), False),
    "UTM": (dict(offset=(447_000.3, 4_412_000.7, 120.1)), False),
    "ECEF, turned": (dict(offset=(3.9e6, 0.8e6, 5.0e6), rotation=TURN), False),
    "turned, lengths * 37": (dict(unit=37.0, rotation=TURN), False),
    "a camera at 300": (dict(cameras=(300.0,)), True),
    "3 cameras at 40 to 1e5, UTM": (dict(offset=(447_000.3, 4_412_000.7, 120.1), cameras=(40.0, 1e3, 1e5)), False),
    "3 points at 50 to 1e6": (dict(far_points=(50.0, 1e4, 1e6)), False),
}
"""Name -> how the scene is written, and whether its local frame remains the same."""


def captures() -> dict[str, Capture]:
    return {
        "object": procedural_capture(64, 48, 20, 1, 500, seed=3),
        "room": room_capture(64, 48, n_train=20, n_test=1, n_points=500),
    }


def scores(capture: Capture, folder: Path, steps: int, seed: int, **changes: Any) -> dict[str, float]:
    """Returns the PSNR of the held-out views of a run by name."""
    scene = write_moved(folder / "scene", capture.train, capture.points, capture.colors, **changes)
    settings = dict(scene=scene, seed=seed, device="cpu", background=capture.background)
    config = dataclasses.replace(preset("standard", steps), **settings)
    with contextlib.redirect_stdout(io.StringIO()):
        metrics = train(config, folder / "run")
    return {view["name"]: view["psnr"] for view in metrics["views"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    worst, n_wrong = 0.0, 0
    for scene, capture in captures().items():
        plain: list[dict[str, float]] = []
        for name, (changes, is_equal) in {"untouched": ({}, True), **TRANSFORMS}.items():
            found, expected = [], []
            for seed in range(1 if is_equal and plain else options.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    views = scores(capture, Path(folder), options.steps, seed, **changes)
                if name == "untouched":
                    plain.append(views)
                found.append([*views.values()])
                expected.append([*plain[seed].values()])
            difference = mean(map(mean, found)) - mean(map(mean, expected))
            is_right = found == expected if is_equal else abs(difference) <= 0.3 and math.isfinite(difference)
            n_wrong += not is_right
            worst = max(worst, abs(difference))
            psnr = mean(map(mean, found))
            how = "equal bits" if found == expected else f"{difference:+.3f} dB"
            print(f"{scene:8} {name:30} {psnr:6.2f} dB  {how}{'' if is_right else '  WRONG'}", flush=True)
    print(f"{n_wrong} of {2 * len(TRANSFORMS)} transforms are wrong; the largest difference is {worst:.3f} dB")
    return min(n_wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
