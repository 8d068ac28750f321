"""The command: what it does, and that whatever is wrong ends in one line."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.captures import write_scene
from tests.support.paths import MODELS
from tsplat import cli
from tsplat.scene import Gaussians, read_ply, write_ply


def run(*arguments, code="import sys; from tsplat.cli import main; sys.exit(main())", **options):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    """What a command does is the same on every machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def model(tmp_path):
    """A red, a green and a blue ball from left to right, in a folder of their own."""
    points = torch.tensor([[-1.0, 0, 0], [0, 0, 0], [1, 0, 0]])
    gaussians = Gaussians.from_points(points, torch.eye(3), 0)
    ball = {"log_scales": torch.full((3, 3), -1.5), "opacity_logits": torch.full((3,), 4.0)}
    folder = tmp_path / "models"
    folder.mkdir()
    write_ply(folder / "model.ply", Gaussians(**{**gaussians.tensors(), **ball}))
    return folder / "model.ply"


def rendered(path):
    return np.asarray(Image.open(path), dtype=int)


def test_render_looks_from_where_it_is_told(model, tmp_path):
    out = tmp_path / "pictures" / "a.png"
    eye = ["--eye", 0, 0, -4, "--look-at", 0, 0, 0]
    arguments = ["render", model, "--out", out, "--width", 90, "--height", 60, "--fov", 40, *eye]
    assert cli.main([str(a) for a in arguments]) == 0
    picture = rendered(out)
    assert picture.shape == (60, 90, 3)
    # A meter is 60 / 2 / tan(20 degrees) / 4 = 20.6 pixels from here.
    red, green, blue = (picture[30, 45 + x] for x in (-21, 0, 21))
    assert red[0] > 100 > max(red[1:])
    assert green[1] > 100 > max(green[0], green[2])
    assert blue[2] > 100 > max(blue[:2])
    assert picture[2, 2].max() == 0
    assert cli.main([str(a) for a in [*arguments, "--up", 0, 1, 0, "--background", 1, 0.5, 0]]) == 0
    upside_down = rendered(out)
    assert upside_down[30, 45 - 21, 2] > 100
    assert upside_down[2, 2].tolist() == [255, 128, 0]


def test_render_finds_the_model_by_itself(model, tmp_path):
    assert cli.main(["render", str(model), "--out", str(tmp_path / "a.png"), "--width", "90", "--height", "60"]) == 0
    lit = rendered(tmp_path / "a.png").max(-1) > 60
    assert 0.1 < lit.mean() < 0.9
    columns = lit.any(0).nonzero()[0]
    assert columns.max() - columns.min() > 45


def test_render_with_one_of_eye_and_look_at(model, tmp_path):
    base = ["render", str(model), "--out", str(tmp_path / "a.png"), "--width", "90", "--height", "60"]
    assert cli.main([*base, "--look-at", "1", "0", "0"]) == 0
    blue = rendered(tmp_path / "a.png")[30, 45]
    assert blue[2] > 100 > max(blue[:2])
    assert cli.main([*base, "--eye", "0", "0.5", "-9"]) == 0
    green = rendered(tmp_path / "a.png")[30, 45]
    assert green[1] > 100 > max(green[0], green[2])


def test_render_leaves_out_what_is_not_a_number(model, tmp_path, capsys):
    content = bytearray(model.read_bytes())
    content[-62 * 4 : -61 * 4] = b"\xff" * 4  # x of the blue ball
    model.write_bytes(content)
    assert cli.main(["render", str(model), "--out", str(tmp_path / "a.png"), "--width", "40", "--height", "30"]) == 0
    assert "left out 1 of 3" in capsys.readouterr().out
    assert rendered(tmp_path / "a.png").max() > 60


def test_convert_says_what_is_lost_and_render_reads_what_came_of_it(model, tmp_path, capsys):
    splat, out = tmp_path / "a.splat", tmp_path / "a.png"
    assert cli.main(["convert", str(model), str(splat)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"wrote 3 Gaussians to {splat}; lost: view dependence (SH degree 3)")
    assert cli.main(["render", str(splat), "--out", str(out), "--width", "90", "--height", "60"]) == 0
    assert (rendered(out).max(-1) > 60).mean() > 0.1
    assert cli.main(["convert", str(splat), str(tmp_path / "b.ply")]) == 0
    assert capsys.readouterr().out.endswith("b.ply\n")
    assert read_ply(tmp_path / "b.ply").means.sort(0).values.tolist() == [[-1, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_info_counts(model, capsys):
    assert cli.main(["info", str(model)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^Gaussians +3$", out, re.MULTILINE)
    assert re.search(r"^lowest +-1 0 0$", out, re.MULTILINE)
    assert cli.main(["info", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["count"], found["sh_degree"], found["antialiased"], found["n_invalid"]) == (3, 3, False, 0)


def test_a_checkpoint_that_looks_activated_can_be_forced(tmp_path, capsys):
    ones = torch.ones(3, 3)
    splats = dict(means=torch.eye(3), scales=ones, quats=torch.ones(3, 4), opacities=0.5 * ones[0])
    path = tmp_path / "ckpt_1_rank0.pt"
    torch.save({"step": 1, "splats": {**splats, "sh0": ones[:, None], "shN": torch.zeros(3, 0, 3)}}, path)
    assert cli.main(["info", str(path)]) == 2
    assert "exp and sigmoid" in capsys.readouterr().err
    assert cli.main(["info", str(path), "--force"]) == 0


def test_antialiased_models_are_rendered_so(model, tmp_path):
    # Balls of a hundredth of a pixel: only with their opacity lowered for their size they are faint.
    small = read_ply(model).map(lambda tensor: tensor)
    small.log_scales.fill_(-8)
    brightness = {}
    for antialiased in (False, True):
        write_ply(tmp_path / "a.ply", dataclasses.replace(small, antialiased=antialiased))
        out = tmp_path / "a.png"
        command = ["render", str(tmp_path / "a.ply"), "--out", str(out), "--width", "90", "--height", "60"]
        assert cli.main([*command, "--eye", "0", "0", "-4"]) == 0
        brightness[antialiased] = rendered(out).max()
    assert brightness[False] > 100
    assert brightness[True] < 20


def test_train_and_render_what_came_of_it(tmp_path):
    scene = write_scene(tmp_path / "scene")
    assert cli.main(["train", str(scene), "--out", str(tmp_path / "run"), "--steps", "3", "--backend", "torch"]) == 0
    model, out = tmp_path / "run" / "point_cloud.ply", tmp_path / "a.png"
    assert cli.main(["render", str(model), "--out", str(out), "--width", "32", "--height", "24"]) == 0
    assert rendered(out).shape == (24, 32, 3)


BAD = [
    ([], "required"),
    (["frobnicate"], "frobnicate"),
    (["--frobnicate"], "required|unrecognized"),
    (["doctor", "--frobnicate"], "--frobnicate"),
    (["render", "{model}"], "--out"),
    (["render", "{model}", "--out", "a.jpg"], r"\.png"),
    (["render", "missing.ply", "--out", "a.png"], "missing.ply: No such file"),
    (["render", ".", "--out", "a.png"], r"\.: the folder has neither meta\.json"),
    (["render", "a.ksplat", "--out", "a.png"], "ksplat is not implemented"),
    (["render", "unknown.bin", "--out", "a.png"], "unknown model format"),
    (["convert", "{model}"], "OUT"),
    (["convert", "{model}", "a.obj"], "cannot tell the format"),
    (["convert", "{model}", "a.spz"], "not implemented"),
    (["convert", "missing.ply", "a.splat"], "missing.ply: No such file"),
    (["convert", "{model}", "text.ply/a.ply"], "text.ply"),
    (["info", "text.ply"], "not a PLY"),
    (["info", "{model}", "--frobnicate"], "--frobnicate"),
    (["render", "text.ply", "--out", "a.png"], "not a PLY"),
    (["render", "cut.ply", "--out", "a.png"], "cut short"),
    (["render", "empty.ply", "--out", "a.png"], "no Gaussian"),
    (["render", "{model}", "--out", "text.ply/a.png"], "cannot write there"),
    (["render", "{model}", "--out", "folder.png"], "folder.png"),
    (["render", "{model}", "--out", "a.png", "--width", "-4"], "--width"),
    (["render", "{model}", "--out", "a.png", "--width", "1e3"], "--width"),
    (["render", "{model}", "--out", "a.png", "--height", "0"], "--height"),
    (["render", "{model}", "--out", "a.png", "--height", "99999999999"], "--height"),
    (["render", "{model}", "--out", "a.png", "--fov", "180"], "fov"),
    (["render", "{model}", "--out", "a.png", "--fov", "nan"], "--fov"),
    (["render", "{model}", "--out", "a.png", "--eye", "1", "2"], "--eye"),
    (["render", "{model}", "--out", "a.png", "--eye", "nan", "0", "0"], "--eye"),
    (["render", "{model}", "--out", "a.png", "--eye", "0", "0", "0", "--look-at", "0", "0", "0"], "eye"),
    (["render", "{model}", "--out", "a.png", "--up", "0", "0", "0"], "up"),
    (["render", "{model}", "--out", "a.png", "--background", "0", "2", "0"], "--background"),
    (["render", "{model}", "--out", "a.png", "--backend", "opengl"], "--backend"),
    (["train", "missing", "--out", "new/run"], "missing: no such folder"),
    (["train", ".", "--out", "new/run"], "no cameras found"),
    (["train", "scene", "--out", "text.ply"], "cannot write there"),
    (["train", "scene", "--out", "new/run", "--downscale", "0"], "--downscale"),
    (["train", "scene", "--out", "new/run", "--downscale", "20"], "11 pixels"),
    (["train", "scene", "--out", "new/run", "--steps", "-1"], "--steps"),
    (["train", "distorted", "--out", "new/run"], "OPENCV.*undistort"),
    (["demo", "--steps", "0"], "--steps"),
    (["demo", "--seed", "-1"], "--seed"),
    (["demo", "--out", "text.ply/run"], "cannot write there"),
]
if os.environ.get("TRITON_INTERPRET") != "1":
    BAD += [
        (["render", "{model}", "--out", "a.png", "--backend", "triton"], "triton"),
        (["demo", "--out", "new/run", "--backend", "triton"], "triton"),
        (["train", "scene", "--out", "new/run", "--backend", "triton"], "triton"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input_ends_in_one_line_and_leaves_nothing(arguments, words, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = model.read_bytes()
    (tmp_path / "text.ply").write_text("hello\n")
    (tmp_path / "cut.ply").write_bytes(content[:-1])
    (tmp_path / "unknown.bin").write_bytes(content[4:])
    (tmp_path / "a.ksplat").write_bytes(content)
    (tmp_path / "empty.ply").write_bytes(content[: -3 * 62 * 4].replace(b"vertex 3", b"vertex 0"))
    (tmp_path / "folder.png").mkdir()
    if "scene" in arguments:
        write_scene(tmp_path / "scene", n=3)
    if "distorted" in arguments:
        write_scene(tmp_path / "distorted", n=3, camera="1 OPENCV_FISHEYE 43 30 50 52 21 14 0.1 0 0 0")
    before = sorted(tmp_path.rglob("*"))
    assert cli.main([a.format(model=model) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tsplat: error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert re.search(words, captured.err), captured.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "module", "package"),
    [
        (["demo", "--out", "run"], "matplotlib", "matplotlib"),
        (["demo", "--out", "run"], "rich", "rich"),
        (["train", "scene", "--out", "run"], "pycolmap", "pycolmap"),
        (["train", "scene", "--out", "run"], "scipy", "scipy"),
        (["render", "{model}", "--out", "a.png"], "PIL", "pillow"),
    ],
)
def test_a_missing_extra_is_named_before_anything_is_done(
    arguments, module, package, model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main([a.format(model=model) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error == f"tsplat: error: the package {package} is not installed; run: pip install 'tsplat[train]'\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


def test_out_of_memory_is_said_in_a_line(model, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")

    monkeypatch.setattr("tsplat.viewing.films.render_views", fail)
    assert cli.main(["render", str(model), "--out", str(tmp_path / "new" / "a.png")]) == 2
    assert capsys.readouterr().err == "tsplat: error: out of memory; ask for smaller pictures\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


def test_other_errors_are_ours_and_are_not_hidden(model, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("tsplat.viewing.films.render_views", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        cli.main(["render", str(model), "--out", str(tmp_path / "a.png")])


def test_help_and_version(capsys):
    for arguments in (["--help"], ["render", "--help"], ["--version"]):
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
    assert "tsplat 0." in capsys.readouterr().out


def test_doctor_says_what_runs(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch       {torch.__version__.partition('+')[0]}" in out
    assert "cpu: backend " in out
    assert "works" in out


def test_doctor_says_what_fails_and_what_is_missing(monkeypatch, capsys):
    def fail(**_):
        raise OSError("no compiler\nfound")

    def version(package):
        if package == "pillow":
            raise cli.importlib.metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(cli, "rasterization", fail)
    monkeypatch.setattr(cli.importlib.metadata, "version", version)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILS: OSError: no compiler found" in out
    assert "pillow      missing" in out
    assert "no pillow: demo, render and train need pip install 'tsplat[train]'" in out


WITHOUT_EXTRAS = """
import sys
for name in ("PIL", "rich", "scipy", "matplotlib", "pycolmap"):
    sys.modules[name] = None
import tsplat
loaded = [name for name in sys.modules if name.startswith(("tsplat.scene", "tsplat.training", "tsplat.cli"))]
assert not loaded, loaded
from tsplat.scene import read_ply
assert len(read_ply(sys.argv[1])) == 3
from tsplat.cli import main
sys.exit(main(["doctor"]))
"""


def test_core_packages_are_enough_for_the_doctor_and_for_reading(model):
    found = run(model, code=WITHOUT_EXTRAS)
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "tsplat", "render", "missing.ply", "--out", "a.png"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "tsplat: error: missing.ply: No such file or directory\n"


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_outside_training_is_one_line(tmp_path):
    code = (
        "import sys, tsplat.scene.capture.procedural as p; p.STEPS = 10**9; p.NEAREST = -1; print('up', flush=True)\n"
    )
    code += "from tsplat.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "demo", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        deadline = time.monotonic() + 60
        while not (tmp_path / "run").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "tsplat: interrupted\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared models are not beside this checkout")
@pytest.mark.parametrize("name", ["kettle.from_spz.ply", "playbot_3.from_sog.ply", "luma-seal.from_splat.ply"])
def test_real_models_fill_a_good_part_of_the_picture(name, tmp_path):
    out = tmp_path / "a.png"
    assert cli.main(["render", str(MODELS / name), "--out", str(out), "--width", "120", "--height", "90"]) == 0
    picture = rendered(out)
    lit = picture.max(-1) > 40
    assert 0.15 < lit.mean() < 0.85
    rows, columns = lit.any(1).nonzero()[0], lit.any(0).nonzero()[0]
    assert (np.ptp(rows) / 90 > 0.7) or (np.ptp(columns) / 120 > 0.7)
    if name.startswith("kettle"):
        # It stands on a blue cloth: the right way up the blue is below.
        blue = (picture[..., 2] - picture[..., 0] > 60).nonzero()[0]
        assert blue.mean() > 60
