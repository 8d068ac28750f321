"""Sphinx extension: runs the examples in parallel before pages are read; myst-nb would run them one after the other.

The outputs go to the cache of myst-nb, so that later builds run only examples that have changed, or all if the package
has changed.
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import example_reader
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from sphinx.errors import ExtensionError


def execute(notebook, timeout):
    with tempfile.TemporaryDirectory() as folder:
        return single_nb_execution(notebook, cwd=folder, timeout=timeout, allow_errors=False)


def run_examples(app):
    """Executes the examples whose outputs are not in the cache.

    Raises:
        ExtensionError: An example raises an error.
    """
    if app.config.nb_execution_mode != "cache":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    pending = {}
    for path in sorted((example_reader.ROOT / "examples").glob("*.py")):
        notebook = example_reader.read(path.read_text())
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            if "mystnb" not in notebook.metadata:
                pending[path] = notebook
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(lambda notebook: execute(notebook, app.config.nb_execution_timeout), pending.values())
        for path, result in zip(pending, results):
            if result.err is not None:
                raise ExtensionError(f"{path.name}: {result.exc_string}")
            bundle = CacheBundleIn(result.nb, str(path), data={"execution_seconds": result.time})
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def setup(app):
    app.connect("builder-inited", run_examples)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
