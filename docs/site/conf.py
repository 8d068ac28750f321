"""Sphinx configuration of the documentation site, which `make docs` builds.

The source folder is the root of the repository, so that relative links work both on the site and on GitHub. Directives,
which GitHub would show as code, are hidden in comments: see `site_pages.py`.
"""

import os
import sys
from pathlib import Path

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
BUILD = ROOT / "docs" / "_build"
sys.path[:0] = [str(SITE), str(ROOT)]

import tsplat  # noqa: E402

project = "tsplat"
author = "tsplat contributors"
copyright = author
version = release = tsplat.__version__
html_title = f"tsplat {version}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages", "example_runner"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "packaging/README.md", "docs/**.md"]
include_patterns += ["examples/README.md", "examples/*.py", "examples/notebooks/*.ipynb"]
exclude_patterns = ["docs/_build"]

# Markdown
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
smartquotes_action = "D"  # dashes only: shapes have three dots, and code has quotes

# Tutorials: scripts in percent format, executed; see example_reader.py and example_runner.py
nb_custom_formats = {".py": "example_reader.read"}
nb_execution_excludepatterns = ["examples/notebooks/*"]
nb_execution_mode = os.environ.get("DOCS_NOTEBOOKS", "cache")
nb_execution_cache_path = str(BUILD / "notebooks")
nb_execution_in_temp = True
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
# Notebook kernels print errors only, and ignore the user's IPython settings.
os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
profile = BUILD / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text(
    "c = get_config()\n"
    "c.IPKernelApp.log_level = 40\n"
    "c.InteractiveShell.ast_node_interactivity = 'none'\n"  # as in a script, expressions are not shown
)
os.environ["OMP_NUM_THREADS"] = "1"  # examples run side by side
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

# API reference
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # may list several names at once, as Args does

# HTML
html_theme = "furo"
html_static_path = ["static"]
html_extra_path = ["llms.txt"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_favicon = "static/favicon.svg"
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
