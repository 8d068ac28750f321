"""LPIPS of the comparison of trainers, with weights that are made up."""

import pickle

import numpy as np
import pytest
import torch

from benchmarks.perceptual import PADDING, STRIDES, Lpips

SHAPES = ((11, 11, 3, 64), (5, 5, 64, 192), (3, 3, 192, 384), (3, 3, 384, 256), (3, 3, 256, 256))


@pytest.fixture
def weights(tmp_path):
    rng = np.random.default_rng(0)
    values = {
        "AlexNet_0": {
            f"Conv_{i}": {
                "kernel": rng.normal(0, (shape[0] * shape[1] * shape[2]) ** -0.5, shape).astype(np.float32),
                "bias": np.zeros(shape[-1], np.float32),
            }
            for i, shape in enumerate(SHAPES)
        }
    }
    for i, shape in enumerate(SHAPES):
        values[f"NetLinLayer_{i}"] = {"Conv_0": {"kernel": np.full((1, 1, shape[-1], 1), 0.2, np.float32)}}
    path = tmp_path / "alexnet.ckpt"
    path.write_bytes(pickle.dumps(values, protocol=4))
    return path


def test_distance_is_zero_of_equal_images_and_grows_with_noise(weights):
    lpips = Lpips(weights)
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(80, 96, 3, generator=generator)
    noise = torch.randn(image.shape, generator=generator)
    distances = [lpips(image + size * noise, image) for size in (0.0, 0.05, 0.2)]
    assert distances[0] == 0
    assert 0 < 2 * distances[1] < distances[2] < 0.2 * 2 * len(STRIDES)
    assert len(STRIDES) == len(PADDING) == len(SHAPES)
    assert lpips(image, image + 0.2 * noise) == pytest.approx(lpips(image + 0.2 * noise, image))


def test_other_pickles_are_refused(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(pickle.dumps({"AlexNet_0": print}))
    with pytest.raises(pickle.UnpicklingError, match=r"expected NumPy arrays, found builtins\.print"):
        Lpips(path)
