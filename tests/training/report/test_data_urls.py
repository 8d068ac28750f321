"""Images inside pages."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.training_scenes import HEIGHT, WIDTH, make_gaussians, make_views
from tsplat.scene.cameras import Camera
from tsplat.training.report.data_urls import SIDE_MIN, depth_image, encode_images, error_image


def decode(image):
    head, _, data = image["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    decoded = Image.open(io.BytesIO(base64.b64decode(data)))
    assert decoded.size == (image["width"], image["height"])
    return np.asarray(decoded)


@pytest.fixture
def noise():
    pixels = torch.randint(256, (90, 160, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def test_images_are_downscaled_to_the_longer_side(noise):
    large, small = encode_images([(noise, 400), (noise.transpose(Image.Transpose.ROTATE_90), 80)], 10**9)
    assert decode(large).shape == (90, 160, 3)
    assert decode(small).shape == (80, 45, 3)


def test_colors_are_kept():
    flat = Image.new("RGB", (64, 48), (200, 40, 90))
    (image,) = encode_images([(flat, 32)], 10**9)
    assert np.abs(decode(image).astype(int) - (200, 40, 90)).max() <= 3


def test_images_shrink_until_they_fit(noise):
    full = encode_images([(noise, 160)] * 3, 10**9)
    budget = sum(len(image["url"]) for image in full) // 4
    fitted = encode_images([(noise, 160)] * 3, budget)
    assert sum(len(image["url"]) for image in fitted) <= budget
    assert SIDE_MIN < fitted[0]["width"] < 160
    assert encode_images([(noise, 160)], 0)[0]["width"] == SIDE_MIN
    assert encode_images([], 0) == []


def test_error_image():
    target = torch.zeros(2, 3, 3, dtype=torch.uint8)
    rendered = target.clone()
    rendered[0, 0] = 64
    rendered[1, 2, 1] = 30
    pixels = np.asarray(error_image(target, rendered)).astype(int)
    assert pixels[0, 0].sum() > 600  # four times 0.25 is the brightest color
    assert pixels[0, 1].sum() < 10
    assert 30 < pixels[1, 2].sum() < 300
    assert (np.asarray(error_image(rendered, target)) == pixels).all()


def test_depth_image_is_brighter_near_and_has_the_size_that_is_shown():
    gaussians = make_gaussians()
    view = make_views(gaussians, 1)[0]
    camera = Camera(view.camera.viewmat, view.camera.K, WIDTH, HEIGHT)
    full = np.asarray(depth_image(gaussians, camera, 1000, "torch")).astype(float)
    half = np.asarray(depth_image(gaussians, camera, WIDTH // 2, "torch")).astype(float)
    assert full.shape == (HEIGHT, WIDTH, 3)
    assert half.shape == (HEIGHT // 2, WIDTH // 2, 3)
    # The camera is scaled with the image, so that the same surfaces are seen.
    small = np.asarray(Image.fromarray(full.astype(np.uint8)).resize((WIDTH // 2, HEIGHT // 2))).astype(float)
    assert np.corrcoef(small.flatten(), half.flatten())[0, 1] > 0.8
