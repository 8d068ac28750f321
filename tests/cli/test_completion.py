"""``tsplat --print-completion``: the scripts that complete command lines in shells."""

import re
import shutil
import subprocess
import sys

import pytest

from tsplat import cli
from tsplat.cli.train_options import list_options

RESUME = {"--resume", "--accept-changes", "--checkpoint", "--force", "--scene"}


def script(capsys, shell):
    with pytest.raises(SystemExit) as status:
        cli.main(["--print-completion", shell])
    assert not status.value.code
    return capsys.readouterr().out


def test_options_of_train_are_those_of_its_help(capsys):
    listed = set()
    for preset in ("standard", "compact", "mcmc", "adaptive", "fixed", "refine"):
        with pytest.raises(SystemExit):
            cli.main(["train", "--preset", preset, "--help-all"])
        text = capsys.readouterr().out
        lines = re.findall(r"^ +(--.+)", text, re.M)
        listed |= {option for line in lines for option in re.findall(r"--(?:no-)?[A-Za-z][\w.-]+", line)}
    assert set(list_options()) - RESUME == listed - {"--help-all"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_script_has_all_commands(capsys, shell):
    pytest.importorskip("shtab")
    text = script(capsys, shell)
    for word in ("demo", "train", "export", "doctor", "downscale", "camera-model"):
        assert word in text


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tr", {"train"}),
        ("train --pre", {"--preset", "--precision"}),
        ("train --preset ", {"standard", "compact", "mcmc", "adaptive", "fixed", "refine"}),
        ("train sc", {"scene"}),
        ("blocks ", {"plan", "train", "merge"}),
        ("blocks merge plan --out a.spz --format c", {"compressed-ply"}),
        ("convert scene/m", {"scene/model.ply"}),
        ("export run --out a.spz --format c", {"compressed-ply"}),
    ],
)
def test_bash_completes(tmp_path, capsys, line, expected):
    pytest.importorskip("shtab")
    (tmp_path / "scene").mkdir()
    (tmp_path / "scene" / "model.ply").touch()
    (tmp_path / "complete.sh").write_text(
        script(capsys, "bash")
        + 'IFS="|"; COMP_WORDS=(tsplat $1); COMP_WORDS[$2]="${COMP_WORDS[$2]}"; COMP_CWORD=$2; unset IFS\n'
        + '_shtab_tsplat; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    words = line.split(" ")
    command = ["bash", "complete.sh", "|".join(words), str(len(words))]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) == expected


def test_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["--print-completion", "bash"]) == 2
    assert "shtab" in capsys.readouterr().err
