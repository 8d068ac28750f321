"""Displays in notebooks."""

import dataclasses
import html
import io

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.training_scenes import make_gaussians, make_views
from tsplat import ShapeError
from tsplat.scene import Camera, Capture, View, write_ply
from tsplat.training import Config, Trainer
from tsplat.viewing import show

GAUSSIANS = make_gaussians(sh_degree=1)


def pixels(png):
    return np.array(Image.open(io.BytesIO(png)))


def test_show_of_an_image_is_a_png():
    image = torch.rand(5, 7, 3)
    shown = show(image[None])
    assert repr(shown) == "Display(image, 7×5)" and shown._repr_html_() is None
    assert np.abs(pixels(shown._repr_png_()) - 255 * image.numpy()).max() <= 0.51
    assert (pixels(show((255 * image).byte())._repr_png_()) == (255 * image).byte().numpy()).all()


@pytest.mark.parametrize("size", [(2, 5, 7, 3), (5, 7), (5, 7, 4)])
def test_show_of_other_shapes_is_an_error(size):
    with pytest.raises(ShapeError, match=r"\[H, W, 3\]"):
        show(torch.rand(size))


def test_show_of_a_model_is_its_page_in_a_frame(tmp_path):
    write_ply(tmp_path / "model.ply", GAUSSIANS)
    for given in (GAUSSIANS, tmp_path / "model.ply"):
        shown = show(given, width=64, height=48)
        frame = shown._repr_html_()
        assert frame.count("<iframe") == 1 and 'width="64" height="48"' in frame
        page = html.unescape(frame.split('srcdoc="')[1].removesuffix('"></iframe>'))
        assert page == shown.page and page.startswith("<!doctype html>")
        image = pixels(shown._repr_png_())
        assert image.shape == (48, 64, 3) and image.max() > 50


def test_objects_have_a_line():
    views = make_views(GAUSSIANS, 2)
    trainer = Trainer(GAUSSIANS, views, Config(steps=1500))
    capture = Capture(tuple(views), tuple(views[:1]), GAUSSIANS.means, GAUSSIANS.means)
    assert repr(GAUSSIANS) == "Gaussians(60, SH degree 1, cpu)"
    assert repr(GAUSSIANS.as_surfels()) == "Gaussians(60, SH degree 1, surfels, cpu)"
    assert repr(trainer) == "Trainer(step 0 of 1,500, 60 Gaussians, 2 views, cpu)"
    assert repr(capture) == "Capture(2 training and 1 test views, 60 points)"
    camera = views[0].camera
    size = f"{camera.width}×{camera.height}, pinhole"
    assert repr(camera).startswith("Camera(") and repr(camera).endswith(f"{size})")
    assert repr(views[0]).startswith("View(") and repr(views[0]).endswith(f"{size})")
    assert (pixels(views[0]._repr_png_()) == views[0].image.numpy()).all()


def test_models_are_shown_as_images():
    shown = pixels(GAUSSIANS.map(lambda tensor: tensor.clone().requires_grad_())._repr_png_())
    assert shown.shape == (240, 320, 3) and shown.max() > 50
    hidden = dataclasses.replace(GAUSSIANS, means=torch.full_like(GAUSSIANS.means, torch.nan))
    assert hidden._repr_png_() is None  # and no traceback


def test_captures_show_eight_photographs():
    views = [
        View(torch.full((180, 240, 3), 10 * i, dtype=torch.uint8), Camera(torch.eye(4), torch.eye(3), 240, 180))
        for i in range(17)
    ]
    points = torch.zeros(1, 3)
    sheet = pixels(Capture(tuple(views), (), points, points)._repr_png_())
    assert sheet.shape == (2 * 94, 4 * 124, 3)
    first = sheet[45::94, 60::124, 0]
    assert first.tolist() == [[0, 20, 40, 60], [80, 100, 120, 140]]
    assert pixels(Capture((), tuple(views[:1]), points, points)._repr_png_()).shape == (94, 124, 3)
    assert Capture((), (), points, points)._repr_png_() is None
