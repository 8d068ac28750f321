"""Fetches the web viewer that exported pages contain, and minifies it; needs Node.

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


def build(modules):
    """Returns the contents of the files by name."""
    viewer = modules / "@playcanvas" / "supersplat-viewer"
    files = {f"viewer{kind}": minify(modules, viewer / "public" / f"index{kind}") for kind in (".js", ".css")}
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
