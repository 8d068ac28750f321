"""Runs commands whose output cannot be written: `python -m tests.tools.bad_disks full outputs calls --count 20 --seed
0`.

    full      the file system is full: ten sizes, from 0 bytes to more than the command writes
    outputs   the output is a link, a mount point, the current folder or another kind of folder, is read-only, or is
              written by two commands at the same time
    calls     a random system call on the output fails (requires strace)

A command must write its result or exit with an error message. Afterwards, the output must be either the old result or
the new one, and the command must succeed when it is repeated with enough space. The tool must be allowed to mount file
systems. It prints a line for each case and exits with 1 if a case fails.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.captures import write_photos, write_scene
from tests.support.forks import Forks
from tests.support.model_files import random_gaussians
from tests.support.paths import ROOT
from tsplat.scene import read_capture, read_model, write_ply
from tsplat.training import read_newest

TRAIN = "--steps 6 --save-every 2 --eval-every 100 --test-every 0 --device cpu --backend torch --preset fixed"
RENDER = "--width 16 --height 12 --backend torch --trajectory orbit --frames"
N_OLD, N_NEW = 20, 30
"""Numbers of Gaussians in the old and in the new model."""

FRACTIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.3, 3.0, 8.0, 25.0)
"""Sizes of the file system relative to the size of the output. COLMAP temporarily uses much more space than its
output."""

SYSTEM_CALLS = "openat,write,pwrite64,mkdir,rename,unlink,unlinkat,rmdir,link,fsync,fdatasync,ftruncate,chmod"
TEMPORARY = re.compile(r"\.(step_|gone_|tsplat-|out\.).*|\.(.*\.)?[0-9a-f]{8}|prepared-\d+")
"""Names of temporary files, which a command must remove unless it is killed."""

PROGRAM = """
import os, subprocess, sys, time
_, strace, *words = sys.argv
if strace:
    subprocess.Popen([*strace.split(), "-p", str(os.getpid())], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while "TracerPid:\\t0\\n" in open("/proc/self/status").read():
        time.sleep(0.01)
sys.argv = ["tsplat", *words]
from tsplat import cli
sys.exit(cli.main(words))
"""


@dataclass(frozen=True)
class Command:
    """A command that writes its output to ``{out}``.

    Attributes:
        words: Command line. ``{inputs}`` is the folder with the inputs of all commands.
        is_complete: Returns whether the output is complete.
        before: Name of the old output in the folder of inputs. It is copied to the output before the command runs.
        is_kept: Returns whether the output is the old one or a later state of it.
        resumed: Command line that resumes a started run, if it differs from `words`.
        end: Suffix of the output's name.
        is_tried: Whether `full` and `outputs` run the command. Tests of the command line cover the other commands.
    """

    words: str
    is_complete: Callable[[Path], bool]
    before: str | None = None
    is_kept: Callable[[Path], bool] = lambda _: True
    resumed: str | None = None
    end: str = ""
    is_tried: bool = True

    def write_before(self, inputs: Path, out: Path) -> None:
        """Copies the old output to `out`."""
        if self.before is not None:
            copy(inputs / self.before, out)


def is_finished(run: Path) -> bool:
    return read_newest(run)[1].step == 6 and (run / "metrics.json").is_file()


def is_started(run: Path) -> bool:
    """Returns whether the newest checkpoint is valid and not older than the one before the command."""
    _, checkpoint, errors = read_newest(run)
    return not errors and checkpoint.step >= 2


def holds(n: int) -> Callable[[Path], bool]:
    return lambda path: len(read_model(path)) == n


def has_frames(n: int) -> Callable[[Path], bool]:
    return lambda folder: len(list(folder.glob("*.png"))) == n


COMMANDS = {
    "prepare": Command("prepare {inputs}/photos --out {out}", lambda out: len(read_capture(out).train) >= 3),
    "train": Command(f"train {{inputs}}/scene --out {{out}} {TRAIN}", is_finished, resumed="train --resume {out}"),
    "resume": Command("train --resume {out}", is_finished, "stopped", is_started),
    "blocks train": Command(
        f"blocks train {{out}} {TRAIN}",
        lambda plan: is_finished(plan / "block_0") and is_finished(plan / "block_1"),
        "plan",
        lambda plan: is_started(plan / "block_0"),
    ),
    "blocks merge": Command(
        "blocks merge {inputs}/trained --out {out}", holds(10), "old.ply", holds(N_OLD), end=".ply"
    ),
    "blocks plan": Command(
        "blocks plan {inputs}/scene --out {out} --grid 2 1", lambda out: (out / "plan.json").is_file(), is_tried=False
    ),
    "sog": Command("convert {inputs}/new.ply {out} --format sog", holds(N_NEW), "sog", holds(N_OLD), is_tried=False),
    "streamed": Command(
        "convert {inputs}/new.ply {out} --format streamed-sog", holds(N_NEW), "streamed", holds(N_OLD), is_tried=False
    ),
    "render": Command(
        f"render {{inputs}}/new.ply --out {{out}} {RENDER} 3", has_frames(3), "frames", has_frames(5), is_tried=False
    ),
}


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def used(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


@contextlib.contextmanager
def mounted(folder: Path, size: int = 1 << 28) -> Iterator[Path]:
    """Mounts an empty file system of `size` bytes and yields it."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={max(size, 4096)}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


class Runner:
    """Runs ``tsplat`` in processes forked from a process that has imported PyTorch."""

    MODULES = ("torch", "scipy.spatial", "PIL.Image", "matplotlib.pyplot", "tsplat.training")

    def __init__(self) -> None:
        self.forks = Forks((*self.MODULES, "tsplat.cli"))

    def __call__(self, words: str, *, cwd: Path = ROOT, strace: str = "") -> tuple[int, str]:
        """Runs a command line. Returns the exit status and the output."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "999"}
        done = self.forks.run(PROGRAM, strace, *words.split(), cwd=cwd, environment=environment, timeout=600)
        return done.returncode, done.stdout + done.stderr


Run = Callable[..., tuple[int, str]]


def write_inputs(folder: Path, run: Run) -> None:
    """Writes the inputs and the old outputs of the commands."""
    folder.mkdir()
    write_photos(folder / "photos")
    write_scene(folder / "scene", points=10)
    for name, n in (("old", N_OLD), ("new", N_NEW)):
        write_ply(folder / f"{name}.ply", random_gaussians(n, 1))

    def succeed(words: str) -> None:
        status, output = run(words)
        if status:
            raise RuntimeError(output)

    succeed(f"convert {folder}/old.ply {folder}/sog --format sog")
    succeed(f"convert {folder}/old.ply {folder}/streamed --format streamed-sog")
    succeed(f"render {folder}/old.ply --out {folder}/frames {RENDER} 5")
    succeed(f"train {folder}/scene --out {folder}/stopped {TRAIN} --stop-after 2")
    succeed(f"blocks plan {folder}/scene --out {folder}/plan --grid 2 1")
    succeed(f"blocks train {folder}/plan 0 {TRAIN} --stop-after 2")
    copy(folder / "plan", folder / "trained")
    succeed(f"blocks train {folder}/trained {TRAIN}")


class Cases:
    """Runs commands in a folder and counts the results. `run` and `other` can run two commands at the same time."""

    def __init__(self, folder: Path, run: Run, other: Run) -> None:
        self.folder, self.inputs, self.disk = folder, folder / "inputs", folder / "disk"
        self.run, self.other = run, other
        self.counts = collections.Counter[str]()

    def start(self, command: Command, out: Path | str, words: str | None = None, **options: object) -> tuple[int, str]:
        line = (words or command.words).format(inputs=self.inputs, out=out)
        return self.run(line, **options)  # type: ignore[arg-type]

    def check(self, name: str, command: Command, out: Path, ended: tuple[int, str], *, alone: bool = True) -> None:
        """Checks, counts and prints the result of a command. Repeats the command only if it ran `alone`."""
        status, output = ended
        try:
            problem = self.problem(command, out, status, output, alone)
        except Exception:  # the output cannot be read
            problem = traceback.format_exc(limit=-2)
        ending = "wrong" if problem else "error" if status else "result"
        self.counts[ending] += 1
        last = (output.strip().splitlines() or [""])[-1]
        print(f"{name}: {ending} ({status}): {last.replace(str(self.folder), '')[-300:]}", flush=True)
        if problem:
            print(f"    {problem}\n{output[-3000:]}\n    {sorted(map(str, self.disk.rglob('*')))}", flush=True)

    def problem(self, command: Command, out: Path, status: int, output: str, alone: bool) -> str | None:
        if status not in (0, 1, 2) or "Traceback" in output or not output:
            return "no error message"
        if status == 0:
            return None if command.is_complete(out) else "the result is not complete"
        if command.before and not command.is_kept(out) and not command.is_complete(out):
            return "what was there before is lost"
        if not alone:
            return None
        if left := [path.name for path in self.disk.rglob("*") if TEMPORARY.fullmatch(path.name)]:
            return f"{left} are left"
        if command is COMMANDS["prepare"]:
            return None if not out.exists() or not os.listdir(out) else "files are left"
        repeated = self.folder / f"repeated{command.end}"
        if out.exists():
            copy(out, repeated)
        words = command.resumed if command.resumed and (repeated / "checkpoints").exists() else None
        status, output = self.start(command, repeated, words)
        is_complete = status == 0 and command.is_complete(repeated)
        (shutil.rmtree if repeated.is_dir() else Path.unlink)(repeated)  # type: ignore[operator]
        return None if is_complete else f"repeated: {status} {output[-2000:]}"

    def full(self, name: str, command: Command) -> None:
        out = self.disk / f"out{command.end}"
        with mounted(self.disk):
            command.write_before(self.inputs, out)
            before = used(self.disk)
            status, output = self.start(command, out)
            if status:
                raise RuntimeError(output)
            written = used(self.disk) - (0 if command.end else before)
        for fraction in FRACTIONS:
            size = before + int(written * fraction)
            with mounted(self.disk, size):
                command.write_before(self.inputs, out)
                ended = self.start(command, out)
                self.check(f"full, {name}, space for {fraction:.0%} of {written >> 10} KiB", command, out, ended)

    def outputs(self, name: str, command: Command) -> None:
        out, target = self.disk / f"out{command.end}", self.disk / "folder" / f"target{command.end}"
        with mounted(self.disk):
            target.parent.mkdir()
            if not command.end:
                target.mkdir()
            command.write_before(self.inputs, target)
            out.symlink_to(target)
            self.check(f"link, {name}", command, out, self.start(command, out))
            if not out.is_symlink():
                raise AssertionError("the link was replaced")
        with mounted(self.disk), mounted(self.disk / "out") as folder:
            out = folder / "a.ply" if command.end else folder
            command.write_before(self.inputs, out)
            self.check(f"mount point, {name}", command, out, self.start(command, out))
            if command.end:
                self.check(f"mount point itself, {name}", command, out, self.start(command, folder))
        with mounted(self.disk):
            (folder := self.disk / "out").mkdir()
            out = folder / "a.ply" if command.end else folder
            command.write_before(self.inputs, out)
            self.check(f"current folder, {name}", command, out, self.start(command, ".", cwd=folder))
        out = self.disk / f"out{command.end}"
        with mounted(self.disk):
            out.mkdir()
            if not command.end:
                command.write_before(self.inputs, out)
            (out / "images").mkdir()
            files = [out / "notes.txt", out / "images" / "0.png"]
            for file in files:
                file.write_text("mine")
            ended = self.start(command, out)
            self.check(f"other content, {name}", COMMANDS["train"] if ended[0] else command, out, ended, alone=False)
            if {file.read_text() for file in files} != {"mine"}:
                raise AssertionError("other content was replaced")
        with mounted(self.disk):
            command.write_before(self.inputs, out)
            subprocess.run(["mount", "-o", "remount,ro", self.disk], check=True)
            self.check(f"read-only, {name}", command, out, self.start(command, out))
        with mounted(self.disk), concurrent.futures.ThreadPoolExecutor(2) as threads:
            command.write_before(self.inputs, out)
            words = command.words.format(inputs=self.inputs, out=out)
            for ended in list(threads.map(lambda run: run(words), (self.run, self.other))):
                self.check(f"two at once, {name}", command, out, ended, alone=False)

    def calls(self, name: str, command: Command, count: int, draws: random.Random) -> None:
        out, log = self.disk / f"out{command.end}", self.folder / "calls.txt"
        strace = f"strace -f -qq -y -o {log} -e trace={SYSTEM_CALLS}"
        self.disk.mkdir()
        command.write_before(self.inputs, out)
        status, output = self.start(command, out, strace=strace)
        if status:
            raise RuntimeError(output)
        shutil.rmtree(self.disk)
        numbers, found = collections.Counter[tuple[str, str]](), []
        for line in log.read_text(errors="replace").splitlines():
            if match := re.match(r"(\d+) +(\w+)\(", line):
                numbers[match.groups()] += 1  # type: ignore[index]
                if f"{self.disk}/" in line and "O_RDONLY" not in line:
                    found.append((match[2], numbers[match.groups()]))  # type: ignore[index]
        for call, k in sorted(draws.sample(found, min(count, len(found)))):
            error = draws.choice(("ENOSPC", "EIO"))
            self.disk.mkdir()
            command.write_before(self.inputs, out)
            ended = self.start(command, out, strace=f"{strace} -e inject={call}:error={error}:when={k}")
            self.check(f"calls, {name}, {error} of {call} {k}, 1 of {len(found)}", command, out, ended)
            shutil.rmtree(self.disk)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="+", choices=("full", "outputs", "calls"))
    parser.add_argument("--commands", nargs="+", choices=COMMANDS)
    parser.add_argument("--count", type=int, default=20, help="system calls of each command")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(Path(folder), Runner(), Runner())
        write_inputs(cases.inputs, cases.run)
        cases.other("--version")  # starts its process
        for part in options.parts:
            for name, command in COMMANDS.items():
                if options.commands and name not in options.commands:
                    continue
                if part == "calls":
                    cases.calls(name, command, options.count, random.Random(options.seed))
                elif command.is_tried:
                    getattr(cases, part)(name, command)
    print(f"{sum(cases.counts.values())} cases: {dict(cases.counts)}")
    sys.exit(cases.counts["wrong"] > 0)


if __name__ == "__main__":
    main()
