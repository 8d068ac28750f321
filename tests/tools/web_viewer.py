"""Downloads, patches and minifies the web viewer of exported pages. Requires Node.

``python -m tests.tools.web_viewer`` writes PlayCanvas's SuperSplat Viewer to ``tsplat/viewing/web_viewer/``. Run it
after changing the version below. The result is committed and ships with the package.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from tests.support.paths import ROOT

VIEWER, ENGINE, MINIFIER = "@playcanvas/supersplat-viewer@1.36.2", "playcanvas@2.22.6", "esbuild@0.25.12"
"""The viewer, its engine, and the minifier."""

FOLDER = ROOT / "tsplat" / "viewing" / "web_viewer"
GLOBAL = "supersplatViewer"
"""Name of the global variable that contains the viewer's exports, such as ``createViewer``."""

PATCHES = [
    # Covariances are in half pixels, as focal lengths are doubled: 1.2 corresponds to tsplat's eps2d of 0.3 px^2.
    ("(cov[0][0] + 0.3) * (cov[1][1] + 0.3) - cov[0][1] * cov[0][1]",
     "(cov[0][0] + 1.2) * (cov[1][1] + 1.2) - cov[0][1] * cov[0][1]"),
    ("float diagonal1 = cov[0][0] + 0.3;", "float diagonal1 = cov[0][0] + 1.2;"),
    ("float diagonal2 = cov[1][1] + 0.3;", "float diagonal2 = cov[1][1] + 1.2;"),
    # The unmodified Gaussian up to the alpha threshold, instead of one shifted to 0 at 2.83 standard deviations.
    ("float clip = min(1.0, sqrt(max(0.0, log(alpha / alphaClipValue))) * 0.5);",
     "float clip = sqrt(max(0.0, log(alpha / alphaClipValue))) * 0.5;"),
    ("\tif (A > 1.0) {\n\t\tdiscard;\n\t}\n\tmediump float alpha", "\tmediump float alpha"),
    ("float normExp(float x) {\n\treturn (exp(x * -4.0) - EXP4) * INV_EXP4;",
     "float normExp(float x) {\n\treturn exp(x * -4.0);"),
    # Ellipses of any size. As in tsplat, the Jacobian is clamped outside of the image.
    ("vec2 J2 = -J1 / vp.z * vp.xy;",
     "vec2 limit = 1.3 / center.projMat00 * vec2(1.0, viewport_size.y * viewport_size.z);\n"
     "\t\tvec2 J2 = -J1 * clamp(vp.xy / vp.z, -limit, limit);"),
    ("float vmin = min(1024.0, min(viewport_size.x, viewport_size.y));\n"
     "\tfloat l1 = 2.0 * min(sqrt(2.0 * lambda1), vmin);\n"
     "\tfloat l2 = 2.0 * min(sqrt(2.0 * lambda2), vmin);",
     "float l1 = 2.0 * sqrt(2.0 * lambda1);\n\tfloat l2 = 2.0 * sqrt(2.0 * lambda2);"),
]  # fmt: skip
"""Replacements in the viewer's GLSL that make its pixels equal to tsplat's. Each text occurs once."""

ENDS_ELEMENT = {"viewer.js": r"</script|<!--|<script", "viewer.css": r"</style|<!--"}
"""Patterns that must not occur in an inlined script or style sheet."""


def fetch(folder):
    """Installs the packages of :data:`VIEWER` in a folder. Returns the path of its ``node_modules``."""
    options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    subprocess.run(["npm", "install", *options, VIEWER, ENGINE, MINIFIER], check=True, stdout=subprocess.DEVNULL)
    return folder / "node_modules"


def minify(modules, source):
    """Returns a minified script or style sheet. Scripts assign their exports to :data:`GLOBAL`."""
    options = ["--minify", "--legal-comments=inline", "--line-limit=1000", "--log-level=error"]
    if source.suffix == ".js":
        options += ["--format=iife", f"--global-name={GLOBAL}"]
    command = [str(modules / ".bin" / "esbuild"), str(source), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def patch(script):
    """Returns the viewer's script with all :data:`PATCHES` applied."""
    for old, new in PATCHES:
        if (count := script.count(old)) != 1:
            raise SystemExit(f"the viewer has {count} times, not once: {old}")
        script = script.replace(old, new)
    return script


def build(modules):
    """Returns the contents of the viewer's files by name."""
    viewer = modules / "@playcanvas" / "supersplat-viewer"
    files = {f"viewer{kind}": minify(modules, viewer / "public" / f"index{kind}") for kind in (".js", ".css")}
    files["viewer.js"] = patch(files["viewer.js"])
    for name, pattern in ENDS_ELEMENT.items():
        if found := re.search(pattern, files[name], re.IGNORECASE):
            raise SystemExit(f"{name} contains {found[0]!r} and cannot be inside a page")
    licenses = [(VIEWER, viewer / "LICENSE"), (ENGINE, modules / "playcanvas" / "LICENSE")]
    files["LICENSE"] = "\n".join(f"{name}\n\n{path.read_text().strip()}\n" for name, path in licenses)
    return files


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = build(fetch(Path(folder)))
    FOLDER.mkdir(exist_ok=True)
    for name, content in files.items():
        (FOLDER / name).write_text(content)
        print(f"wrote {FOLDER / name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
