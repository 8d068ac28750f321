"""Measures the viewer: the time until it prints its address, and until images arrive after the camera stops.

    python -m benchmarks.viewer [--model FILE] [--copies N] [--size WIDTH HEIGHT] [--repeat N]

A client without a browser moves the camera on an orbit, 50 times a second, stops, and waits for the image at rest.
`--copies 20` shows 20 copies of the model side by side, and also compares images of the largest Gaussians with images
of all. If other programs use the same cores, `chrt --fifo 10 python -m benchmarks.viewer` gives the viewer priority.
Do not set OMP_NUM_THREADS.
"""

import argparse
import contextlib
import dataclasses
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.support.paths import MODELS
from tests.support.viewer_client import ViewerClient, decode
from tsplat.scene import open_model, write_ply
from tsplat.scene.cameras import centers
from tsplat.scene.gaussians import concatenate
from tsplat.viewing import orbit_around
from tsplat.viewing.viewer import Pose, Settings, ViewedModel, open_viewed
from tsplat.viewing.viewer.renderer import LARGE

STEPS, RATE, DEGREES = 50, 50, 1.0
"""Number of movements of the camera, movements per second, and degrees of each."""


@contextlib.contextmanager
def serve(model: Path) -> Iterator[tuple[str, float]]:
    """Context manager that runs ``tsplat view``; yields its address, and the seconds until it printed it."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "tsplat", "view", str(model), "--port", "18080"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if address := re.search(r"at (http://\S+)$", line):
                    yield address[1], time.perf_counter() - start
                    return
            raise RuntimeError(f"tsplat view ended: {' '.join(command)}")
        finally:
            process.kill()


def measure_stop(client: ViewerClient, model: ViewedModel, viewmats: torch.Tensor) -> dict[str, Any]:
    """Moves along cameras and stops. Returns seconds from the last movement to images, and widths of moving ones."""
    n_images, fov = len(client.images), math.radians(model.fov)
    for position in centers(viewmats).tolist():
        last = client.move(position, model.target, model.up, fov)
        client.receive(1 / RATE)
    _, lossless = client.wait_for_rest(last)
    images = client.images[n_images:]
    widths = [decode(content).shape[1] for _, _, content in images]
    # The image before the last one has the same camera, unless it is smaller.
    first = next(i for i in (len(images) - 2, len(images) - 1) if widths[i] == widths[-1])
    return {"full": images[first][0] - last, "lossless": lossless - last, "moving": widths[:-1]}


def psnr_while_moving(model: ViewedModel, viewmat: torch.Tensor, size: tuple[int, int], divisor: int) -> float:
    """Returns the PSNR in dB of a JPEG, enlarged to the size of the canvas, against the image at rest."""
    from viser._image_encoding import cv2_imencode_with_fallback

    from tsplat.viewing.viewer.session import JPEG_QUALITY

    pose = Pose(viewmat, math.radians(model.fov), *size)
    full, small = (model.renderer.render(pose, Settings(), divisor_min=d).image for d in (1, divisor))
    jpeg = decode(cv2_imencode_with_fallback("jpeg", small, JPEG_QUALITY, channel_ordering="rgb"))
    enlarged = np.array(Image.fromarray(jpeg).resize(size, Image.Resampling.BILINEAR))
    return psnr(enlarged.astype(float) - full)


def copies(model: Path, n: int, folder: Path) -> Path:
    """Writes n copies of a model side by side, in rows of five along the world's x and z axes."""
    gaussians = open_model(model)
    low, high = (gaussians.means.double().quantile(q, 0).float() for q in (0.01, 0.99))
    steps = 1.05 * (high - low)
    places = [torch.tensor([i % 5, 0, i // 5]) * steps for i in range(n)]
    parts = [dataclasses.replace(gaussians, means=gaussians.means + place) for place in places]
    path = folder / f"{n}_{model.name}"
    write_ply(path, concatenate(parts))
    return path


def compare_largest(model: ViewedModel, viewmats: torch.Tensor, size: tuple[int, int]) -> None:
    """Compares images of the largest Gaussians with images of all along a slow path, and their changes over time."""
    renderer, settings = model.renderer, Settings(near=model.near)
    poses = [Pose(viewmat, math.radians(model.fov), *size) for viewmat in viewmats]
    everything = [renderer.render(pose, settings).image.astype(float) for pose in poses]
    for factor in (1, 2):
        n = factor * LARGE
        renderer._number = lambda *_, n=n: n  # type: ignore[method-assign]
        images = [renderer.render(pose, settings, seconds=60.0).image.astype(float) for pose in poses]
        pairs = list(zip(images, everything, strict=True))
        steps = [[b - a for a, b in itertools.pairwise(sequence)] for sequence in (images, everything)]
        jumps = [a - b for a, b in zip(*steps, strict=True)]
        print(
            f"{n:,} largest Gaussians: PSNR at least {min(psnr(a - b) for a, b in pairs):.1f} dB; consecutive images: "
            f"{min(map(psnr, steps[0])):.1f} dB, of all Gaussians {min(map(psnr, steps[1])):.1f} dB, difference of "
            f"both changes {min(map(psnr, jumps)):.1f} dB"
        )


def psnr(difference: NDArray[np.float64]) -> float:
    """Returns the PSNR in dB of a difference of images in [0, 255]."""
    return 10 * math.log10(255**2 / max(float((difference**2).mean()), 1e-10))


def main() -> None:
    """Prints the measurements, and the load of the machine before and after."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=MODELS / "kettle.from_spz.ply")
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480))
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--copies", type=int, default=1)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    folder = tempfile.TemporaryDirectory()
    if arguments.copies > 1:
        arguments.model = copies(arguments.model, arguments.copies, Path(folder.name))
    startups = []
    for _ in range(5 if arguments.copies == 1 else 1):
        with serve(arguments.model) as (_, seconds):
            startups.append(seconds)
    model = open_viewed(arguments.model, torch.device("cpu"), warn=print)
    cameras = orbit_around(model.eye, model.target, model.up, round(360 / DEGREES))
    with serve(arguments.model) as (url, seconds):
        time.sleep(3)  # the page of a browser takes longer
        client = ViewerClient(url, *arguments.size)
        start = client.move(model.eye, model.target, model.up, math.radians(model.fov))
        first = client.wait_for_rest(start)[1] - start
        stops = [
            measure_stop(client, model, cameras.roll(-STEPS * i, 0)[: STEPS + i % 5]) for i in range(arguments.repeat)
        ]
        client.close()
    widths = [width for stop in stops for width in stop["moving"]]
    share = sum(width == arguments.size[0] for width in widths) / max(len(widths), 1)
    print(f"{arguments.model.name}, {len(model.gaussians):,} Gaussians, {arguments.size[0]}×{arguments.size[1]}")
    print(f"address printed: median {median(startups):.2f} s, max {max(startups):.2f} s")
    print(f"first image at rest: {first:.2f} s")
    for name, title in (("full", "full size"), ("lossless", "lossless")):
        values = [stop[name] for stop in stops]
        print(f"last movement to {title}: median {median(values):.3f} s, max {max(values):.3f} s")
    rate = len(widths) / (len(stops) * STEPS / RATE)
    print(f"while moving: {rate:.0f} images a second, {100 * share:.0f} % of them at full size")
    for divisor in (1, 2, 3):
        found = psnr_while_moving(model, cameras[0], arguments.size, divisor)
        print(f"PSNR while moving at 1/{divisor} of the size: {found:.1f} dB")
    if len(model.gaussians) > LARGE:
        half_degrees = orbit_around(model.eye, model.target, model.up, 720)
        compare_largest(model, half_degrees[:5], (arguments.size[0], arguments.size[1]))
    folder.cleanup()
    print(f"{os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
