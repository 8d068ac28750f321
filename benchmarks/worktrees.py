"""Temporary worktrees, with which benchmarks compare with another commit."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def worktree(ref: str) -> Iterator[Path]:
    """Context manager that yields a temporary folder with the files of another commit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", path, ref], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", path], cwd=ROOT, check=True)
