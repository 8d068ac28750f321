"""Models as bytes of a file format."""

import pytest
import torch

from tests.support.model_files import assert_same_tensors, random_gaussians
from tsplat import ArgumentError
from tsplat.compat.gsplat.exporter import export_splats, load_ply_to_splats
from tsplat.scene import FileError, read_model, write_compressed_ply, write_ply, write_splat

WRITERS = {"ply": write_ply, "splat": write_splat, "ply_compressed": write_compressed_ply}


@pytest.mark.parametrize("format", WRITERS)
def test_bytes_are_those_of_the_writer(tmp_path, format):
    gaussians = random_gaussians(n=9, degree=3)
    data = export_splats(**arguments(gaussians), format=format)
    ending = format.removesuffix("_compressed")
    path = tmp_path / f"model.{ending}"
    WRITERS[format](path, gaussians)
    assert data == path.read_bytes()
    saved = tmp_path / f"saved.{ending}"
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


def test_compressed_ply_has_no_transparent_gaussians(tmp_path):
    gaussians = random_gaussians(9, degree=1)
    gaussians.opacity_logits[:3] = torch.tensor([1 / 256, 1 / 255 - 1e-5, 1 / 255 + 1e-5]).logit()
    tensors = {name: tensor.double() for name, tensor in arguments(gaussians).items()}
    export_splats(**tensors, format="ply_compressed", save_to=str(tmp_path / "model.ply"))
    found = read_model(tmp_path / "model.ply")
    assert (len(found), found.sh_degree) == (7, 1)
    assert float(found.opacities.min()) == pytest.approx(1 / 255, abs=1e-5)


def test_format_is_checked():
    tensors = arguments(random_gaussians(n=3))
    with pytest.raises(ArgumentError, match="format: expected one of 'ply', 'splat', 'ply_compressed', found 'obj'"):
        export_splats(**tensors, format="obj")


@pytest.mark.parametrize("degree", [0, 3])
def test_ply_files_are_loaded_as_they_were_exported(tmp_path, degree):
    splats = arguments(random_gaussians(n=9, degree=degree))
    export_splats(**splats, save_to=str(tmp_path / "model.ply"))
    found = load_ply_to_splats(str(tmp_path / "model.ply"))
    assert list(found) == list(splats)
    for name, tensor in splats.items():
        # Exported files have all coefficients up to degree 3.
        values = found[name][:, : tensor.shape[1]] if name == "shN" else found[name]
        assert torch.equal(values, tensor), name
    assert not found["shN"][:, splats["shN"].shape[1] :].any()
    assert found["opacities"].shape == (9,)
    (tmp_path / "damaged.ply").write_bytes((tmp_path / "model.ply").read_bytes()[:-9])
    with pytest.raises(FileError, match=r"damaged\.ply"):
        load_ply_to_splats(str(tmp_path / "damaged.ply"))
