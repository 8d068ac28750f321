"""Models as bytes of a file format."""

import pytest
import torch

from tests.support.model_files import assert_same_tensors, random_gaussians
from tsplat import ArgumentError, UnsupportedError
from tsplat.compat.gsplat import export_splats
from tsplat.scene import read_model, write_ply, write_splat

WRITERS = {"ply": write_ply, "splat": write_splat}


@pytest.mark.parametrize("format", WRITERS)
def test_bytes_are_those_of_the_writer(tmp_path, format):
    gaussians = random_gaussians(n=9, degree=3)
    data = export_splats(**arguments(gaussians), format=format)
    path = tmp_path / f"model.{format}"
    WRITERS[format](path, gaussians)
    assert data == path.read_bytes()
    saved = tmp_path / f"saved.{format}"
    assert export_splats(**arguments(gaussians), format=format, save_to=str(saved)) == saved.read_bytes() == data
    assert len(read_model(saved)) == 9


def arguments(gaussians):
    tensors = gaussians.tensors()
    return dict(
        means=tensors["means"], scales=tensors["log_scales"], quats=tensors["quats"],
        opacities=tensors["opacity_logits"], sh0=tensors["sh0"], shN=tensors["shN"],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["means", "scales", "quats", "opacities", "sh0", "shN"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_are_left_out(tmp_path, name, value):
    gaussians = random_gaussians(n=9, degree=3)
    tensors = {key: tensor.clone().requires_grad_() for key, tensor in arguments(gaussians).items()}
    with torch.no_grad():
        tensors[name][4].view(-1)[-1] = value
    export_splats(**tensors, save_to=str(tmp_path / "model.ply"))
    kept = torch.arange(9) != 4
    assert_same_tensors(read_model(tmp_path / "model.ply"), gaussians.map(lambda tensor: tensor[kept]))


def test_format_is_checked():
    tensors = arguments(random_gaussians(n=3))
    with pytest.raises(UnsupportedError, match="'ply_compressed' is not implemented; use 'ply' or 'splat'"):
        export_splats(**tensors, format="ply_compressed")
    with pytest.raises(ArgumentError, match="format: expected one of 'ply', 'splat', 'ply_compressed', found 'obj'"):
        export_splats(**tensors, format="obj")
