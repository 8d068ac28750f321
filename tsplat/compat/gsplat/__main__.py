"""Runs a script that imports gsplat, without gsplat: ``python -m tsplat.compat.gsplat SCRIPT [ARGUMENTS ...]``."""

import sys

from ..installation import run_script
from .installation import install

USAGE = """usage: python -m tsplat.compat.gsplat SCRIPT [ARGUMENTS ...]
       python -m tsplat.compat.gsplat -m MODULE [ARGUMENTS ...]

Runs a Python script or module in which `import gsplat` imports tsplat. All arguments after it are passed to it."""


def main(arguments: list[str]) -> int:
    """Runs a script; see :func:`tsplat.compat.installation.run_script`."""
    return run_script(arguments, install, USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
