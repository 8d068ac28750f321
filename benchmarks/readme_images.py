"""Creates the images of README.md: `python -m benchmarks.readme_images --scene SCENE`.

Writes ``docs/training.webp``, the views of a moving camera while a scene is trained. The camera moves past some of the
photographs, and looks at a point a little above the one that all photographs look at. ``--models`` also writes
``docs/scenes.jpg``, four models, ``docs/orbit.webp``, an orbit around one of them, ``docs/viewer.jpg``, the viewer with
another, and ``docs/knot.jpg``, the image of the quick start. With ``--run RUN --models``, a run on the same photographs
takes the place of a training, and ``docs/training.webp`` is not written. ``--viewer`` only writes ``docs/viewer.jpg``.
"""

import argparse
import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.support.browser import open_page
from tests.support.markdown import python_blocks
from tests.support.paths import MODELS
from tsplat.scene import Camera, Capture, Gaussians, intrinsics, look_at, open_model, read_capture, write_ply
from tsplat.scene.images import to_bytes
from tsplat.training import Trainer, preset
from tsplat.training.runs.initial_gaussians import initial_gaussians
from tsplat.viewing import first_view, orbit_around, path_along, render, render_frames
from tsplat.viewing.run_cameras import complete_framing, find_cameras
from tsplat.viewing.trajectories import cameras_of_views, choose_camera
from tsplat.viewing.viewer import Viewer, open_viewed

DOCS = Path(__file__).parents[1] / "docs"
FRAMES = 48
WIDTH, HEIGHT = 640, 426
"""Number and size of the frames of the animated image."""

QUALITY = 60
"""Quality of animated WebP, which is a fifth of the size of a GIF, and is not limited to a palette."""

MODELS_SHOWN = {"luma-seal.splat": (0.0, 0.93), "kettle.spz": (0.5, 0.82), "playbot_3.from_sog.ply": (0.0, 0.93)}
"""Models in the image of scenes, the fraction of a turn from which each is shown, and its size relative to the largest
that fits."""

VIEWED = "playbot_3.from_sog.ply"
"""Model in the image of the viewer."""

BANANA = "DSC_0438"
"""Photograph from whose camera the run is shown in the image of scenes."""

VIEWS = ("DSC_0425", "DSC_0426", "DSC_0436", "DSC_0437", "DSC_0438")
"""Photographs of `banana` along which the camera moves, on the side with most photographs."""

LIFT = 0.03
"""How far the camera looks above the point that all photographs look at, as a fraction of its distance."""

FRAME_TIME, LAST_TIME = 80, 1600
"""Milliseconds of each frame, and of the last one of the training, which shows the result."""

CROP, CROP_SCENES = 0.95, 0.9
"""Fields of view relative to that of the photographs, whose corners have few sparse points."""

PAGE = (1280, 800)
"""Size of the page with the viewer."""


def train(capture: Capture, steps: int, cameras: Tensor, K: Tensor) -> tuple[Gaussians, list[Tensor]]:
    """Trains on a scene. Returns the Gaussians, and images [h, w, 3] of successive steps from the cameras [F, 4, 4].

    Intervals between these steps grow, as a model changes most at first; the last image shows the trained model.
    """
    config = preset(steps=steps)
    trainer = Trainer(initial_gaussians(config, capture), capture.train, config)
    moments = (np.linspace(0, 1, len(cameras)) ** 2.5 * steps).round()
    images = []
    for moment, viewmat in zip(moments, cameras):
        while trainer.step < moment:
            trainer.advance()
        with torch.no_grad():
            images.append(render(trainer.gaussians, Camera(viewmat, K, WIDTH, HEIGHT)))
    return trainer.gaussians, images


def path(cameras: Sequence[Camera], views: Sequence[str], target: Sequence[float], up: Sequence[float]) -> Tensor:
    """Returns the cameras of a closed path past the photographs with these names, [F, 4, 4]."""
    along = path_along([choose_camera(cameras, view) for view in views], FRAMES)
    eyes = -(along[:, :3, :3].mT @ along[:, :3, 3:]).squeeze(-1)
    center, upward = np.array(target), np.array(up) / np.linalg.norm(up)
    raised = [center + LIFT * np.linalg.norm(eye - center) * upward for eye in eyes.numpy()]
    return torch.stack([look_at(eye, point.tolist(), up) for eye, point in zip(eyes.tolist(), raised, strict=True)])


def write_animation(path: Path, images: Sequence[Tensor], last: int = FRAME_TIME) -> None:
    """Writes images [h, w, 3] as an animated WebP that repeats, and shows the last one for `last` milliseconds."""
    first, *others = (Image.fromarray(to_bytes(image).numpy()) for image in images)
    durations = [*(FRAME_TIME for _ in others), last]
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0, quality=QUALITY, method=6)


def model_cameras(gaussians: Gaussians, turns: Sequence[float]) -> list[Camera]:
    """Returns cameras that show a whole model, rotated around it by fractions of a turn."""
    start = first_view(gaussians)
    camera = start.camera(640, 480)
    viewmats = orbit_around(start.eye, start.target, start.up, FRAMES)
    return [dataclasses.replace(camera, viewmat=viewmats[round(turn * FRAMES)]) for turn in turns]


def photographed(gaussians: Gaussians, cameras: Sequence[Camera]) -> Image.Image:
    """Renders a run on `banana` from the position of a photograph, in the aspect ratio of the image of scenes."""
    framing = complete_framing(gaussians, cameras)
    viewmat = look_at(choose_camera(cameras, BANANA).position.tolist(), framing["target"], framing["up"])
    with torch.no_grad():
        image = render(gaussians, Camera(viewmat, intrinsics(640, 480, CROP_SCENES * framing["fov"]), 640, 480))
    return Image.fromarray(to_bytes(image).numpy())


def write_models(banana: Image.Image) -> None:
    """Writes the image of four scenes, the first of which is `banana`, and the orbit around the seal."""
    sheet = Image.new("RGB", (2 * 640, 2 * 480))
    sheet.paste(banana, (0, 0))
    for place, (name, (turn, size)) in zip(((640, 0), (0, 480), (640, 480)), MODELS_SHOWN.items(), strict=True):
        gaussians = open_model(MODELS / name)
        with torch.no_grad():
            (camera,) = model_cameras(gaussians, [turn])
            zoom = torch.tensor([size, size, 1.0])[:, None]  # of the focal lengths; the center stays
            K = torch.cat([zoom * camera.K[:, :2], camera.K[:, 2:]], 1)
            image = render(gaussians, dataclasses.replace(camera, K=K))
        sheet.paste(Image.fromarray(to_bytes(image).numpy()), place)
    sheet.save(DOCS / "scenes.jpg", quality=88)
    seal = open_model(MODELS / "luma-seal.splat")
    cameras = model_cameras(seal, [i / FRAMES for i in range(FRAMES)])
    write_animation(DOCS / "orbit.webp", list(render_frames(seal, cameras)))
    write_viewer()
    write_quick_start()


def write_quick_start() -> None:
    """Writes the image that the code of README.md saves, at three quarters of its size."""
    (code,) = python_blocks(DOCS.parent / "README.md")  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        torch.manual_seed(0)
        exec(code, {})
        with Image.open("image.png") as image:
            image.resize((480, 360), Image.Resampling.LANCZOS).save(DOCS / "knot.jpg", quality=88)


def write_viewer() -> None:
    """Writes a screenshot of the viewer in a web browser with one of the models."""
    model = open_viewed(MODELS / VIEWED, torch.device("cpu"), warn=print)
    viewer = Viewer([model], port=18080, open_model=lambda path, warn: model)
    model.warm_up()
    with open_page(viewer.url, *PAGE) as page:
        time.sleep(20)
        Image.fromarray(page.screenshot()).save(DOCS / "viewer.jpg", quality=90)
    viewer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--scene", type=Path, help="folder of photographs with cameras")
    source.add_argument("--run", type=Path, help="run that the image of scenes shows")
    source.add_argument("--viewer", action="store_true", help="write only the picture of the viewer")
    parser.add_argument("--downscale", type=int, default=1, help="factor by which photographs are made smaller")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--views", nargs="+", default=VIEWS, help="photographs along which the camera moves")
    parser.add_argument("--models", action="store_true", help="write the pictures of several models, too")
    parser.add_argument("--out", type=Path, help="PLY file for the trained model")
    options = parser.parse_args()
    if options.viewer:
        write_viewer()
        return
    if options.run is not None:
        if not options.models:
            parser.error("--run: only with --models")
        write_models(photographed(open_model(options.run), find_cameras(options.run)))
        return
    capture = read_capture(options.scene, downscale=options.downscale, test_every=0)
    cameras = cameras_of_views(capture.train, capture.test)
    framing = complete_framing(Gaussians.from_points(capture.points, capture.colors, 0), cameras)
    viewmats = path(cameras, options.views, framing["target"], framing["up"])
    K = intrinsics(WIDTH, HEIGHT, CROP * framing["fov"])
    gaussians, images = train(capture, options.steps, viewmats, K)
    write_animation(DOCS / "training.webp", images, LAST_TIME)
    if options.out is not None:
        write_ply(options.out, gaussians)
    if options.models:
        write_models(photographed(gaussians, cameras))


if __name__ == "__main__":
    main()
