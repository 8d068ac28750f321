"""Compares exported pages in Chromium with tsplat's images: `python -m benchmarks.exported_pages MODEL ...`.

For each model or run, it prints the PSNR and the largest difference of the means of red, green and blue, from three
cameras: the start view of the page, one at half the distance that is turned by 40 degrees, and one on the other side.
"""

import argparse
import dataclasses
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.browser import open_page
from tests.support.waiting import wait_for
from tsplat.scene import open_model
from tsplat.scene.cameras import centers
from tsplat.viewing import StartView, first_view, orbit_around, render_frames, write_page
from tsplat.viewing.run_cameras import find_background, find_cameras

WIDTH, HEIGHT = 640, 480
TURNS = ((0, 1.0), (40, 0.5), (180, 1.0))
"""Degrees around the target, and distances relative to that of the first camera."""

SECONDS = 60
"""Maximum seconds until the page shows its final image, which is when two screenshots are equal."""


def start_views(first: StartView) -> Iterator[StartView]:
    """Yields the start view, and the other views around its target."""
    eyes = centers(orbit_around(first.eye, first.target, first.up, 360)).tolist()
    for degrees, distance in TURNS:
        eye = [t + distance * (e - t) for e, t in zip(eyes[degrees], first.target, strict=True)]
        yield dataclasses.replace(first, eye=eye)


def shown(path: Path) -> NDArray[np.float64]:
    """Returns a screenshot [h, w, 3] of a page in a browser, without its controls."""
    with open_page(path.as_uri(), WIDTH, HEIGHT) as page:
        wait_for(lambda: page.evaluate("document.documentElement.dataset.loaded") is not None, 120, every=0.5)
        page.evaluate("document.querySelector('.sse-ui').style.display = 'none'")
        image, end = page.screenshot(), time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(2)
            last, image = image, page.screenshot()
            if np.array_equal(last, image):
                break
    found: NDArray[np.float64] = image.astype(float)
    return found


def compare(model: Path, folder: Path) -> None:
    """Prints how the pages of a model differ from tsplat's images."""
    gaussians, background = open_model(model), find_background(model) or (0.0, 0.0, 0.0)
    for start, (degrees, _) in zip(start_views(first_view(gaussians, find_cameras(model))), TURNS, strict=True):
        path = folder / "page.html"
        write_page(path, gaussians, start, background=background)
        (frame,) = render_frames(gaussians, [start.camera(WIDTH, HEIGHT)], background=background)
        difference = shown(path) - (frame * 255).round().numpy()
        psnr = 10 * math.log10(255**2 / max(float((difference**2).mean()), 1e-3))
        mean = float(np.abs(difference.mean((0, 1))).max())
        print(
            f"{model.name}, {len(gaussians):,} Gaussians, {degrees}°: {psnr:.1f} dB, means {mean:.2f} of 255",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", type=Path, nargs="+")
    with tempfile.TemporaryDirectory() as folder:
        for model in parser.parse_args().models:
            compare(model, Path(folder))


if __name__ == "__main__":
    main()
