"""Reads the examples as notebooks: scripts in percent format.

If a script contains a line `# docs: not executed: REASON`, for example because it needs a GPU, its page shows the code
without running it. The build executes the other scripts, each in a separate folder.
"""

import functools
import hashlib
import re
from pathlib import Path

import jupytext
from nbformat.v4 import new_code_cell, new_markdown_cell

ROOT = Path(__file__).parents[2]
NOT_EXECUTED = re.compile(r"^# docs: not executed: (.+)\n", re.MULTILINE)


@functools.cache
def package_hash():
    """Returns a hash of the package. It is part of each notebook, so that changes of the package run the notebooks
    again."""
    package = ROOT / "tsplat"
    sources = sorted([*package.rglob("*.py"), *package.rglob("*.pyi")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def read(text):
    """Converts a script to a notebook.

    Args:
        text: A script in percent format, whose first cell is Markdown that starts with a title.
    """
    reason = NOT_EXECUTED.search(text)
    notebook = jupytext.reads(NOT_EXECUTED.sub("", text), fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    if reason:
        notebook.metadata["mystnb"] = {"execution_mode": "off"}
        note = f":::{{note}}\nThis page shows the code without its output: {reason[1]}\n:::"
        notebook.cells.insert(1, new_markdown_cell(note))
    else:
        # Scripts may read their command line, which in a notebook would be the kernel's.
        setup = f"import sys\n\nsys.argv = ['example.py']  # {package_hash()}"
        notebook.cells.insert(1, new_code_cell(setup, metadata={"tags": ["remove-cell"]}))
    return notebook
