"""Runs a script that imports Inria's packages, without them: ``python -m tsplat.compat.inria SCRIPT [ARGUMENTS]``."""

import os
import sys

from ... import ArgumentError
from ..installation import run_script
from .installation import install
from .returns import OF_FORKS, OUTPUTS, RETURNS_VARIABLE, parse_returns

OPTION = "--returns"
USAGE = f"""usage: python -m tsplat.compat.inria SCRIPT [ARGUMENTS ...]
       python -m tsplat.compat.inria -m MODULE [ARGUMENTS ...]
       python -m tsplat.compat.inria {OPTION} NAMES SCRIPT, or -m MODULE [ARGUMENTS ...]

Runs a Python script or module in which `import diff_gaussian_rasterization`, `import simple_knn` and
`import fused_ssim` import tsplat, and so do imports of some forks' modules. All arguments after it are passed to it.

{OPTION} NAMES, or the environment variable {RETURNS_VARIABLE}, names the values that rasterizers return. Use it for
programs that are written for a fork of Inria's rasterizer:

{chr(10).join(f"  {','.join(names):36} {forks}" for forks, names in OF_FORKS.items())}

Names are {", ".join(OUTPUTS)}."""


def main(arguments: list[str]) -> int:
    """Runs a script; see :func:`tsplat.compat.installation.run_script`."""
    option, _, names = arguments[0].partition("=") if arguments else ("", "", "")
    if option == OPTION:
        given = arguments[0] != OPTION
        names, arguments = (names, arguments[1:]) if given else ("".join(arguments[1:2]), arguments[2:])
        try:
            parse_returns(names, OPTION)
        except ArgumentError as error:
            print(f"{USAGE}\n\nerror: {error}", file=sys.stderr)
            return 2
        # Child processes of the program inherit the variable.
        os.environ[RETURNS_VARIABLE] = names
    return run_script(arguments, install, USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
