"""`PngCompression`: which Gaussians are written, and in which order; tests of the format test the files."""

import sys
import types

import pytest
import torch

from tests.support.model_files import random_gaussians
from tsplat import ArgumentError
from tsplat.compat.gsplat import PngCompression
from tsplat.compat.gsplat.compression.sort import sort_splats
from tsplat.scene import MissingExtraError, morton_order, read_model


def random_splats(n, degree=1):
    gaussians = random_gaussians(n, degree=degree)
    return dict(
        means=gaussians.means, scales=gaussians.log_scales, quats=gaussians.quats,
        opacities=gaussians.opacity_logits, sh0=gaussians.sh0, shN=gaussians.shN,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_plas(monkeypatch):
    monkeypatch.setitem(sys.modules, "plas", None)


@pytest.mark.parametrize("use_sort", [True, False])
def test_gaussians_of_lowest_opacity_are_left_out(tmp_path, capsys, use_sort):
    splats = random_splats(28)
    found = PngCompression(use_sort=use_sort).compress(str(tmp_path), splats)
    assert found is None
    assert capsys.readouterr().out == "removed 3 of 28 Gaussians, those of lowest opacity: 5×5 are left\n"
    found = PngCompression().decompress(str(tmp_path))
    kept = splats["opacities"] > splats["opacities"].sort().values[2]
    order = morton_order(splats["means"][kept]) if use_sort else torch.arange(25)
    tolerances = dict(means=1e-3, scales=0.02, quats=0.005, opacities=0.02, sh0=0.01, shN=0.03)
    for name, tolerance in tolerances.items():
        expected = splats[name][kept][order]
        if name == "quats":
            expected = torch.nn.functional.normalize(expected, dim=-1)
        torch.testing.assert_close(found[name], expected, rtol=0, atol=tolerance, msg=name)
    assert len(read_model(tmp_path)) == 25


def test_arguments_do_not_change(tmp_path, capsys):
    splats = torch.nn.ParameterDict(random_splats(10))
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in splats.items()}
    PngCompression(verbose=False).compress(str(tmp_path / "new"), splats)
    assert capsys.readouterr().out == ""
    for name, (tensor, values) in before.items():
        assert splats[name] is tensor
        assert torch.equal(tensor, values)
    for name, tensor in PngCompression().decompress(str(tmp_path / "new")).items():
        assert tensor.shape == (9, *splats[name].shape[1:])


def test_opacities_may_be_columns(tmp_path):
    splats = random_splats(10)
    PngCompression(use_sort=False, verbose=False).compress(str(tmp_path / "a"), splats)
    splats["opacities"] = splats["opacities"][:, None]
    PngCompression(use_sort=False, verbose=False).compress(str(tmp_path / "b"), splats)
    flat, columns = (PngCompression().decompress(str(tmp_path / name))["opacities"] for name in "ab")
    assert torch.equal(flat[:, None], columns)


def test_missing_and_mismatched_parameters_are_named(tmp_path):
    splats = random_splats(9)
    del splats["quats"]
    with pytest.raises(ArgumentError, match="splats: expected at least means, quats, opacities; quats is missing"):
        PngCompression().compress(str(tmp_path), splats)
    with pytest.raises(ArgumentError, match=r"splats: quats: expected \[9, ...\] as means, found \[8, 4\]"):
        PngCompression().compress(str(tmp_path), splats | {"quats": torch.zeros(8, 4)})


def test_pillow_is_named_if_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="pillow"):
        PngCompression(verbose=False).compress(str(tmp_path), random_splats(9))
    with pytest.raises(MissingExtraError, match="pillow"):
        PngCompression().decompress(str(tmp_path))


def test_plas_sorts_if_it_is_installed(monkeypatch):
    calls = []

    def sort_with_plas(grid, improvement_break, verbose):
        """Sorts pixels by the first channel, which is x."""
        calls.append((grid, improvement_break, verbose))
        order = grid[0].flatten().argsort()
        return grid.flatten(1)[:, order].view_as(grid), order.view(1, *grid.shape[1:])

    monkeypatch.setitem(sys.modules, "plas", types.SimpleNamespace(sort_with_plas=sort_with_plas))
    splats = random_splats(25)
    found = sort_splats(splats, verbose=False)
    ((grid, improvement_break, verbose),) = calls
    assert grid.shape == (3 + 4 + 3 + 1 + 3, 5, 5)
    assert improvement_break == 1e-4
    assert verbose is False
    order = splats["means"][:, 0].argsort()
    for name, tensor in splats.items():
        assert torch.equal(found[name], tensor[order]), name


def test_sorting_needs_a_square_number():
    with pytest.raises(ArgumentError, match="splats: expected a square number of Gaussians, found 8"):
        sort_splats(random_splats(8))
