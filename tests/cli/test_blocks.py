"""``tsplat blocks``: a plan with its image, blocks of a scene trained and merged, and what is refused."""

import pytest
import torch

from tests.support.captures import write_scene
from tsplat import cli
from tsplat.scene import read_plan, read_ply
from tsplat.training import read_newest


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan of two blocks of ten cameras and ten points, each in a line."""
    monkeypatch.chdir(tmp_path)
    write_scene(tmp_path / "scene", points=10)
    assert cli.main(["blocks", "plan", "scene", "--out", "plan", "--grid", "2", "1"]) == 0
    return tmp_path / "plan"


@pytest.mark.slow
def test_blocks_are_planned_trained_and_merged(plan, capsys):
    assert cli.main(["blocks", "plan", "scene", "--out", "one", "--blocks", "1", "--margin", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "    0         10     10\n" in printed and "wrote one: plan.json; plan.png shows" in printed
    assert read_plan("one").margin == 0.5 and [block.n_points for block in read_plan("plan").blocks] == [5, 5]
    assert (plan / "plan.png").stat().st_size > 5000
    assert read_plan(plan).scene == str(plan.parent / "scene")
    words = ["--steps", "3", "--device", "cpu", "--backend", "torch", "--test-every", "0", "--preset", "fixed"]
    assert cli.main(["blocks", "train", "plan", "1", *words]) == 0
    assert not (plan / "block_0").exists()
    assert cli.main(["blocks", "merge", "plan", "--out", "a.ply"]) == 2
    error = capsys.readouterr().err
    assert "plan: 1 of 2 blocks are not trained: 0 (not started); to train them: tsplat blocks train plan 0" in error
    (plan.parent / "scene").rename(plan.parent / "moved")
    assert cli.main(["blocks", "train", "plan", "--scene", "moved", *words]) == 0
    assert "block 1 of 2: finished before, skipped" in capsys.readouterr().out
    written = (plan / "plan.json").read_bytes()
    assert cli.main(["blocks", "merge", "plan", "--out", "plan/plan.json", "--format", "ply"]) == 2
    assert "plan.json" in capsys.readouterr().err
    assert (plan / "plan.json").read_bytes() == written
    assert cli.main(["blocks", "merge", "plan", "--out", "a.ply"]) == 0
    found, plan_read = read_ply("a.ply"), read_plan(plan)
    for k in range(2):
        means = read_newest(plan / f"block_{k}")[1].gaussians.means
        assert torch.equal(found.means[plan_read.contains(k, found.means)], means[plan_read.contains(k, means)])
    assert cli.main(["blocks", "plan", "moved", "--out", "plan", "--blocks", "3"]) == 2
    assert "plan: block_0 belongs to the plan that is there; choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["2"], "block: expected 0 to 1, the blocks of the plan, found 2"),
        (["--out", "run"], "--out, --block, --view, --json: not with tsplat blocks train"),
        (["--block", "plan:1"], "--out, --block, --view, --json: not with tsplat blocks train"),
        (["--view"], "--out, --block, --view, --json: not with tsplat blocks train"),
        (["--resume", "run"], "--resume, --out, --block, --view, --json: not with"),
        (["0", "--stpes", "9"], "did you mean --steps instead of --stpes"),
        (["--steps", "9", "0"], "0"),
        (["--normalize"], "normalize: not with block"),
    ],
)
def test_what_does_not_fit_blocks_is_refused(plan, words, message, capsys):
    assert cli.main(["blocks", "train", "plan", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(plan.glob("block_*"))
