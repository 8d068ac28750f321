"""`tsplat info`: summaries of models."""

import json
import re

import torch

from tsplat import cli


def test_info_prints_a_table_or_json(model, capsys):
    assert cli.main(["info", str(model)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^Gaussians +3$", out, re.MULTILINE)
    assert re.search(r"^lowest +-1 0 0$", out, re.MULTILINE)
    assert cli.main(["info", str(model), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["count"], summary["sh_degree"], summary["antialiased"], summary["n_invalid"]) == (3, 0, False, 0)


def test_info_force_accepts_checkpoints_that_look_activated(tmp_path, capsys):
    ones = torch.ones(3, 3)
    splats = dict(means=torch.eye(3), scales=ones, quats=torch.ones(3, 4), opacities=0.5 * ones[0])
    path = tmp_path / "ckpt_1_rank0.pt"
    torch.save({"step": 1, "splats": {**splats, "sh0": ones[:, None], "shN": torch.zeros(3, 0, 3)}}, path)
    assert cli.main(["info", str(path)]) == 2
    assert "exp and sigmoid" in capsys.readouterr().err
    assert cli.main(["info", str(path), "--force"]) == 0
