"""`tsplat info`: summaries of models."""

import json
import re
import shutil

import torch
from PIL import Image

from tests.support.captures import write_scene
from tsplat import ArgumentError, cli
from tsplat.support.locks import lock_folder


def test_info_prints_a_table_or_json(model, capsys):
    assert cli.main(["info", str(model)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^Gaussians +3$", out, re.MULTILINE)
    assert re.search(r"^minimum xyz +-1 0 0$", out, re.MULTILINE)
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


def test_info_tells_how_far_a_run_has_come(stopped_run, capsys):
    assert cli.main(["info", str(stopped_run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    metrics = json.loads((stopped_run / "metrics.json").read_text())
    run = found["run"]
    assert found["count"] == 5
    assert (run["state"], run["resume"]) == ("not finished", f"tsplat train --resume {stopped_run}")
    assert (run["checkpoint"], run["step"], run["steps"], run["preset"]) == ("step_00000002", 2, 4, "fixed")
    assert (run["psnr"], run["ssim"], run["scored_step"]) == (metrics["psnr"], metrics["ssim"], 2)
    assert (run["scene"], run["scene_exists"]) == (str(stopped_run.parent / "scene"), True)
    assert cli.main(["info", str(stopped_run), "--checkpoint", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^checkpoint +step_00000001: 1 of 4 steps in ", out, re.MULTILINE)
    assert re.search(rf"^held-out +PSNR {metrics['psnr']:.2f} dB, SSIM .* after step 2$", out, re.MULTILINE)


def test_info_tells_whether_a_run_is_finished_and_what_is_missing(stopped_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(stopped_run, run)

    def lines():
        assert cli.main(["info", str(run)]) == 0
        return capsys.readouterr().out

    with lock_folder(run):
        content = (run / "lock").read_text()
        assert f"{run}: running\nresume       tsplat train --resume {run}\n" in lines()
        assert (run / "lock").read_text() == content
    (run / "lock").write_text(json.dumps({**json.loads(content), "ticks": 1}))
    assert f"{run}: killed\nresume       tsplat train --resume {run}\n" in lines()
    (run / "lock").write_text(json.dumps({**json.loads(content), "machine": "other", "kernel": "other"}))
    assert f"{run}: running or killed\nresume       tsplat train --resume {run}\n" in lines()
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, "steps": 4}))
    out = lines()
    assert f"{run}: finished\ncheckpoint" in out
    (run / "metrics.json").unlink()
    stopped_run.parent.joinpath("scene").rename(tmp_path / "elsewhere")
    try:
        out = lines()
    finally:
        (tmp_path / "elsewhere").rename(stopped_run.parent / "scene")
    assert "held-out     not evaluated\n" in out
    assert f"scene        {stopped_run.parent / 'scene'} (not found)\n" in out


def test_info_describes_the_model_of_a_run_with_unknown_settings(stopped_run, monkeypatch, capsys):
    def fail(_values, where):
        raise ArgumentError(f"{where}: no setting a_new_one")

    monkeypatch.setattr("tsplat.training.runs.run_summary.from_json", fail)
    assert cli.main(["info", str(stopped_run), "--json"]) == 0
    printed = capsys.readouterr()
    assert "no setting a_new_one; describing only the model" in printed.err
    found = json.loads(printed.out)
    assert (found["count"], "run" in found) == (5, False)


def test_info_describes_a_capture_and_names_the_next_command(tmp_path, capsys):
    scene = write_scene(tmp_path / "my scene", n=9, points=7)
    assert cli.main(["info", str(scene), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["photographs"], found["held_out"], found["cameras"], found["points"]) == (9, 2, 1, 7)
    assert found["sizes"] == [{"width": 43, "height": 30, "count": 9}]
    assert (found["camera_models"], found["mask_files"]) == (["pinhole"], 0)
    masks = scene / "masks"
    masks.mkdir()
    Image.new("L", (43, 30), 255).save(masks / "03.png")
    assert cli.main(["info", str(scene)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^photographs +9, of which 2 are held out$", out, re.MULTILINE)
    assert re.search(r"^mask files +1$", out, re.MULTILINE)
    assert out.endswith(f"next         tsplat train '{scene}' --out RUN\n")
