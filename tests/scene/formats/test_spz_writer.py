"""Tests of writing SPZ, against an encoder written from the format's description."""

import gzip
import struct
import sys

import pytest
import torch

from tests.support.model_files import assert_same_tensors, random_gaussians, spz_bytes
from tests.support.round_trips import check_round_trip
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import MissingExtraError, morton_order, read_spz, write_spz

VERSIONS = {3: "spz", 4: "spz4"}
"""Version -> format of `write_model`."""


@pytest.fixture(params=VERSIONS)
def version(request):
    if request.param == 4:
        pytest.importorskip("zstandard")
    return request.param


def with_means(gaussians, factor):
    return gaussians.map(lambda tensor: tensor * factor if tensor is gaussians.means else tensor)


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_write_inverts_read(tmp_path, version, degree):
    if degree > version:
        pytest.skip("SPZ 3 has no degree 4")
    gaussians = random_gaussians(60, degree, antialiased=degree == 1)
    (tmp_path / "a.spz").write_bytes(spz_bytes(gaussians, version, flags=int(degree == 1)))
    read = read_spz(tmp_path / "a.spz")
    write_spz(tmp_path / "b.spz", read, version=version)
    order = morton_order(read.means)
    assert_same_tensors(read_spz(tmp_path / "b.spz"), read.map(lambda tensor: tensor[order]))
    if version == 3:
        expected = spz_bytes(gaussians.map(lambda tensor: tensor[order]), 3, flags=int(degree == 1), raw=True)
        assert gzip.decompress((tmp_path / "b.spz").read_bytes()) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_round_trip_is_within_quantization(tmp_path, version, count, degree):
    if degree > version:
        pytest.skip("SPZ 3 has no degree 4")
    gaussians = random_gaussians(count, degree, antialiased=count % 2 == 0)
    write_spz(tmp_path / "a.spz", gaussians, version=version)
    check_round_trip(VERSIONS[version], gaussians, read_spz(tmp_path / "a.spz"))


@pytest.mark.parametrize("factor", [0, 1e-30, 1e-6, 1e-3, 0.1, 500, 1e4, 2e6])
def test_positions_use_the_bits_that_the_extent_leaves(tmp_path, factor):
    gaussians = with_means(random_gaussians(300), factor)
    write_spz(tmp_path / "a.spz", gaussians)
    check_round_trip("spz", gaussians, read_spz(tmp_path / "a.spz"))


@pytest.mark.parametrize(
    ("largest", "fraction"),
    [(0.0, 12), (0.5, 12), (1.0, 12), (2047.9, 12), (2048.0, 11), (0.49, 13), (1e-9, 12), (8388607.5, 0)],
)
def test_fractional_bits(tmp_path, largest, fraction):
    gaussians = random_gaussians(1)
    gaussians.means[:] = -largest
    write_spz(tmp_path / "a.spz", gaussians)
    assert gzip.decompress((tmp_path / "a.spz").read_bytes())[13] == fraction
    assert (read_spz(tmp_path / "a.spz").means + largest).abs().max() <= 2.0 ** -(fraction + 1)


def test_extreme_values_are_clamped(tmp_path):
    gaussians = random_gaussians(4, degree=1)
    gaussians.means.zero_()  # keeps the order
    gaussians.log_scales[:] = torch.tensor([[-torch.inf], [-11], [6], [torch.inf]])
    gaussians.opacity_logits[:] = torch.tensor([-torch.inf, -99, 99, torch.inf])
    gaussians.sh0[:] = torch.tensor([-1e30, -4, 4, 1e30])[:, None, None]
    gaussians.shN[:] = torch.tensor([-1e30, -1, 1, 1e30])[:, None, None]
    gaussians.quats[:] = torch.tensor([[-1.0, 0, 0, 0], [1e-9, 0, 0, 0], [0, 0, -1e30, 0], [1, 1, 1, 1]])
    write_spz(tmp_path / "a.spz", gaussians)
    found = read_spz(tmp_path / "a.spz")
    assert found.log_scales[:, 0].tolist() == [-10, -10, 5.9375, 5.9375]
    assert found.opacities.tolist() == pytest.approx([0, 0, 1, 1], abs=2e-6)
    assert found.sh0[:, 0, 0].tolist() == pytest.approx([-10 / 3, -10 / 3, 10 / 3, 10 / 3])
    # Coefficients change their sign with the axes, so that either end of [-1, 127/128] may be the nearest.
    assert (found.shN.abs() >= 127 / 128).all()
    assert torch.equal(found.shN.sign(), gaussians.shN.sign())
    quats = found.quats * found.quats.sum(1, keepdim=True).sign()
    expected = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0.5, 0.5, 0.5, 0.5]])
    assert (quats - expected).abs().max() < 2e-3


def test_header_of_version_4(tmp_path):
    pytest.importorskip("zstandard")
    for degree, n_streams in ((0, 5), (2, 6)):
        gaussians = random_gaussians(7, degree, antialiased=True)
        for count in (0, 7):
            write_spz(tmp_path / "a.spz", gaussians.map(lambda tensor, count=count: tensor[:count]), version=4)
            content = (tmp_path / "a.spz").read_bytes()
            assert struct.unpack_from("<4sIIBBBBI", content) == (b"NGSP", 4, count, degree, 12, 1, n_streams, 32)
            table = [struct.unpack_from("<QQ", content, 32 + 16 * i) for i in range(n_streams)]
            sizes = (9, 1, 3, 3, 4, 3 * ((degree + 1) ** 2 - 1))
            assert [size for _, size in table] == [count * size for size in sizes[:n_streams]]
            assert len(content) == 32 + 16 * n_streams + sum(packed for packed, _ in table)


def test_files_are_the_same_in_every_run(tmp_path, version):
    gaussians = random_gaussians(300, degree=2).map(lambda tensor: tensor.double().requires_grad_())
    for name in ("a", "b"):
        write_spz(tmp_path / name, gaussians, version=version)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_write_rejects_what_the_format_cannot_represent(tmp_path):
    gaussians = random_gaussians(4)
    with pytest.raises(ArgumentError, match=r"below 8,388,608 in magnitude for SPZ, found 8\.\d+e\+06"):
        write_spz(tmp_path / "a.spz", with_means(gaussians, (2**23 + 1) / gaussians.means.abs().max()))
    gaussians.quats[2, 0] = torch.nan
    with pytest.raises(ArgumentError, match=r"1 of 4.*valid"):
        write_spz(tmp_path / "a.spz", gaussians)
    with pytest.raises(UnsupportedError, match=r"sh_degree: expected at most 3 for SPZ 3, found 4; SPZ 4 \(spz4\)"):
        write_spz(tmp_path / "a.spz", random_gaussians(4, degree=4))
    with pytest.raises(ArgumentError, match="version: expected 3 or 4, found 2"):
        write_spz(tmp_path / "a.spz", random_gaussians(4), version=2)
    assert not list(tmp_path.iterdir())


def test_missing_zstandard_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[io\]'"):
        write_spz(tmp_path / "a.spz", random_gaussians(4), version=4)
    write_spz(tmp_path / "a.spz", random_gaussians(4))
