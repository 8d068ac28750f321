"""Fetches the web viewer that exported pages contain, patches and minifies it; needs Node.

``python -m tests.tools.web_viewer`` writes PlayCanvas's SuperSplat Viewer to ``tsplat/viewing/web_viewer/``. It is run
when the version below changes; the result is committed and ships with the package.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from tests.support.paths import ROOT

VIEWER, ENGINE, MINIFIER = "@playcanvas/supersplat-viewer@1.36.2", "playcanvas@2.22.6", "esbuild@0.25.12"
"""The viewer, the engine that it contains, and what minifies both."""

FOLDER = ROOT / "tsplat" / "viewing" / "web_viewer"
GLOBAL = "supersplatViewer"
"""Name of the global variable with the exports of the viewer, ``createViewer``."""

PATCHES = [
    # Covariances are in halves of pixels, as focal lengths are doubled: 1.2 is the 0.3 px^2 of tsplat's eps2d.
    ("(cov[0][0] + 0.3) * (cov[1][1] + 0.3) - cov[0][1] * cov[0][1]",
     "(cov[0][0] + 1.2) * (cov[1][1] + 1.2) - cov[0][1] * cov[0][1]"),
    ("float diagonal1 = cov[0][0] + 0.3;", "float diagonal1 = cov[0][0] + 1.2;"),
    ("float diagonal2 = cov[1][1] + 0.3;", "float diagonal2 = cov[1][1] + 1.2;"),
    # The Gaussian as it is, up to the alpha that is cut, instead of one that is shifted to 0 at 2.83 deviations.
    ("float clip = min(1.0, sqrt(max(0.0, log(alpha / alphaClipValue))) * 0.5);",
     "float clip = sqrt(max(0.0, log(alpha / alphaClipValue))) * 0.5;"),
    ("\tif (A > 1.0) {\n\t\tdiscard;\n\t}\n\tmediump float alpha", "\tmediump float alpha"),
    ("float normExp(float x) {\n\treturn (exp(x * -4.0) - EXP4) * INV_EXP4;",
     "float normExp(float x) {\n\treturn exp(x * -4.0);"),
    # Ellipses of any size, by a Jacobian that is clamped outside of the image, as tsplat's.
    ("vec2 J2 = -J1 / vp.z * vp.xy;",
     "vec2 limit = 1.3 / center.projMat00 * vec2(1.0, viewport_size.y * viewport_size.z);\n"
     "\t\tvec2 J2 = -J1 * clamp(vp.xy / vp.z, -limit, limit);"),
    ("float vmin = min(1024.0, min(viewport_size.x, viewport_size.y));\n"
     "\tfloat l1 = 2.0 * min(sqrt(2.0 * lambda1), vmin);\n"
     "\tfloat l2 = 2.0 * min(sqrt(2.0 * lambda2), vmin);",
     "float l1 = 2.0 * sqrt(2.0 * lambda1);\n\tfloat l2 = 2.0 * sqrt(2.0 * lambda2);"),
]  # fmt: skip
"""Texts of the viewer's GLSL, each of which occurs once, and what takes their place: its pixels become tsplat's."""

ENDS_ELEMENT = {"viewer.js": r"</script|<!--|<script", "viewer.css": r"</style|<!--"}
"""What may not occur in a script or style sheet inside a page."""


def fetch(folder):
    """Installs the packages of :data:`VIEWER` in a folder, and returns its ``node_modules``."""
    options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    subprocess.run(["npm", "install", *options, VIEWER, ENGINE, MINIFIER], check=True, stdout=subprocess.DEVNULL)
    return folder / "node_modules"


def minify(modules, source):
    """Returns a script or style sheet without white space; scripts assign their exports to :data:`GLOBAL`."""
    options = ["--minify", "--legal-comments=inline", "--line-limit=1000", "--log-level=error"]
    if source.suffix == ".js":
        options += ["--format=iife", f"--global-name={GLOBAL}"]
    command = [str(modules / ".bin" / "esbuild"), str(source), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def patch(script):
    """Returns the viewer's script after all of :data:`PATCHES`."""
    for old, new in PATCHES:
        if (count := script.count(old)) != 1:
            raise SystemExit(f"the viewer has {count} times, not once: {old}")
        script = script.replace(old, new)
    return script


def build(modules):
    """Returns the contents of the files by name."""
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
