"""Outputs of every command that writes: nothing is lost, and what is wrong is said in one sentence."""

import base64
import contextlib
import json
import os
import shutil
import socket
import stat
import sys
from pathlib import Path

import pytest
import torch

from tests.support.captures import write_scene
from tests.support.slow import slow_after
from tsplat import cli
from tsplat.cli.parser import build_parser
from tsplat.scene import read_model, write_gltf, write_model
from tsplat.training import RunConfig, train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")

SIZE = ["--width", "16", "--height", "12", "--backend", "torch"]
VIDEO = [*SIZE, "--trajectory", "orbit", "--frames", "2"]
FILES = {
    "convert .ply": ["convert", "{model}", "{out}.ply"],
    "convert .splat": ["convert", "{model}", "{out}.splat"],
    "convert .spz": ["convert", "{model}", "{out}.spz"],
    "convert .sog": ["convert", "{model}", "{out}.sog"],
    "convert .html": ["convert", "{model}", "{out}.html"],
    "edit": ["edit", "{model}", "{out}.ply", "--scale", "2"],
    "export": ["export", "{run}", "--out", "{out}.compressed.ply"],
    "mesh": ["mesh", "{model}", "--out", "{out}.ply", "--views", "6", "--size", "48", "--resolution", "16"],
    "render": ["render", "{model}", "--out", "{out}.png", *SIZE],
    "render .gif": ["render", "{model}", "--out", "{out}.gif", *VIDEO],
    "report": ["report", "{run}", "--out", "{out}.html"],
}
"""Commands that write a file."""

FOLDERS = {
    "convert folder": ["convert", "{model}", "{out}", "--format", "sog"],
    "render folder": ["render", "{model}", "--out", "{out}", *VIDEO],
    "eval": ["eval", "{run}", "--out", "{out}"],
    "train": ["train", "{scene}", "--out", "{out}", "--steps", "2", "--backend", "torch"],
    "demo": ["demo", "--out", "{out}", "--steps", "1", "--backend", "torch"],
    "prepare": ["prepare", "{scene}/images", "--out", "{out}"],
}
"""Commands that write a folder."""

KEPT = b"what was there before"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a scene and a run on it."""
    folder = tmp_path_factory.mktemp("outputs")
    write_scene(folder / "scene", n=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        umask = os.umask(0o007)
        try:
            train(
                RunConfig(scene=str(folder / "scene"), steps=2, backend="torch", sh_degree=0, test_every=4),
                folder / "run",
            )
        finally:
            os.umask(umask)
    return folder


@pytest.fixture
def command(finished, model, tmp_path, capsys):
    """Runs a command that writes `out`; returns its status and what it prints on standard error."""

    def run(words, out):
        names = dict(model=model, run=finished / "run", scene=finished / "scene", out=out)
        status = cli.main([word.format(**names) for word in words])
        return status, capsys.readouterr().err

    return run


def suffix(words):
    return next(word for word in words if word.startswith("{out}")).removeprefix("{out}")


def one_sentence(found, *names):
    status, error = found
    assert status == 2
    assert error.startswith("tsplat: error: ")
    assert error.count("\n") == 1
    assert all(str(name) in error for name in names), error


def test_every_command_that_writes_is_tested():
    commands = next(action for action in build_parser()._actions if action.dest == "command").choices
    # test_blocks.py and test_hub.py have those of the last three.
    untested = {"view", "info", "doctor", "blocks", "share", "pull"}
    assert set(commands) - untested == {words[0] for words in (*FILES.values(), *FOLDERS.values())}


@pytest.mark.parametrize("words", slow_after(2, FILES.values()), ids=FILES)
def test_links_are_followed(command, words, tmp_path):
    end = suffix(words)
    (tmp_path / "away").mkdir()
    target, link = tmp_path / "away" / f"target{end}", tmp_path / f"link{end}"
    target.write_bytes(KEPT)
    link.symlink_to(target)
    assert command(words, tmp_path / "link")[0] == 0
    assert link.is_symlink()
    assert target.read_bytes() != KEPT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("kind", ["device", "pipe", "socket", "folder", "loop"])
@pytest.mark.parametrize("words", slow_after(3, FILES.values()), ids=FILES)
def test_what_is_no_file_is_refused(command, words, kind, tmp_path):
    path = tmp_path / f"a{suffix(words)}"
    with contextlib.ExitStack() as stack:
        if kind == "device":
            try:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("only root makes devices")
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(os.path.relpath(path))
        elif kind == "folder":
            if path.suffix == ".sog":
                pytest.skip("SOG is written into folders as well")
            path.mkdir()
        else:
            path.symlink_to(path.name)
        before = os.lstat(path)
        one_sentence(command(words, tmp_path / "a"), path)
        after = os.lstat(path)
        assert (after.st_mode, after.st_ino, after.st_rdev) == (before.st_mode, before.st_ino, before.st_rdev)
    assert {found.name for found in tmp_path.iterdir()} == {"models", path.name}


@pytest.mark.parametrize("words", slow_after(5, (FILES | FOLDERS).values()), ids=FILES | FOLDERS)
def test_folders_that_cannot_be_written_to(command, words, tmp_path):
    (tmp_path / "file").write_bytes(KEPT)
    one_sentence(command(words, tmp_path / "file" / "a"))
    assert (tmp_path / "file").read_bytes() == KEPT
    if sys.platform == "linux":
        one_sentence(command(words, "/proc/self/a"), "/proc/self")


@pytest.mark.parametrize("words", slow_after(3, FILES.values()), ids=FILES)
def test_full_disk_keeps_what_was_there(command, words, tmp_path):
    resource, signal = pytest.importorskip("resource"), pytest.importorskip("signal")
    path = tmp_path / f"a{suffix(words)}"
    path.write_bytes(KEPT)
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        status, error = command(words, tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    one_sentence((status, error), path, "File too large")
    assert path.read_bytes() == KEPT
    assert {found.name for found in tmp_path.iterdir()} == {"models", path.name}


def test_inputs_are_not_replaced(command, finished, model, tmp_path):
    content = model.read_bytes()
    one_sentence(command(["convert", "{model}", "{model}", "--crop", *["-9", "-9", "-9", "9", "9", "0"]], ""), model)
    (tmp_path / "link.ply").symlink_to(model)
    one_sentence(command(["convert", "{model}", "{out}.ply"], tmp_path / "link"), tmp_path / "link.ply")
    assert model.read_bytes() == content
    run = finished / "run"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for words in (
        ["report", "{run}", "--out", "{run}/config.json"],
        ["export", "{run}", "--out", "{run}/point_cloud.ply"],
        ["export", "{run}", "--out", "{run}/cameras.json", "--format", "ply"],
        ["render", "{run}", "--out", "{run}/curve.png", *SIZE],
        ["render", "{model}", "--out", "{run}/held_out", *VIDEO],
        ["eval", "{run}", "--out", "{run}/checkpoints"],
    ):
        one_sentence(command(words, ""), "run")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


READ = {
    "sog": ["meta.json", "means_l.webp", "scales.webp"],
    "streamed-sog": ["lod-meta.json", "0_0/meta.json", "0_0/quats.webp"],
    "gltf": ["a.gltf", "data.bin"],
}
"""Format -> files that reading a model of several files reads."""


@pytest.mark.parametrize("words", [["convert"], ["edit", "--scale", "2"]], ids=["convert", "edit"])
@pytest.mark.parametrize("format", READ)
def test_no_file_of_a_model_is_replaced(command, model, format, words, tmp_path):
    pytest.importorskip("scipy")
    folder = tmp_path / "a"
    if format == "gltf":
        write_gltf(folder.mkdir() or folder / "a.gltf", read_model(model))
        document = json.loads((folder / "a.gltf").read_text())
        buffer = document["buffers"][0]
        (folder / "data.bin").write_bytes(base64.b64decode(buffer["uri"].partition(",")[2]))
        buffer["uri"] = "data.bin"
        (folder / "a.gltf").write_text(json.dumps(document))
    else:
        write_model(folder, read_model(model), format=format)
    (tmp_path / "linked").symlink_to("a")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    source = folder / "a.gltf" if format == "gltf" else folder
    first = READ[format][0]
    outs = [[folder / name, "--format", "ply"] for name in READ[format]]
    outs += [[tmp_path / "linked" / name, "--format", "splat"] for name in READ[format]]
    outs += [[f"{folder}/../a/./{first}", "--format", "spz"]]
    for name in READ[format]:
        os.link(folder / name, tmp_path / f"hard_{Path(name).name}")
        outs += [[tmp_path / f"hard_{Path(name).name}", "--format", "ply"]]
    if format != "gltf":
        outs += [[out, "--format", format] for out in (folder, f"{folder}/", tmp_path / "linked", folder / first)]
    for out, *options in outs:
        for read in (source, folder / first):
            one_sentence(command([words[0], str(read), str(out), *words[1:], *options], ""), "would replace")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert command([words[0], str(source), str(folder / "new.ply"), *words[1:]], "")[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_log_is_not_replaced(command, tmp_path):
    (tmp_path / "log").write_bytes(KEPT)
    with (tmp_path / "log").open("ab") as file:
        path = f"/dev/fd/{file.fileno()}"
        one_sentence(command(["convert", "{model}", path, "--format", "ply"], ""), path, "open file of a process")
    assert (tmp_path / "log").read_bytes() == KEPT


@pytest.mark.parametrize("words", [FOLDERS["train"], FOLDERS["demo"]], ids=["train", "demo"])
def test_results_of_other_programs_are_not_replaced(command, words, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "point_cloud.ply").write_bytes(KEPT)
    one_sentence(command(words, tmp_path / "a"), "point_cloud.ply")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["point_cloud.ply"]
    assert (tmp_path / "a" / "point_cloud.ply").read_bytes() == KEPT


def test_umask_decides_on_modes(command, finished, tmp_path):
    """A group that shares a run can evaluate and resume it."""
    for path in (finished / "run").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o770 if path.is_dir() else 0o660), path
    umask = os.umask(0o002)
    try:
        for name in ("convert .ply", "convert folder", "convert .html", "render .gif", "report", "eval"):
            assert command((FILES | FOLDERS)[name], tmp_path / name)[0] == 0
    finally:
        os.umask(umask)
    shutil.rmtree(tmp_path / "models")
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o775 if path.is_dir() else 0o664), path
