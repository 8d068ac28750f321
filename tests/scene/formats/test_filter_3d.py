"""Tests of the 3D filter of Mip-Splatting, against its formulas in fp64."""

import numpy as np
import pytest
import torch

from tests.support.model_files import ply_bytes, ply_names
from tsplat.scene import read_ply, write_ply
from tsplat.scene.formats.filter_3d import apply_filter

NAMES = [*ply_names(1, normals=True), "filter_3D"]


def mip_splatting(log_scales, logits, sigmas):
    """Scales and opacities with the filter, as Mip-Splatting's program computes them."""
    scales, opacities = np.exp(log_scales.astype(np.float64)), 1 / (1 + np.exp(-logits.astype(np.float64)))
    squares = scales**2
    filtered = squares + sigmas.astype(np.float64)[:, None] ** 2
    return np.sqrt(filtered), opacities * np.sqrt(squares.prod(1) / filtered.prod(1))


def values(n, seed=0):
    """Log scales, logits and filters of n Gaussians."""
    rng = np.random.default_rng(seed)
    return tuple(
        array.astype(np.float32)
        for array in (rng.normal(-3, 2, (n, 3)), rng.normal(0, 4, n), np.exp(rng.normal(-4, 2, n)))
    )


def test_filter_equals_the_formulas_of_mip_splatting():
    log_scales, logits, sigmas = values(5000)
    found_logs, found_logits = apply_filter(log_scales, logits, sigmas)
    scales, opacities = mip_splatting(log_scales, logits, sigmas)
    np.testing.assert_allclose(found_logs, np.log(scales), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found_logits, np.log(opacities / (1 - opacities)), rtol=1e-6, atol=1e-6)


def test_filter_of_zero_changes_nothing():
    log_scales, logits, _ = values(1000)
    logits[:6] = [-100, 100, -1e30, 1e30, np.inf, -np.inf]
    log_scales[:3] = [[-np.inf] * 3, [90] * 3, [np.nan] * 3]
    found_logs, found_logits = apply_filter(log_scales, logits, np.zeros(1000, np.float32))
    np.testing.assert_array_equal(found_logs, log_scales)
    np.testing.assert_array_equal(found_logits, logits)


def test_filter_is_stable_at_extreme_values():
    # Opacities of nearly 0 and nearly 1, whose logits cannot be computed from the opacities.
    logits = np.array([-200, 60, 60, 1e30, np.inf, -np.inf, 0], np.float32)
    log_scales = np.array([[0, 0, 0]] * 6 + [[-np.inf, 0, 0]], np.float32)
    sigmas = np.array([1, 1e-6, 1, 1, 1, 1, 1], np.float32)
    found_logs, found_logits = apply_filter(log_scales, logits, sigmas)
    half = 2**-1.5  # the factor of three axes as wide as the filter
    one = np.log(half / (1 - half))
    # With a filter of 1e-6, 1 - o' = 1.5e-12.
    expected = [-200 + np.log(half), -np.log(1.5e-12), one, one, one, -np.inf, -np.inf]
    np.testing.assert_allclose(found_logits, expected, rtol=1e-6)
    np.testing.assert_allclose(found_logs[[0, 6]], [[np.log(2) / 2] * 3, [0, np.log(2) / 2, np.log(2) / 2]], atol=1e-7)


@pytest.mark.parametrize("invalid", [-1e-3, np.nan, np.inf, -np.inf])
def test_invalid_filter_makes_the_gaussian_invalid(tmp_path, invalid):
    table = np.full((3, len(NAMES)), 0.5, np.float32)
    table[1, -1] = invalid
    (tmp_path / "a.ply").write_bytes(ply_bytes(NAMES, table))
    assert read_ply(tmp_path / "a.ply").valid.tolist() == [True, False, True]


@pytest.mark.parametrize("encoding", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("name", ["filter_3D", "filter_3d"])
def test_read_ply_applies_the_filter(tmp_path, encoding, name):
    rng = np.random.default_rng(1)
    table = rng.normal(size=(3000, len(NAMES))).astype(np.float32)  # several blocks of ASCII records
    table[:, -1] = np.abs(table[:, -1])
    (tmp_path / "a.ply").write_bytes(ply_bytes([*NAMES[:-1], name], table, encoding))
    (tmp_path / "b.ply").write_bytes(ply_bytes(NAMES[:-1], table[:, :-1], encoding))
    found, without = read_ply(tmp_path / "a.ply"), read_ply(tmp_path / "b.ply")
    scales, opacities = mip_splatting(without.log_scales.numpy(), without.opacity_logits.numpy(), table[:, -1])
    torch.testing.assert_close(found.scales, torch.from_numpy(scales).float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.opacities, torch.from_numpy(opacities).float(), rtol=1e-5, atol=1e-7)
    for same in ("means", "quats", "sh0", "shN"):
        assert torch.equal(getattr(found, same), getattr(without, same))
    assert found.antialiased
    assert not without.antialiased


def test_filtered_model_is_written_without_the_filter(tmp_path):
    (tmp_path / "a.ply").write_bytes(ply_bytes(NAMES, np.full((3, len(NAMES)), 0.5, np.float32)))
    found = read_ply(tmp_path / "a.ply")
    write_ply(tmp_path / "b.ply", found)
    again = read_ply(tmp_path / "b.ply")
    assert again.antialiased
    assert torch.equal(again.log_scales, found.log_scales)
    assert torch.equal(again.opacity_logits, found.opacity_logits)


@pytest.mark.parametrize(
    ("comment", "antialiased"),
    [("SplatRenderMode: default", False), ("SplatRenderMode: mip", True), ("antialiased 0", False), ("other", True)],
)
def test_comment_overrules_that_filtered_models_are_antialiased(tmp_path, comment, antialiased):
    content = ply_bytes(NAMES, np.full((3, len(NAMES)), 0.5, np.float32), comments=[comment])
    (tmp_path / "a.ply").write_bytes(content)
    assert read_ply(tmp_path / "a.ply").antialiased is antialiased
