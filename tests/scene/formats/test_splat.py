"""Tests of ``.splat`` files, against records packed by hand."""

import struct

import pytest
import torch

from tests.support.model_files import assert_same_rotations, random_gaussians
from tsplat import ArgumentError
from tsplat.scene import FileError, read_model, read_splat, write_splat


def test_read_decodes_a_record(tmp_path):
    record = struct.pack("<6f8B", 1, 2, 3, 0.5, 1, 2, 255, 0, 51, 102, 192, 64, 128, 0)
    (tmp_path / "a.splat").write_bytes(record)
    found = read_splat(tmp_path / "a.splat")
    assert found.means.tolist() == [[1, 2, 3]]
    torch.testing.assert_close(found.scales, torch.tensor([[0.5, 1, 2]]))
    torch.testing.assert_close(0.5 + 0.28209479 * found.sh0[:, 0], torch.tensor([[1, 0, 0.2]]))
    torch.testing.assert_close(found.opacities, torch.tensor([0.4]))
    assert found.quats.tolist() == [[0.5, -0.5, 0, -1]]
    write_splat(tmp_path / "b.splat", found)
    assert (tmp_path / "b.splat").read_bytes()[:28] == record[:28]


def test_round_trip_sorts_by_size_and_quantizes(tmp_path):
    gaussians = random_gaussians(200, degree=2)
    write_splat(tmp_path / "a.splat", gaussians)
    found = read_splat(tmp_path / "a.splat")
    sizes = found.log_scales.sum(1) + torch.nn.functional.logsigmoid(found.opacity_logits)
    assert (sizes.diff() < 0.1).all()
    order = torch.cdist(found.means, gaussians.means).argmin(1)
    assert order.unique().numel() == 200
    expected = gaussians.map(lambda tensor: tensor[order])
    assert torch.equal(found.means, expected.means)
    torch.testing.assert_close(found.log_scales, expected.log_scales, rtol=1e-5, atol=1e-6)
    assert (found.opacities - expected.opacities).abs().max() < 0.5 / 255 + 1e-5
    assert_same_rotations(found, expected, 0.02)
    found_colors, expected_colors = (0.5 + 0.28209479 * g.sh0 for g in (found, expected))
    assert (found_colors - expected_colors.clamp(0, 1)).abs().max() < 0.5 / 255 + 1e-5
    assert found.sh_degree == 0


def test_write_rejects_invalid_gaussians(tmp_path):
    gaussians = random_gaussians(4)
    gaussians.means[2, 0] = torch.nan
    with pytest.raises(ArgumentError, match=r"1 of 4.*valid"):
        write_splat(tmp_path / "a.splat", gaussians)
    assert not list(tmp_path.iterdir())


def test_read_rejects_partial_records(tmp_path):
    (tmp_path / "a.splat").write_bytes(bytes(33))
    with pytest.raises(FileError, match="multiple of 32 bytes, found 33 bytes"):
        read_splat(tmp_path / "a.splat")


def test_logarithms_are_refused(tmp_path):
    record = struct.pack("<6f8B", 1, 2, 3, 0.5, 1, 2, 255, 0, 51, 102, 192, 64, 128, 0)
    negative = struct.pack("<6f8B", 1, 2, 3, -0.5, -1, 2, 255, 0, 51, 102, 192, 64, 128, 0)
    (tmp_path / "a.splat").write_bytes(2 * negative + record)
    with pytest.raises(FileError, match="negative ones in 2 of 3 Gaussians; they look like logarithms"):
        read_splat(tmp_path / "a.splat")
    (tmp_path / "a.splat").write_bytes(negative + 2 * record)
    with pytest.warns(UserWarning, match="1 of 3 Gaussians have negative scales"):
        assert read_splat(tmp_path / "a.splat").valid.tolist() == [False, True, True]


@pytest.mark.parametrize("start", [b"{", b" {", b"\x1f\x8b", b"\n\t\r{"])
def test_positions_may_begin_as_files_of_other_formats(tmp_path, start):
    """A record has no mark: of 256 files, the first byte of one is a brace."""
    write_splat(tmp_path / "a.splat", random_gaussians(9))
    content = (tmp_path / "a.splat").read_bytes()
    (tmp_path / "a.splat").write_bytes(start + content[len(start) :])
    found = read_model(tmp_path / "a.splat", warn=str)
    assert torch.equal(found.means, read_splat(tmp_path / "a.splat", warn=str).means)
