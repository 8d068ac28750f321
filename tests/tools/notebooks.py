"""Executes the notebooks of examples/notebooks and stores their outputs: `python -m tests.tools.notebooks`.

Requires nbclient. Stored images have 256 colors. Model viewers, which take 3 MB each, and outputs that differ between
runs, such as times, are removed.
"""

import argparse
import base64
import io
import os
import tempfile

from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

HTML_MAX = 10_000
"""Maximum length of an output's HTML. Longer HTML is removed, and only the output's image remains."""

ONCE = {"record_timing": False, "coalesce_streams": True}
"""Traits of the client that make the stored outputs of two runs equal."""

TIMEOUT = 300
"""Maximum time of a cell in seconds, on a busy machine."""


def execute(path):
    """Runs a notebook in an empty folder and returns it with its outputs. Raises CellExecutionError if a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "IPYTHONDIR": folder,  # not the user's settings
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=TIMEOUT, resources=resources, **ONCE)
        client.execute(env=environment)
    return notebook


def smaller(png):
    """Reduces a PNG to 256 colors. Input and output are in base64."""
    from PIL import Image

    file = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        image.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def store(path, notebook):
    """Writes an executed notebook."""
    import nbformat

    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # stderr, such as messages about compiled kernels, differs between runs.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                data = output.get("data", {})
                if "image/png" in data:
                    data["image/png"] = smaller(data["image/png"])
                if len(data.get("text/html", "")) > HTML_MAX:
                    del data["text/html"]
    nbformat.write(notebook, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="names of notebooks, such as first_render (all)")
    names = parser.parse_args().names
    for path in NOTEBOOKS:
        if not names or path.stem in names:
            store(path, execute(path))
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
