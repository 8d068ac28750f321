"""Calls of export_splats that raise change neither the parameters nor a file."""

import copy

import pytest
import torch

from tests.support.identity import assert_identical
from tests.support.model_files import random_gaussians
from tsplat import ArgumentError
from tsplat.compat.gsplat import export_splats

INVALID = {
    "means": dict(means=torch.zeros(9, 2)),
    "fewer_means": dict(means=torch.zeros(8, 3)),
    "scales": dict(scales=torch.zeros(9)),
    "quats": dict(quats=torch.zeros(9, 3)),
    "opacities": dict(opacities=torch.zeros(9, 2)),
    "more_opacities": dict(opacities=torch.zeros(10)),
    "sh0": dict(sh0=torch.zeros(9, 2, 3)),
    "shN": dict(shN=torch.zeros(9, 4, 3)),
    "format": dict(format="obj"),
    "no_format": dict(format=None),
}


@pytest.mark.parametrize("format", ["ply", "splat"])
@pytest.mark.parametrize("case", INVALID)
def test_refused_export_changes_nothing(tmp_path, case, format):
    tensors = random_gaussians(n=9, degree=3).tensors()
    names = dict(
        means="means", scales="log_scales", quats="quats", opacities="opacity_logits", sh0="sh0", shN="shN"
    )  # fmt: skip
    arguments = {name: tensors[field] for name, field in names.items()} | {"format": format} | INVALID[case]
    before = copy.deepcopy(arguments)
    path = tmp_path / "model"
    path.write_bytes(b"an earlier model")
    with pytest.raises(ArgumentError):
        export_splats(**arguments, save_to=str(path))
    assert_identical(arguments, before)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert path.read_bytes() == b"an earlier model"
