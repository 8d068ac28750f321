"""Makes the images of README.md: `python -m benchmarks.readme_images --scene SCENE`.

Writes ``docs/training.gif``, the views of a moving camera while a scene is trained, and ``docs/viewer.png``, the viewer
with the trained model.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.support.browser import open_page
from tsplat.scene import Camera, Capture, Gaussians, intrinsics, read_capture
from tsplat.training import Trainer, preset
from tsplat.training.runs.start import initial_gaussians
from tsplat.viewing import render, spiral_at
from tsplat.viewing.run_cameras import complete_framing
from tsplat.viewing.trajectories import cameras_of_views
from tsplat.viewing.videos import write_gif
from tsplat.viewing.viewer import Renderer, Viewer, frame_model

DOCS = Path(__file__).parents[1] / "docs"
FRAMES = 48
WIDTH, HEIGHT = 360, 240
"""Number and size of the frames of the GIF."""

PAGE = (1000, 625)
"""Size of the page with the viewer."""

CLOSE_NOTIFICATION = "document.querySelectorAll('.mantine-Notification-closeButton').forEach(button => button.click())"


def train(capture: Capture, steps: int, cameras: Tensor, K: Tensor) -> tuple[Gaussians, list[Tensor]]:
    """Trains on a scene; returns its Gaussians, and an image [h, w, 3] from each of the cameras [F, 4, 4] on the way.

    The times between images grow, as a scene changes most at first.
    """
    config = preset(steps=steps)
    trainer = Trainer(initial_gaussians(config, capture), capture.train, config)
    moments = (np.linspace(0, 1, len(cameras)) ** 3 * steps).round()
    images = []
    for moment, viewmat in zip(moments, cameras):
        while trainer.step < moment:
            trainer.advance()
        with torch.no_grad():
            images.append(render(trainer.gaussians, Camera(viewmat, K, WIDTH, HEIGHT)))
    return trainer.gaussians, images


def viewer_image(gaussians: Gaussians, capture: Capture) -> Image.Image:
    """Returns a screenshot of the viewer in a web browser."""
    model = frame_model("banana", Renderer(gaussians), cameras_of_views(capture.train, capture.test))
    viewer = Viewer([model], port=18080)
    with open_page(viewer.url, *PAGE) as page:
        time.sleep(20)
        page.evaluate(CLOSE_NOTIFICATION)
        time.sleep(2)
        image = Image.fromarray(page.screenshot()).quantize(256)
    viewer.close()
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scene", type=Path, required=True, help="folder of photographs with cameras")
    parser.add_argument("--downscale", type=int, default=2, help="factor by which photographs are made smaller")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    capture = read_capture(options.scene, downscale=options.downscale, test_every=0)
    framing = complete_framing(
        Gaussians.from_points(capture.points, capture.colors, 0), cameras_of_views(capture.train, capture.test)
    )
    cameras = spiral_at(framing["eye"], framing["target"], framing["up"], FRAMES)
    gaussians, images = train(capture, options.steps, cameras, intrinsics(WIDTH, HEIGHT, framing["fov"]))
    write_gif(DOCS / "training.gif", images, 80)
    viewer_image(gaussians, capture).save(DOCS / "viewer.png")


if __name__ == "__main__":
    main()
