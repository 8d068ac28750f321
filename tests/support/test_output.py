"""Tests of output to readers that have ended, and to full disks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import WITHOUT_TORCH

SCRIPT = f"""{WITHOUT_TORCH}
from tsplat.support.output import protect_output
protect_output()
protect_output()  # once is enough
print("first")
sys.stdout.flush()
sys.stdin.read()
for _ in range(10_000):
    print("nobody reads this")
print("caf\\u00e9 \\udcff", file=sys.stderr)
"""

FULL_DISK = SCRIPT.replace("sys.stdin.read()", "protect_output(full_disk=True)").replace("sys.stdout.flush()", "")


def test_text_without_a_reader_is_discarded():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, **pipes) as process:
        assert process.stdout.readline() == b"first\n"
        process.stdout.close()
        process.stdin.close()
        error = process.stderr.read()
    assert process.returncode == 0
    assert error == b"caf\\xe9 \\udcff\n"


def run_script(script, out):
    return subprocess.run([sys.executable, "-c", script], stdout=out, stderr=subprocess.PIPE, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_text_for_a_full_disk_is_discarded_only_on_request():
    with open("/dev/full", "w") as full:
        process = run_script(FULL_DISK, full)
        warning = b"tsplat: standard output: No space left on device; what follows is not shown\n"
        assert (process.returncode, process.stderr) == (0, warning + b"caf\xc3\xa9 \\udcff\n")
        process = run_script(FULL_DISK.replace("full_disk=True", ""), full)
    assert process.returncode == 1
    assert process.stderr.endswith(b"OSError: [Errno 28] No space left on device: 'standard output'\n")


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors before the program starts")
def test_closed_output_does_not_fall_into_files(tmp_path):
    """The next opened file would get the descriptor of the closed output, and libraries would print into it."""
    code = WITHOUT_TORCH + "import os; from tsplat.support.output import protect_output; protect_output()"
    code += "; print(sys.stdout.isatty())"
    code += f"; file = open({str(tmp_path / 'file')!r}, 'w'); os.write(1, b'text'); os.write(2, b'text')"
    for closed in ("<&- >&- 2>&-", ">&-", "2>&-"):
        process = subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], check=False)
        assert process.returncode == 0
        assert not (tmp_path / "file").read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="needs limits of POSIX")
def test_log_larger_than_allowed_is_cut_off(tmp_path):
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    with open(tmp_path / "log", "w") as log:
        process = run_script(limited + FULL_DISK, log)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "log").stat().st_size == 4096


def test_captured_output_is_left_alone(capsys):
    from tsplat.support.output import protect_output

    before = sys.stdout
    protect_output()
    assert sys.stdout is before
    print("text \udcff")
    assert capsys.readouterr().out == "text \\udcff\n"
