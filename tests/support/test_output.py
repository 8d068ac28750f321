"""Output to readers that are gone."""

import os
import subprocess
import sys

SCRIPT = """
import sys
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


def test_captured_output_is_left_alone(capsys):
    from tsplat.support.output import protect_output

    before = sys.stdout
    protect_output()
    assert sys.stdout is before
    print("text \udcff")
    assert capsys.readouterr().out == "text \\udcff\n"
