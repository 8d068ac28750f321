"""The command line: errors in one line, exit codes, entry points, and what it imports."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.support.captures import write_scene
from tests.support.paths import ROOT
from tsplat import ArgumentError, __version__, cli, training
from tsplat.cli.parser import build_parser
from tsplat.cli.train_options import parse

COMMANDS = next(action for action in build_parser()._actions if action.dest == "command").choices
INVALID = [
    (["frobnicate"], "frobnicate"),
    (["rendr", "{model}"], r"\(did you mean render instead of rendr\?\); see tsplat --help"),
    (["render", "{model}", "--ouptut", "a.png"], r"required: --out \(did you mean --out instead of --ouptut\?\)"),
    (
        ["render", "{model}", "--out", "a.png", "--widht=9"],
        r"--widht=9 \(did you mean --width instead of --widht\?\); see",
    ),
    (["render", "{model}", "--out", "a.png", "--backend", "tirton"], r"\(did you mean triton instead of tirton\?\)"),
    (
        ["view", "{model}", "--adress", "::1"],
        r"\(did you mean --address instead of --adress\?\); see tsplat view --help",
    ),
    (["doctor", "--zzz"], r"arguments: --zzz; see tsplat doctor --help"),
    (["train", "scene", "--out", "new/run", "--stpes", "9"], r"\(did you mean --steps instead of --stpes\?\)"),
    (["train", "--resume", "new/run", "--stop-aftr", "9"], r"\(did you mean --stop-after instead of --stop-aftr\?\)"),
    (["--frobnicate"], "required|unrecognized"),
    (["doctor", "--frobnicate"], "--frobnicate"),
    (["render", "{model}"], "--out"),
    (["render", "{model}", "--out", "a.bmp"], r"\.png or \.jpg"),
    (["render", "missing.ply", "--out", "a.png"], "missing.ply: no such file or folder"),
    (["render", ".", "--out", "a.png"], r"\.: the folder has neither meta\.json"),
    (["render", "a.ksplat", "--out", "a.png"], r"a\.ksplat: expected a header of 4,096 bytes"),
    (["render", "unknown.bin", "--out", "a.png"], "unknown model format"),
    (["convert", "{model}"], "OUT"),
    (["convert", "{model}", "a.obj"], "or pass --format"),
    (["convert", "{model}", "a.ksplat"], "not implemented"),
    (["convert", "{model}", "a.bin", "--format", "obj"], "--format"),
    (["convert", "missing.ply", "a.splat"], "missing.ply: no such file or folder"),
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
    (["view", "text.ply"], "not a PLY"),
    (["view", "folder.png"], "has neither meta.json"),
    (["view", "photos"], "photos: a folder of photographs, not a model; .* tsplat prepare photos --out SCENE"),
    (["info", "page.html"], "page.html: a page, which is opened in a web browser"),
    (
        ["convert", "scene", "new.ply"],
        "scene: a scene of photographs and cameras, not a model; .*tsplat view scene; .*tsplat train",
    ),
    (["view", "/dev/zero"], "is a device"),
    (["view", "{model}", "missing.ply"], "missing.ply"),
    (["view", "{model}", "--address", ""], "cannot listen on ''"),
    (["view", "{model}", "--address", "\udcff"], "cannot listen on"),
    (["view", "{model}", "--address", "a\0b"], "cannot listen on"),
    (["view", "{model}", "--address", "x" * 35_000], r"cannot listen on .* \[\.\.\.\] "),
    (["view", "{model}", "--port", "nan"], "--port"),
    (["view", "{model}", "--host-name", "https://a.test"], "host_name: expected a name such as"),
    (["view", "{model}", "--up", "0", "0", "0"], "up: expected a finite direction"),
    (["view", "{model}", "--checkpoint", "1"], "is not a training run"),
    (["prepare", "a"], "required: --out; for example: tsplat prepare photos --out scene; see tsplat prepare --help"),
    (["view"], "required: MODEL; for example: tsplat view run; see tsplat view --help"),
    (["prepare", "", "--out", "new"], "PHOTOS: expected a path"),
    (["prepare", "a\0b", "--out", "new"], "PHOTOS: expected a path"),
    (["prepare", "text.ply", "--out", "new"], "text.ply: not a folder of photographs; videos end in"),
    (["prepare", "missing", "--out", "new"], "missing: no such folder"),
    (["prepare", "videos", "--out", "new"], r"found 0; name one video, such as videos/a\.MOV"),
    (["prepare", "folder.png", "--out", "new"], "at least two photographs"),
    (["prepare", "folder.png", "--out", "new", "--max-size", "9" * 400], "--max-size"),
    (["demo", "--out", "/dev/null"], "/dev/null: cannot write there"),
    (["demo", "--out", "x" * 35_000], "File name too long"),
    (["demo", "--steps", "nan"], "--steps"),
    (["doctor", "x"], "unrecognized arguments: x"),
    (["train", "missing", "--out", "new/run"], "missing: no such folder"),
    (["train", ".", "--out", "new/run"], "no cameras found"),
    (["train", "a b/scene"], "--out: expected a folder to write to, such as --out 'a b/scene_run'; see tsplat train"),
    (["train", "scene", "--out", "text.ply"], "cannot write there"),
    (["train", "scene", "--out", "new/run", "--downscale", "0"], "--downscale"),
    (["train", "scene", "--out", "new/run", "--downscale", "20"], "11 pixels"),
    (["train", "scene", "--out", "new/run", "--steps", "-1"], "--steps"),
    (["blocks"], r"required: \{plan,train,merge\}; for example: tsplat blocks plan scene --out plan --blocks 4; see"),
    (["blocks", "trian", "plan"], r"\(did you mean train instead of trian\?\); see tsplat blocks --help"),
    (["blocks", "plan", "scene", "--out", "new"], "one of the arguments --blocks --grid is required"),
    (["blocks", "plan", "scene", "--out", "new", "--blocks", "0"], "--blocks: expected an integer from 1"),
    (["blocks", "plan", "scene", "--out", "new", "--blocks", "2", "--grid", "1", "2"], "not allowed with"),
    (["blocks", "plan", "scene", "--out", "new", "--blocks", "2", "--margn", "1"], "mean --margin instead of --margn"),
    (["blocks", "plan", "scene", "--out", "new", "--blocks", "2", "--margin", "-1"], "margin: expected a number of at"),
    (["blocks", "plan", "scene", "--out", "new", "--grid", "9", "9"], "at most as many as points, found 81 and 5"),
    (["blocks", "plan", "missing", "--out", "new", "--blocks", "2"], "missing: no such folder"),
    (["blocks", "train", "missing", "--steps", "9"], r"plan\.json: cannot be read .*make it with tsplat blocks plan"),
    (["blocks", "merge", "missing", "--out", "a.ply"], r"plan\.json: cannot be read"),
    (["blocks", "merge", "missing"], "--out"),
    (["train", "scene", "--out", "new/run", "--block", "plan"], "--block: expected the folder of a plan, a colon"),
    (["train", "scene", "--out", "new/run", "--block", "missing:1"], r"missing/plan\.json: cannot be read"),
    (["demo", "--steps", "0"], "--steps"),
    (["demo", "--seed", "-1"], "--seed"),
    (["demo", "--out", "text.ply/run"], "cannot write there"),
    (["render", "{model}", "--out", "a"], "expected a file name ending in .png"),
    (["render", "{model}", "--out", "a.gif", "--trajectory", "path"], "has no cameras.json of a run"),
    (["render", "{model}", "--out", "a.gif", "--trajectory", "missing.json"], r"missing\.json: cannot be read"),
    (["render", "{model}", "--out", "a.avi", "--trajectory", "orbit"], r"ending in \.mp4"),
]
WITHOUT_LLVMLITE = [
    (["render", "{model}", "--out", "a.png", "--backend", "triton"], "triton"),
    (["demo", "--out", "new/run", "--backend", "triton"], "triton"),
    (["train", "scene", "--out", "new/run", "--backend", "triton"], "triton"),
]
"""Commands that fail where Triton kernels cannot be compiled for the CPU."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    INVALID + WITHOUT_LLVMLITE,
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_input_prints_one_line_and_writes_nothing(arguments, words, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if (arguments, words) in WITHOUT_LLVMLITE:
        monkeypatch.setattr("tsplat.runtime.backend.cpu_compiler_problem", lambda: "llvmlite is not installed")
    content = model.read_bytes()
    (tmp_path / "text.ply").write_text("hello\n")
    (tmp_path / "cut.ply").write_bytes(content[:-1])
    (tmp_path / "unknown.bin").write_bytes(content[4:])
    (tmp_path / "a.ksplat").write_bytes(content[4:])
    (tmp_path / "empty.ply").write_bytes(content[: -3 * 17 * 4].replace(b"vertex 3", b"vertex 0"))
    (tmp_path / "page.html").write_text("<!doctype html>")
    for path in ("photos/a.JPG", "videos/a.MOV", "folder.png/.hidden"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).touch()
    if "scene" in arguments:
        write_scene(tmp_path / "scene", n=3)
    before = sorted(tmp_path.rglob("*"))
    assert cli.main([a.format(model=model) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tsplat: error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert re.search(words, captured.err), captured.err
    assert sorted(tmp_path.rglob("*")) == before


OPTIONAL = ("imageio_ffmpeg", "tensorboard", "torchmetrics", "torchvision")


def test_file_in_place_of_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model.ply").touch()
    assert cli.main(["my model.ply"]) == 2
    expected = "tsplat: error: unknown command 'my model.ply'; to view this file: tsplat view 'my model.ply'\n"
    assert capsys.readouterr().err == expected
    assert cli.main(["vieww"]) == 2
    assert "did you mean view" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "module", "package", "extra"),
    [
        (["demo", "--out", "run"], "matplotlib", "matplotlib", "train"),
        (["demo", "--out", "run"], "rich", "rich", "train"),
        (["prepare", "photos", "--out", "scene"], "pycolmap", "pycolmap", "train"),
        (["train", "scene", "--out", "run"], "pycolmap", "pycolmap", "train"),
        (["train", "scene", "--out", "run"], "scipy", "scipy", "train"),
        (["train", "scene", "--out", "run", "--tensorboard"], "tensorboard", "tensorboard", "train"),
        (["train", "scene", "--out", "run", "--wandb"], "wandb", "wandb", "wandb"),
        (["train", "scene", "--out", "run", "--trackio"], "trackio", "trackio", "trackio"),
        (["train", "scene", "--out", "run", "--ranks", "2", "--device", "cpu"], "scipy", "scipy", "train"),
        (["train", "--resume", "run"], "scipy", "scipy", "train"),
        (["blocks", "plan", "scene", "--out", "run", "--blocks", "2"], "matplotlib", "matplotlib", "train"),
        (["eval", "run", "--lpips", "alex"], "torchmetrics", "torchmetrics", "lpips"),
        (["report", "run"], "matplotlib", "matplotlib", "train"),
        (["render", "{model}", "--out", "a.png"], "PIL", "pillow", "train"),
        (["render", "{model}", "--out", "a.mp4", "--trajectory", "orbit"], "imageio_ffmpeg", "imageio-ffmpeg", "video"),
        (["render", "{model}", "--out", "a.gif", "--trajectory", "orbit"], "PIL", "pillow", "train"),
    ],
)
def test_missing_optional_package_is_reported_before_any_work(
    arguments, module, package, extra, model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    # Whatever else this environment lacks.
    for name in OPTIONAL:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("tsplat.cli.shared_steps.open_model", None)
    monkeypatch.setattr("tsplat.training.runs.train.read_run_capture", None)
    assert cli.main([a.format(model=model) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error == f"tsplat: error: the package {package} is not installed; run: pip install 'tsplat[{extra}]'\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


def test_out_of_memory_prints_one_line(model, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")

    monkeypatch.setattr("tsplat.viewing.videos.render_views", fail)
    assert cli.main(["render", str(model), "--out", str(tmp_path / "new" / "a.png")]) == 2
    assert capsys.readouterr().err == "tsplat: error: out of memory; use smaller images\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


@pytest.mark.parametrize(
    "words",
    [
        ["info", "a" * 35_000],
        ["info", "{model}", "b" * 35_000],
        ["render", "{model}", "--out", "a.png", "--fov", "c" * 35_000],
    ],
    ids=["path", "argument", "value"],
)
def test_messages_are_bounded(words, model, capsys):
    assert cli.main([word.format(model=model) for word in words]) == 2
    error = capsys.readouterr().err
    assert " [...] " in error
    assert len(error) < 1100


def test_messages_have_no_control_characters(tmp_path, capsys):
    assert cli.main(["info", str(tmp_path / "a\x1b[31m\nb\u202e.ply")]) == 2
    assert capsys.readouterr().err.endswith("a\\x1b[31m b\\u202e.ply: no such file or folder\n")


@pytest.mark.parametrize("words", [["info", "{}"], ["view", "{model}", "{}"], ["export", "{}", "--out", "a.ply"]])
def test_missing_models_are_reported_with_a_similar_name(words, model, capsys):
    missing = model.parent / "modle.ply"
    assert cli.main([word.format(missing, model=model) for word in words]) == 2
    hint = "(did you mean model.ply instead of modle.ply?)"
    assert capsys.readouterr().err == f"tsplat: error: {missing}: no such file or folder {hint}\n"


@pytest.mark.slow
def test_missing_models_are_reported_without_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise AssertionError")
    code = "import sys; from tsplat_command import main; sys.argv[1:] = ['view', 'a.ply']; sys.exit(main())"
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    found = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (2, "tsplat: error: a.ply: no such file or folder\n")


@pytest.mark.parametrize("words", [["info", ""], ["convert", "a.ply", ""], ["report", ""], ["demo", "--out", ""]])
def test_empty_paths_are_errors(words, capsys):
    assert cli.main(words) == 2
    assert "expected a path, found ''" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("command", ["info", "convert", "export", "render"])
def test_models_are_not_read_from_pipes(command, tmp_path, capsys):
    os.mkfifo(tmp_path / "a")
    out = {"info": [], "convert": ["a.ply"]}.get(command, ["--out", "a.png"])
    assert cli.main([command, str(tmp_path / "a"), *out]) == 2
    assert capsys.readouterr().err.endswith("a: is a device, a pipe or a socket; expected a file\n")


@pytest.mark.parametrize("words", [["train", "scene", "--out", "run"], ["train", "--resume", "run"], ["eval", "run"]])
def test_too_many_ranks_are_not_started(words, monkeypatch, capsys):
    monkeypatch.setattr("tsplat.training.processes.launcher.launch", pytest.fail)
    assert cli.main([*words, "--ranks", "999999"]) == 2
    assert re.search(
        r"--ranks: expected an integer from 1 to \d+ on this machine, found 999999", capsys.readouterr().err
    )


def test_internal_errors_propagate(model, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("an internal error")

    monkeypatch.setattr("tsplat.viewing.videos.render_views", fail)
    with pytest.raises(RuntimeError, match="an internal error"):
        cli.main(["render", str(model), "--out", str(tmp_path / "a.png")])


def test_help_and_version(capsys):
    printed = []
    for arguments in (["--help"], [], ["help"], ["render", "--help"], ["help", "render"], ["--version"]):
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        printed.append(capsys.readouterr().out)
    whole, alone, by_word, render, render_by_word, version = printed
    assert whole == alone == by_word and render == render_by_word
    assert all(f"\n    {name} " in whole for name in COMMANDS)
    assert version.startswith("tsplat 0.")


def test_examples_of_help_are_command_lines():
    parser = build_parser()
    for name, command in parser.commands.items():
        examples = re.findall(r"^  tsplat (.+)$", command.epilog, re.M)
        assert examples and all(example.split()[0] == name for example in examples)
        for example in examples:
            _, rest = build_parser().parse_known_args(example.split())
            if name != "view":  # which takes models from the rest
                assert not rest or name == "train", example
                if name == "train":
                    parse(rest)


HUGE_PAGES = """
import sys
from tsplat.cli import main
try:
    main(["--version"])
except SystemExit:
    import torch
    tensor = torch.ones(8, 1 << 20)
    start = tensor.data_ptr()
    maps, inside = open("/proc/self/smaps").read().splitlines(), False
    for line in maps:
        words = line.split()
        if "-" in words[0]:
            low, high = (int(word, 16) for word in words[0].split("-"))
            inside = low <= start < high
        elif inside and words[0] == "VmFlags:":
            print("hg" in words)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="huge pages")
@pytest.mark.parametrize(("given", "expected"), [(None, "True"), ("0", "False")])
def test_commands_ask_for_huge_pages(given, expected, forks, monkeypatch):
    """The mapping of a large tensor is marked for them, unless the environment says otherwise."""
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    if given is not None:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", given)
    found = forks.run(HUGE_PAGES)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split()[-1] == expected


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


@pytest.mark.slow
def test_doctor_and_reading_a_ply_need_no_optional_packages(model, forks):
    found = forks.run(WITHOUT_EXTRAS, model)
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""


WITHOUT_TRAINING = """
import json, sys
from tsplat.cli import main
for command in json.loads(sys.argv[1]):
    assert main(command) == (2 if "missing.ply" in command else 0)
    loaded = [name for name in sys.modules if name.startswith("tsplat.training")]
    assert not loaded, (command, loaded)
"""


@pytest.mark.slow
def test_commands_on_models_import_nothing_of_training(model, tmp_path, forks):
    # A process of its own, as other tests import tsplat.training.
    size = ["--width", "16", "--height", "12"]
    commands = [
        ["render", str(model), "--out", "a.png", *size],
        ["render", str(model), "--out", "a.gif", "--trajectory", "orbit", "--frames", "2", *size],
        ["info", str(model)],
        ["convert", str(model), "a.splat"],
        ["export", str(model), "--out", "a.ply"],
        ["edit", str(model), "b.ply", "--decimate", "3", "--scale", "2"],
        ["info", "missing.ply"],
    ]
    found = forks.run(WITHOUT_TRAINING, json.dumps(commands), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert {"a.png", "a.gif", "a.splat", "a.ply"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_python_m_tsplat_runs_the_command():
    command = [sys.executable, "-m", "tsplat", "render", "missing.ply", "--out", "a.png"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "tsplat: error: missing.ply: no such file or folder\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_outside_training_prints_one_line(tmp_path):
    # Jobs in the background start with SIGINT ignored, and children inherit that.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "import time, tsplat.scene.capture.procedural as p; trace = p.trace\n"
    # Only the first call sleeps: it runs in a thread, which the command waits for.
    code += "first = iter([True])\n"
    code += "p.trace = lambda *a: (next(first, 0) and (print('up', flush=True), time.sleep(5)), trace(*a))[-1]\n"
    code += "from tsplat.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "demo", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        assert (tmp_path / "run" / "lock").is_file()
        process.send_signal(signal.SIGINT)
        try:
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, error) == (130, "tsplat: interrupted\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("signum", "message"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")]
)
@pytest.mark.parametrize("words", [["view", str(ROOT / "README.md")], ["train", "scene", "--out", "run"]])
def test_signals_end_imports_with_one_line(words, signum, message, tmp_path):
    (tmp_path / "torch.py").write_text("print('importing', flush=True)\nimport time; time.sleep(60)")
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", code + "from tsplat_command import main; sys.exit(main())", *words]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    with subprocess.Popen(command, env=paths, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "importing\n"
            process.send_signal(signum)
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, error) == (128 + signum, f"tsplat: {message}\n")


@pytest.mark.slow
def test_command_runs_the_command_line():
    code = "import signal, sys, tsplat_command\nbefore, sys.argv[1:] = signal.getsignal(signal.SIGTERM), ['help']\n"
    code += "try: tsplat_command.main()\nfinally: assert signal.getsignal(signal.SIGTERM) is before"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "") and found.stdout.startswith("usage: tsplat")


def test_version_needs_no_imports(tmp_path):
    (tmp_path / "torch.py").write_text("raise AssertionError")
    code = "import sys; from tsplat_command import main; sys.argv[1:] = ['--version']; sys.exit(main())"
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    found = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"tsplat {__version__}\n", "")


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"]])
def test_overview_needs_no_imports(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    with pytest.raises(SystemExit, match="0"):
        cli.main(words)
    expected = capsys.readouterr().out
    (tmp_path / "torch.py").write_text("raise AssertionError")
    code = f"import sys; from tsplat_command import main; sys.argv[1:] = {words}; sys.exit(main())"
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT))), "COLUMNS": "30"}
    found = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, expected, "")


WITHOUT_TORCH = """
import json, sys
from tsplat_command import main
sys.argv[1:] = json.loads(sys.argv[1])
try:
    status = main()
except SystemExit as end:
    status = end.code
assert "torch" not in sys.modules
sys.exit(status)
"""

MISTAKES = [
    "trian",
    "train --otu run",
    "train scene --out run --steps x",
    "train scene",
    "render --wdth 3",
    "blocks plna",
]


@pytest.mark.parametrize(
    "words", [*([*name.split(), "--help"] for name in (*COMMANDS, "blocks plan")), *MISTAKES], ids=str
)
def test_help_and_mistakes_do_not_import_torch(words):
    status, words = (2, words.split()) if isinstance(words, str) else (0, words)
    command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(words)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == status, found.stderr
    assert found.stderr.startswith("tsplat: error:") if status else found.stdout.startswith("usage: tsplat")


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["train", "--resume", "run"]])
def test_help_in_a_narrow_terminal(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--help"])
    expected = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "1")
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--help"])
    assert capsys.readouterr().out == expected
    assert "usage: tsplat" in expected


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_view_whose_address_cannot_be_printed_ends(model):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tsplat", "view", str(model)]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert found.returncode == 2
    assert found.stderr == "tsplat: error: standard output: No space left on device\n"


@pytest.mark.parametrize("words", [["--quiet", "eval", "run"], ["eval", "run", "--quiet"]])
def test_quiet_commands_print_warnings_only(monkeypatch, capsys, words):
    def evaluate_run(_run, **_options):
        print("4 views\nwarning: something", flush=True)
        print("mean 20 dB")

    monkeypatch.setattr(training, "evaluate_run", evaluate_run)
    assert cli.main(words) == 0
    assert capsys.readouterr() == ("", "warning: something\n")


def test_quiet_commands_print_their_results(model, capsys):
    assert cli.main(["info", str(model), "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("Gaussians ")


def test_verbose_commands_print_tracebacks_and_logs(monkeypatch, capsys):
    def evaluate_run(_run, **_options):
        logging.getLogger("tsplat").info("a reason")
        raise ArgumentError("run: expected something else")

    monkeypatch.setattr(training, "evaluate_run", evaluate_run)
    assert cli.main(["eval", "run"]) == 2
    brief = capsys.readouterr().err
    assert cli.main(["eval", "run", "--verbose"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [f"{lines[-1]}\n", *lines[:2]] == [brief, "a reason", "Traceback (most recent call last):"]
    assert not logging.getLogger("tsplat").handlers
    assert cli.main(["--quiet", "--verbose", "doctor"]) == 2
