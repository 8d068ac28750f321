"""Tests of the stages of COLMAP as processes: how they end, without COLMAP."""

import os
import resource
import signal

import pytest

from tsplat.errors import FileError, MissingExtraError
from tsplat.scene.capture import colmap_pipeline
from tsplat.scene.capture.colmap_pipeline import Pipeline, Reconstruction

START = """
import json, os, signal, sys
request = json.loads(sys.stdin.readline())
def answer(value): print(json.dumps(value), flush=True)
"""


@pytest.fixture
def pipeline(tmp_path):
    """A pipeline of two photographs, which notes its progress."""
    progress = []
    found = Pipeline(tmp_path / "photos", tmp_path, 2, lambda *values: progress.append(values), 0)
    found.progress = progress
    found.models.mkdir()
    return found


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that makes all stages run a program in the place of COLMAP."""

    def write(text):
        path = tmp_path / "program.py"
        path.write_text(START + text)
        monkeypatch.setattr(colmap_pipeline, "PROGRAM", path)

    return write


def test_progress_and_result_of_a_stage(pipeline, program, tmp_path):
    program("""
print("a line that is no answer", file=sys.stderr, flush=True)
for n in (2, 3):
    answer([n])
assert request["stage"] == "cameras" and request["best"]
answer({"result": [{"names": ["a", "b"], "points": 7, "error": 0.5}]})
os.abort()  # what follows an answer does not matter
""")
    assert pipeline.reconstruct(tmp_path / "sparse") == [Reconstruction(("a", "b"), 7, 0.5)]
    assert pipeline.progress[-1] == ("cameras", 2, 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'sys.stderr.write("F20261128 12:00 7 a.cc:1] Check failed: disk I/O error\\n*** SIG ***\\n"); os.abort()',
            "Check failed: disk I/O error$",
        ),
        ("sys.stderr.write(\"terminate called\\n  what():  no memory for it\\n\"); os.abort()", "no memory for it$"),
        ('os.abort()', r"it crashed \(SIGABRT\)$"),
        ('os.kill(os.getpid(), signal.SIGKILL)', "the system killed it, as it does where memory is short"),
        ("sys.exit(7)", "it ended with status 7$"),
        ('answer({"error": "no such thing", "type": "RuntimeError"})', "no such thing$"),
        ('sys.stdout.write("{\\"result")', "it ended with status 0$"),
    ],
)  # fmt: skip
def test_end_without_a_result_is_an_error_in_words(pipeline, program, text, reason):
    program(text)
    with pytest.raises(FileError, match=rf"photos: COLMAP failed in stage 'matches': {reason}"):
        pipeline.match("exhaustive")


@pytest.mark.parametrize("size", [60_000, colmap_pipeline.GROWTH_BYTES])
def test_full_disk_is_told_whatever_colmap_says(pipeline, program, size):
    program('answer({"error": "No registered database factory succeeded.", "type": "RuntimeError"})')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    pipeline.database.write_bytes(b"a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(FileError, match=r"succeeded\.; the disk of the scene is full .*: free some space"):
            pipeline.match("exhaustive")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_errors_with_types_of_their_own(pipeline, program):
    program('answer({"error": "std::exception", "type": "MemoryError"})')
    with pytest.raises(MemoryError):
        pipeline.match("exhaustive")
    program('answer({"error": "libX is missing", "type": "ImportError"})')
    with pytest.raises(MissingExtraError, match=r"libX is missing.*pip install 'tsplat\[train\]'"):
        pipeline.match("exhaustive")


def test_interrupt_ends_the_process(pipeline, program, tmp_path):
    program("""
open(request["best"], "w").write(str(os.getpid()))
signal.pause()
""")
    path = tmp_path / "pid"

    def interrupt(*_):
        if path.exists() and path.read_text():
            raise KeyboardInterrupt

    pipeline.on_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        pipeline.reconstruct(path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("names", [["a", "b"], ["a"]])
@pytest.mark.parametrize("points", [0, 52, 53, 900])
def test_model_gets_points_but_loses_none(pipeline, program, tmp_path, names, points):
    program(f"""
os.mkdir(request["result"])
open(request["result"] + "/points3D.bin", "w").write("new")
answer({{"result": {{"names": {names}, "points": {points}, "error": 0.5}}}})
""")
    folder = tmp_path / "sparse"
    folder.mkdir()
    (folder / "points3D.bin").write_text("old")
    before = Reconstruction(("a", "b"), 53, 0.4)
    found, problem = pipeline.add_points(before, folder)
    better = points > 53 and len(names) == 2
    assert found == (Reconstruction(("a", "b"), points, 0.5) if better else before)
    assert (folder / "points3D.bin").read_text() == ("new" if better else "old")
    assert problem == ""


def test_model_is_kept_where_adding_points_crashes(pipeline, program, tmp_path):
    program("os.abort()")
    before = Reconstruction(("a", "b"), 53, 0.4)
    found, problem = pipeline.add_points(before, tmp_path)
    assert found == before
    assert "added no points of two photographs: " in problem
    assert "it crashed (SIGABRT)" in problem
