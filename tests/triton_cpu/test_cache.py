"""The cache of machine code on disk."""

import os

import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import cache, launcher, machine


@triton.jit
def _scale_kernel(x, out, C: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(x + i) * C)


@pytest.fixture
def compilations(monkeypatch):
    """Names of the kernels compiled since."""
    compiled = []
    compile_object = machine.compile_object

    def noted(module, target):
        compiled.append(target.cpu)
        return compile_object(module, target)

    monkeypatch.setattr(machine, "compile_object", noted)
    return compiled


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def scale(factor=2.0, dtype=torch.float32):
    """Launches with nothing in memory, as a new process would."""
    x, out = torch.arange(16, dtype=dtype), torch.zeros(16, dtype=dtype)
    launcher.Launcher(_scale_kernel).launch((1,), (x, out, factor), {})
    assert torch.equal(out, x * factor)


def test_the_second_process_does_not_compile(directory, compilations):
    scale()
    (entry,) = directory.rglob("*.o")
    assert len(compilations) == 1
    before = entry.stat()
    scale()
    assert len(compilations) == 1
    assert entry.stat().st_mtime_ns == before.st_mtime_ns


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """A user without an entry in /etc/passwd, and without HOME, whose temporary files are in a folder of the test."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr("pwd.getpwuid", dict().__getitem__)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(triton.knobs.cache, "home_dir", "~/")
    monkeypatch.chdir(tmp_path)
    before = vars(triton.knobs.cache).copy()
    yield tmp_path / f"triton-{os.getuid()}"
    vars(triton.knobs.cache).clear()
    vars(triton.knobs.cache).update(before)


@pytest.mark.parametrize("variable", [None, "~/cache", "~nobody-of-this-name/cache"])
def test_without_a_home_machine_code_is_in_the_temporary_directory(homeless, compilations, monkeypatch, variable):
    if variable:
        monkeypatch.setenv("TRITON_CACHE_DIR", variable)
    cache.set_directory()
    assert triton.knobs.cache.dir == str(homeless / "cache")
    assert homeless.stat().st_mode & 0o777 == 0o700
    scale()
    assert list(homeless.rglob("*.o"))
    assert cache.problem() is None
    cache.set_directory()
    scale()
    assert len(compilations) == 1
    assert [path.name for path in homeless.parent.iterdir()] == [homeless.name]


def test_temporary_directories_of_others_are_not_used(homeless):
    """Machine code is loaded from there: a link, or a folder that others can write to, may be somebody's trap."""
    (homeless.parent / "trap").mkdir()
    homeless.symlink_to(homeless.parent / "trap")
    cache.set_directory()
    first = triton.knobs.cache.dir
    homeless.unlink()
    homeless.mkdir()
    homeless.chmod(0o777)
    assert os.path.dirname(first) == str(homeless.parent)
    assert first != cache._own_temporary() != str(homeless / "cache")
    assert not list((homeless.parent / "trap").iterdir())


def test_a_tilde_that_no_shell_expanded_is_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "~/cache")
    before = vars(triton.knobs.cache).copy()
    try:
        cache.set_directory()
        assert triton.knobs.cache.dir == str(tmp_path / "cache")
    finally:
        vars(triton.knobs.cache).clear()
        vars(triton.knobs.cache).update(before)


def test_entries_differ_by_constants_types_and_cpu(directory, compilations, monkeypatch):
    scale()
    scale(3.0)
    scale(dtype=torch.float64)
    assert len(compilations) == 3
    if compilations[0] == "x86-64-v4":
        monkeypatch.setenv("TSPLAT_CPU", "x86-64-v3")
        scale()
        assert compilations[3:] == ["x86-64-v3"]
    monkeypatch.setattr(cache, "package_hash", lambda: "another version")
    n = len(compilations)
    scale()
    assert len(compilations) == n + 1


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "other"])
def test_a_damaged_entry_is_rebuilt(damage, directory, compilations):
    scale()
    (entry,) = directory.rglob("*.o")
    content = entry.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    damaged = {"empty": b"", "truncated": content[:-1], "flipped": bytes(flipped), "other": b"text\n" * 99}
    entry.write_bytes(damaged[damage])
    scale()
    assert len(compilations) == 2
    assert entry.read_bytes() == content


def test_a_directory_that_cannot_be_written_leaves_code_in_memory(directory, compilations):
    directory.write_text("a file where the directory should be")
    scale()
    scale()
    assert len(compilations) == 2
    assert directory.read_text() == "a file where the directory should be"


def test_no_temporary_files_are_left(directory, monkeypatch):
    scale()
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["_scale_kernel.o"]

    def fail(source, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", fail)
    scale(5.0)
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["_scale_kernel.o"]


def test_directory_follows_triton(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "given"))
    assert cache._path("kernel", "key").is_relative_to(tmp_path / "given")


SCRIPT = """
import os
import torch
from tests.triton_cpu.test_cache import _scale_kernel
from tsplat.triton_cpu import launch
ready, start = os.pipe()
children = []
for _ in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(start)
        os.read(ready, 1)  # returns in all children when the parent closes the other end
        x, out = torch.arange(16.0), torch.zeros(16)
        launch(_scale_kernel, (1,), (x, out, 7.0))
        os._exit(0 if torch.equal(out, 7 * x) else 3)
os.close(start)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0] * 8, codes
"""


@pytest.mark.slow
def test_eight_processes_fill_one_empty_cache_at_once(directory, forks):
    found = forks.run(SCRIPT)
    assert found.returncode == 0, found.stderr
    assert [path.name for path in directory.rglob("*") if path.is_file()] == ["_scale_kernel.o"]


FORK_OF_A_COMPILER = """
import ctypes, os, signal, threading, time
from tsplat.triton_cpu import cache
signal.alarm(120)
"""

THE_SAME_ENTRY = """
with cache.compiling("kernel", "key"):
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        with cache.compiling("kernel", "key"):
            os._exit(0)
    time.sleep(1)  # until the child waits
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""

A_CHILD_THAT_STAYS = """
def wait():
    with cache.compiling("kernel", "key"):
        pass
with cache.compiling("kernel", "key"):
    if ctypes.PyDLL(None).fork() == 0:  # as code in C++ may, without Python's hooks
        time.sleep(60)
        os._exit(0)
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while len(cache._locked) < 2:
        time.sleep(0.01)
waiting.join(60)
assert not waiting.is_alive()
"""

A_PARENT_THAT_ENDS = """
child = os.fork()
if child == 0:
    with cache.compiling("kernel", "key"):
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
os.waitpid(child, 0)
with cache.compiling("kernel", "key"):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [THE_SAME_ENTRY, A_CHILD_THAT_STAYS, A_PARENT_THAT_ENDS], ids=range(3))
def test_forked_children_do_not_keep_an_entry_locked(script, directory, forks):
    found = forks.run(FORK_OF_A_COMPILER + script)
    assert found.returncode == 0, found.stderr


READ_ONLY_HOME = """
import torch
from tests.triton_cpu.test_cache import _scale_kernel
from tsplat.triton_cpu import launch
x, out = torch.arange(16.0), torch.zeros(16)
launch(_scale_kernel, (1,), (x, out, 7.0))
assert torch.equal(out, 7 * x)
"""


@pytest.mark.slow
def test_a_home_that_cannot_be_written(tmp_path, forks):
    """As on a read-only file system, a file in place of the home directory refuses new files even to root."""
    (tmp_path / "home").write_text("")
    environment = {**os.environ, "HOME": str(tmp_path / "home")}
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        environment.pop(name, None)
    found = forks.run(READ_ONLY_HOME, environment=environment)
    assert found.returncode == 0, found.stderr
