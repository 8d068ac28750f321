"""Tests of what all compressed formats have in common: rounding, the mean color, and writing a file that was read."""

import itertools
from pkgutil import resolve_name
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.support.model_files import FILE_FORMATS, random_gaussians, skip_without
from tests.support.paths import MODELS
from tests.support.round_trips import LINEAR
from tests.support.slow import slow_after
from tests.tools.round_trips import random_model
from tsplat.errors import ArgumentError
from tsplat.scene import Gaussians, read_model, write_model
from tsplat.scene.formats.models import WRITERS
from tsplat.scene.formats.png_images import PARAMETERS, read_png_images, write_png_images
from tsplat.scene.quantization import rounded

QUANTIZED = [format for format in WRITERS if format not in ("ply", *LINEAR)]
STEPS = {
    "compressed-ply": (1 / 255 / 0.282, 1 / 32),
    "splat": (1 / 255 / 0.282,),
    "spz": (1 / 255 / 0.15, 1 / 128),
    "spz4": (1 / 255 / 0.15, 1 / 128),
    "sog": (3 / 256, 1 / 128),
    "ply": (0, 0),
    "png": (3 / 255, 1.8 / 63),
}
"""Format -> its steps of sh0 between -1.5 and 1.5, and of shN between -0.9 and 0.9; none where shN is not stored."""


def assert_rewriting_keeps_every_byte(folder, format, gaussians):
    first, second = (folder / f"{name}.{format}" for name in "ab")
    try:
        write_model(first, gaussians, format=format)
    except ArgumentError:
        assert format.startswith("spz") and gaussians.means.abs().max() >= 1 << 23
        return
    write_model(second, read_model(first), format=format)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("format", slow_after(3, FILE_FORMATS))
def test_a_model_that_was_read_is_written_byte_for_byte(tmp_path, format):
    skip_without(format)
    for seed in range(12):
        assert_rewriting_keeps_every_byte(tmp_path, format, random_model(np.random.default_rng(seed)))
    ties = random_gaussians(300, degree=2)
    ties.quats[:] = torch.tensor(list(itertools.product([-0.5, 0.5, 0.0], repeat=4)))[torch.arange(300) % 81]
    assert_rewriting_keeps_every_byte(tmp_path, format, ties)


@pytest.mark.parametrize(
    ("format", "function", "calls"),
    [
        ("sog", "sog_writer.decode_means", 2),  # the bounds, and the means
        ("sog", "sog_writer._n_clusters", 1),
        ("spz", "spz_writer._fixed_point", 3),  # the same, and what is written
        ("compressed-ply", "compressed_ply._normalize_chunks", 4),  # one tests whether the first chunk is exact
    ],
)
def test_values_are_encoded_once_in_each_pass(tmp_path, monkeypatch, format, function, calls):
    gaussians, counted = random_gaussians(600, degree=1), Mock(wraps=resolve_name(f"tsplat.scene.formats.{function}"))
    monkeypatch.setattr(f"tsplat.scene.formats.{function}", counted)
    write_model(tmp_path / "a", gaussians, format=format)
    assert counted.call_count == calls


@pytest.mark.slow
@pytest.mark.parametrize("format", FILE_FORMATS)
@pytest.mark.parametrize("name", ["luma-seal.splat", "biker.compressed.ply", "playbot_3.sog", "kettle.spz"])
def test_a_trained_model_that_was_read_is_written_byte_for_byte(tmp_path, name, format):
    skip_without(format)
    if not (MODELS / name).exists():
        pytest.skip(f"needs {name}")
    every_third = read_model(MODELS / name).map(lambda tensor: tensor[::3].contiguous())
    assert_rewriting_keeps_every_byte(tmp_path, format, every_third)


def test_png_images_that_were_read_are_written_byte_for_byte(tmp_path):
    gaussians = random_gaussians(400, degree=2)
    tensors = {name: getattr(gaussians, field) for name, field in PARAMETERS.items()}
    write_png_images(tmp_path / "a", tensors)
    write_png_images(tmp_path / "b", read_png_images(tmp_path / "a"))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("format", QUANTIZED)
@pytest.mark.parametrize("brightness", [0.15, 0.5])
def test_a_gray_model_stays_gray(tmp_path, format, brightness):
    pytest.importorskip("zstandard")
    points = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0))
    gaussians = Gaussians.from_points(points, torch.full_like(points, brightness), sh_degree=3)
    write_model(tmp_path / "a", gaussians, format=format)
    found = read_model(tmp_path / "a" if format != "splat" else (tmp_path / "a").rename(tmp_path / "a.splat"))
    for name in ("sh0", "shN"):
        values = getattr(found, name)
        assert torch.equal(values, values[..., :1].expand_as(values)), name
    assert found.shN.mean(0).abs().sum() < 1e-9
    # A color between two levels moves by half of a step at most, and not at all if it is midway.
    error = (0.5 + 0.28209479 * found.sh0).mean() - brightness
    assert abs(error) < (1e-5 if brightness == 0.5 else 0.5 / 255 + 1e-6)


@pytest.mark.parametrize("format", STEPS)
def test_writing_keeps_the_mean_of_every_coefficient(tmp_path, format):
    pytest.importorskip("zstandard")
    n = 8100
    gaussians = random_gaussians(n, degree=2)
    gaussians.shN[:] = gaussians.shN.clamp(-0.9, 0.9)
    gaussians.sh0[:] = gaussians.sh0.clamp(-1.5, 1.5)
    path = tmp_path / ("a.splat" if format == "splat" else "a")
    if format == "png":
        write_png_images(path, {name: getattr(gaussians, field) for name, field in PARAMETERS.items()})
    else:
        write_model(path, gaussians, format=format)
    found = read_model(path)
    for name, step in zip(("sh0", "shN"), STEPS[format]):
        written = getattr(gaussians, name).double().mean(0)
        # PLY files are padded to degree 3.
        bias = (getattr(found, name)[:, : len(written)].double().mean(0) - written).abs().max()
        # Five standard deviations of the mean of n independent rounding errors.
        assert bias <= 5 * step / (12 * n) ** 0.5, name


def test_values_midway_between_integers_are_rounded_by_turns():
    assert rounded(np.array([0.5, 1, 0.5, 0.4, 0.5, -0.5, np.inf])).tolist() == [1, 1, 0, 0, 1, -1, np.inf]
    # Equal channels have equal turns, whatever a third one has.
    pixels = np.array([[0.5, 0.5, 0.2], [0.2, 0.2, 0.5], [0.5, 0.5, 0.5]])
    assert rounded(pixels).tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
