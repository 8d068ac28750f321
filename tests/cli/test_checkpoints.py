"""Commands on runs: damaged checkpoints are skipped with a message, and ``--checkpoint`` chooses one."""

import json

import pytest

from tests.support.training_scenes import make_checkpoint
from tsplat import cli
from tsplat.scene import read_ply
from tsplat.training import write_checkpoint


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints of 30 and of 40 Gaussians."""
    for step, n in ((100, 30), (200, 40)):
        write_checkpoint(tmp_path / "run" / "checkpoints", make_checkpoint(step, n))
    return tmp_path / "run"


def count(run, *options):
    out = run.parent / "out.ply"
    assert cli.main(["export", str(run), "--out", str(out), *options]) == 0
    return len(read_ply(out))


def test_commands_say_which_checkpoint_they_skip_and_use(run, capsys):
    (run / "checkpoints" / "step_00000200" / ".DS_Store").write_bytes(b"not ours")
    assert (count(run), capsys.readouterr().err) == (40, "")
    scene = run / "checkpoints" / "step_00000200" / "scene.safetensors"
    scene.write_bytes(scene.read_bytes()[:-4])
    message = (
        f"tsplat: skipped a damaged checkpoint ({scene}: modified or truncated since it was written (hash mismatch)); "
        "using step_00000100\n"
    )
    assert (count(run), capsys.readouterr().err) == (30, message)
    assert cli.main(["info", str(run), "--json"]) == 0
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["count"], printed.err) == (30, message)
    size = ["--width", "16", "--height", "12"]
    assert cli.main(["render", str(run), "--out", str(run.parent / "a.png"), *size]) == 0
    assert capsys.readouterr().err == message


def test_checkpoint_option_chooses_a_checkpoint(run, capsys):
    assert [count(run, "--checkpoint", name) for name in ("100", "step_00000100", "200")] == [30, 30, 40]
    assert cli.main(["info", str(run), "--json", "--checkpoint", "100"]) == 0
    assert '"count": 30' in capsys.readouterr().out
    assert cli.main(["convert", str(run), str(run.parent / "b.ply"), "--checkpoint", "150"]) == 2
    expected = f"tsplat: error: {run / 'checkpoints'}: no checkpoint 150; found step_00000100, step_00000200\n"
    assert capsys.readouterr().err == expected
