"""Examples: each runs in a small form in a process of its own, without a warning, and its own assertions hold."""

import ast
import importlib
import os
import re

import pytest

from tests.support.captures import write_colmap
from tests.support.paths import ROOT
from tsplat.scene import procedural_capture

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NAMES = [path.stem for path in EXAMPLES]

SMALL = {
    "camera_pose_refinement": {"STEPS": 60},
    "depth_supervision": {"STEPS": 25},
    "export_and_view": {"STEPS": 50, "FRAMES": 3},
    "feature_distillation": {"STEPS": 60},
    "fisheye_and_surfaces": {"STEPS": 120},
    "fit_image": {"STEPS": 30},
    "many_gpus": {"STEPS": 40},
    "mixed_precision": {"STEPS": 40},
    "own_strategy": {"STEPS": 60},
    "render_depth_and_normals": {"STEPS": 40},
    "train_from_photographs": {"STEPS": 40},
}
"""Constants at the top of examples that take longer than a few seconds, with the values that the tests use."""

LINES = {"fit_image": 40, "train_from_photographs": 60}
"""Lengths that README.md and the pages promise, in lines of code."""

MAX_LINES = 110

RUN = """
import matplotlib, runpy, sys, warnings
matplotlib.use("Agg")
warnings.simplefilter("error")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def small_form(name, folder, **constants):
    """Writes a copy of an example with other values of its constants, and returns its path."""
    text = (ROOT / "examples" / f"{name}.py").read_text()
    for constant, value in (SMALL.get(name, {}) | constants).items():
        text, n = re.subn(rf"^{constant} = .*$", f"{constant} = {value!r}", text, flags=re.MULTILINE)
        assert n == 1, f"{name}.py: expected one line that sets {constant}, found {n}"
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def run(training_forks, path):
    """Runs a script in its folder; a warning is an error, and showing a window would be one."""
    environment = os.environ | {"DISPLAY": ":0"}
    result = training_forks.run(RUN, path, cwd=path.parent, environment=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.sub("tsplat: compiling kernels for new settings.*\n", "", result.stderr) == ""
    return result.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name != "many_gpus"])
def test_example_runs(training_forks, name, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    path = small_form(name, tmp_path)
    assert run(training_forks, path), "an example prints what it found"
    for figure in re.findall(r'savefig\("(.*)"\)', path.read_text()):
        with image.open(tmp_path / figure) as shown:
            assert len(shown.convert("RGB").resize((64, 64)).getcolors(4096)) > 100, f"{figure} shows little"


@pytest.mark.long
def test_training_with_the_default_strategy(training_forks, tmp_path):
    printed = run(training_forks, small_form("train_from_photographs", tmp_path, STRATEGY="default", STEPS=50))
    assert "Gaussians" in printed


@pytest.mark.long
def test_training_from_photographs_on_disk(training_forks, tmp_path):
    capture = procedural_capture(160, 120, n_train=15, n_test=1, n_points=300, supersampling=1)
    scene = write_colmap(tmp_path / "scene", capture.train, capture.points)
    printed = run(training_forks, small_form("train_from_photographs", tmp_path, SCENE=str(scene), STEPS=100))
    assert "300 -> " in printed


@pytest.mark.long
def test_one_and_two_ranks(training_forks, tmp_path):
    """Two ranks render the same images as one before training, each with half of the Gaussians."""
    path = small_form("many_gpus", tmp_path)
    alone = run(training_forks, path)
    assert "rank 0 of 1: 4000 of 4000 Gaussians" in alone
    arguments = ["--standalone", "--nproc-per-node", 2, path]
    result = training_forks.run(
        "from tests.support.forked_ranks import main; main()", *arguments, cwd=tmp_path, timeout=240
    )
    assert result.returncode == 0, result.stderr[-3000:]
    for rank in (0, 1):
        assert f"rank {rank} of 2: 2000 of 4000 Gaussians" in result.stdout
    (before,) = re.findall(r"PSNR (\S+) -> ", result.stdout)
    assert f"PSNR {before} -> " in alone


@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_length(path):
    lines = [line.strip() for line in path.read_text().splitlines()]
    n = sum(bool(line) and not line.startswith("#") for line in lines)
    assert n <= LINES.get(path.stem, MAX_LINES), f"{path.name}: {n} lines of code"


@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_form(path):
    """Examples are notebooks in percent format that start with a title; those that train assert their result."""
    text = path.read_text()
    assert re.match(r"# %% \[markdown\]\n# # [A-Z]", text)
    assert "\n# %%\n" in text
    assert "plt.show" not in text, "save figures: a window blocks, and notebooks show them anyway"
    if "STEPS" in text:
        assert re.search(r"^ *assert ", text, re.MULTILINE)


@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_only_public_names_are_imported(path):
    problems = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tsplat":
            module = importlib.import_module(node.module)
            for alias in node.names:
                public = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
                if alias.name not in public or any(part.startswith("_") for part in node.module.split(".")):
                    problems.append(f"{path.name}:{node.lineno}: {node.module}.{alias.name}")
    assert not problems


def test_readme_lists_all_examples():
    listed = re.findall(r"^\| \[\w+\.py\]\((\w+)\.py\)", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES
