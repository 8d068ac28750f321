"""``python -m tsplat.compat.gsplat SCRIPT [ARGUMENTS ...]``: runs a script that imports gsplat, without gsplat."""

from __future__ import annotations

import os
import runpy
import sys

from .installation import install

USAGE = """usage: python -m tsplat.compat.gsplat SCRIPT [ARGUMENTS ...]

Runs a Python script in which `import gsplat` gives tsplat. The arguments after SCRIPT are those of the script."""


def main(arguments: list[str]) -> int:
    """Runs a script.

    Returns:
        The exit status: 0 if the script ends, 2 if there is none to run.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if not arguments:
        print(f"{USAGE}\n\nerror: SCRIPT is missing", file=sys.stderr)
        return 2
    script = arguments[0]
    if not os.path.isfile(script):
        print(f"{USAGE}\n\nerror: SCRIPT: {script!r} is not a file", file=sys.stderr)
        return 2
    install()
    sys.argv = arguments
    # As for `python SCRIPT`, modules beside the script can be imported.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
