"""Executes the notebooks of examples/notebooks: `python -m tests.tools.notebooks` stores their outputs, with nbclient.

Stored outputs have images of 256 colors, no viewers of models, which are 3 MB each, and nothing that differs between
runs, such as times.
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
"""Length of HTML above which an output keeps its image only."""

ONCE = {"record_timing": False, "coalesce_streams": True}
"""Traits of the client by which two runs store the same."""

TIMEOUT = 300
"""Seconds that a cell may take, on a busy machine."""


def execute(path):
    """Returns a notebook with the outputs of a run in an empty folder. Raises CellExecutionError if a cell fails."""
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
    """Returns a PNG with 256 colors; both in base64."""
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
            # What is on stderr, such as that kernels are compiled, differs between runs.
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
