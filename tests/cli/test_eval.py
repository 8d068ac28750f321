"""`tsplat eval`: what it prints."""

import json
import shutil
import sys

from tsplat import cli, training


def test_eval_prints_metrics_as_json_and_the_rest_on_stderr(stopped_run, tmp_path, capsys):
    assert cli.main(["eval", str(stopped_run), "--out", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    metrics = json.loads(printed.out)
    assert metrics == json.loads((tmp_path / "step_00000002" / "metrics.json").read_text())
    assert (metrics["steps"], len(metrics["views"])) == (2, 2)
    assert "mean of 2" in printed.err


def test_eval_ends_with_the_next_command(monkeypatch, capsys):
    monkeypatch.setattr(training, "evaluate_run", lambda run, **options: {"psnr": 20.0})
    assert cli.main(["eval", "a run", "--scene", "there"]) == 0
    assert capsys.readouterr().out == "next: tsplat report 'a run' --scene there\n"
    assert cli.main(["eval", "run", "--checkpoint", "3"]) == 0
    assert capsys.readouterr().out == ""


def test_next_command_is_named_as_the_command_was_called(monkeypatch, capsys):
    monkeypatch.setattr(training, "evaluate_run", lambda run, **options: {"psnr": 20.0})
    found = {}
    for where in (None, "/usr/bin/tsplat"):
        monkeypatch.setattr(shutil, "which", lambda _name, where=where: where)
        for called in (".venv/bin/tsplat", "my files/tsplat", "tsplat/__main__.py"):
            monkeypatch.setattr(sys, "argv", [called])
            assert cli.main(["eval", "run"]) == 0
            found[where, called] = capsys.readouterr().out
    assert found[None, ".venv/bin/tsplat"] == "next: .venv/bin/tsplat report run\n"
    assert found[None, "my files/tsplat"] == "next: 'my files/tsplat' report run\n"
    assert {found[None, "tsplat/__main__.py"], found["/usr/bin/tsplat", ".venv/bin/tsplat"]} == {
        "next: tsplat report run\n"
    }


def test_only_rank_0_prints_json(monkeypatch, capsys):
    monkeypatch.setattr(training, "evaluate_run", lambda run, **options: {"psnr": 20.0})
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, printed in (("0", '{"psnr": 20.0}\n'), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert cli.main(["eval", "run", "--json"]) == 0
        assert capsys.readouterr().out == printed


def test_train_prints_metrics_as_json(monkeypatch, capsys):
    def trained(*_arguments, **_options):
        print("step 1\nwarning: something")
        return {"psnr": 20.0}

    for name in ("train", "resume"):
        monkeypatch.setattr(training, name, trained)
    for words in (["scene", "--out", "run"], ["--resume", "run"]):
        assert cli.main(["train", *words, "--json"]) == 0
        printed = capsys.readouterr()
        assert printed.out == '{"psnr": 20.0}\n'
        assert printed.err.startswith("step 1\nwarning: something\n")  # a note about the number of steps may follow
        assert cli.main(["train", *words, "--json", "--quiet"]) == 0
        assert capsys.readouterr() == ('{"psnr": 20.0}\n', "warning: something\n")
