"""`tsplat convert` and `tsplat export`: models in other formats."""

import numpy as np
import pytest
from PIL import Image

from tsplat import cli
from tsplat.scene import read_ply


def test_convert_reports_losses_and_writes_a_model_that_renders(model, tmp_path, capsys):
    splat, out = tmp_path / "a.splat", tmp_path / "a.png"
    assert cli.main(["convert", str(model), str(splat)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"wrote 3 Gaussians to {splat}; lost: view dependence (SH degree 3)")
    assert cli.main(["render", str(splat), "--out", str(out), "--width", "90", "--height", "60"]) == 0
    assert (np.asarray(Image.open(out)).max(-1) > 60).mean() > 0.1


@pytest.mark.parametrize("command", [["convert", "{model}", "{out}"], ["export", "{model}", "--out", "{out}"]])
def test_convert_and_export_keep_the_gaussians(command, model, tmp_path, capsys):
    out = tmp_path / "b.ply"
    assert cli.main([word.format(model=model, out=out) for word in command]) == 0
    assert capsys.readouterr().out == f"wrote 3 Gaussians to {out}\n"
    assert read_ply(out).means.sort(0).values.tolist() == [[-1, 0, 0], [0, 0, 0], [1, 0, 0]]
