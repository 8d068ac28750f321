"""The documentation site: the API reference is complete, pages are in the navigation, and the site builds.

`make docs` installs Sphinx and builds the site with the output of the examples; here it is built without running them.
"""

import argparse
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

import pytest

import tsplat
from tests.support.browser import CHROMIUM, open_page
from tests.support.paths import ROOT
from tests.support.waiting import wait_for
from tsplat.cli.parser import build_parser

API = ROOT / "docs" / "api"
DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|exception|data):: (\S+)$", re.MULTILINE)
SITE_ONLY = re.compile(r"<!-- site\n(.*?)\n?-->", re.DOTALL)
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)

INTERNAL = {
    "tsplat.cli": "docs/api/commands.md has the commands",
    "tsplat.gpu_driver": "knows nothing of Gaussians; called by kernels",
    "tsplat.kernels": "called by stages",
    "tsplat.kernels_torch": "called by stages",
    "tsplat.support": "helpers of other packages",
    "tsplat.triton_cpu": "knows nothing of Gaussians; called by kernels",
    "tsplat.passes": "called by rasterization",
}
"""Packages without an API reference, and why."""


def public_modules():
    """Yields the modules that declare public names."""
    yield tsplat
    for info in pkgutil.walk_packages(tsplat.__path__, "tsplat."):
        parts = info.name.split(".")
        if ".".join(parts[:2]) in INTERNAL or any(part.startswith("_") for part in parts):
            continue
        module = importlib.import_module(info.name)
        if hasattr(module, "__all__"):
            yield module


def resolve(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def documented_names():
    return [name for page in sorted(API.glob("*.md")) for name in DIRECTIVE.findall(page.read_text())]


def test_public_names_are_in_the_api_reference():
    documented = [resolve(name) for name in documented_names()]
    missing = [
        f"{module.__name__}.{name}"
        for module in public_modules()
        for name in module.__all__
        if not name.startswith("_") and not any(getattr(module, name) is known for known in documented)
    ]
    assert not missing, f"add these names to a page of docs/api: {missing}"


def test_names_are_documented_once():
    names = documented_names()
    assert len(names) == len(set(names))


def test_documented_functions_have_docstrings():
    missing = [
        name
        for name in documented_names()
        if (inspect.isclass(resolve(name)) or inspect.isfunction(resolve(name))) and not inspect.getdoc(resolve(name))
    ]
    assert not missing


def test_commands_are_documented():
    (action,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert set(re.findall(r"```\{command-help\} (\S+)", (API / "commands.md").read_text())) == set(action.choices)


def pages_in_navigation(page):
    """Yields the files that the tables of contents of a page name."""
    for site_only in SITE_ONLY.findall(page.read_text()):
        for toctree in TOCTREE.findall(site_only):
            for line in toctree.splitlines():
                if not line or line.startswith(":"):
                    continue
                name = line[line.find("<") + 1 :].removesuffix(">")
                pattern = os.path.normpath(os.path.relpath(page.parent / name, ROOT))
                yield from (path for suffix in (".md", ".py", ".ipynb") for path in ROOT.glob(pattern + suffix))


def test_every_page_is_in_the_navigation():
    pages = {path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts}
    pages |= {ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"}
    pages |= set((ROOT / "examples").glob("*.py")) | set((ROOT / "examples" / "notebooks").glob("*.ipynb"))
    named = {path for page in pages if page.suffix == ".md" for path in pages_in_navigation(page)}
    missing = {str(path.relative_to(ROOT)) for path in pages - named} - {"docs/index.md"}
    assert not missing, f"add these pages to a toctree: {sorted(missing)}"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_start_with_a_title(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# docs: ")]
    assert lines[0] == "# %% [markdown]", "the first cell is Markdown, in percent format"
    assert lines[1].startswith("# # "), "the first line of the first cell is the title"


class Elements(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        names = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}
        if attributes.get(names.get(tag)):
            self.links.append(attributes[names[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built with warnings as errors and without running the examples."""
    missing = [name for name in ("sphinx", "furo", "myst_nb", "jupytext") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: run make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs/site", "-d", folder / "doctrees"]
    result = subprocess.run(
        [*command, ".", folder / "html"],
        cwd=ROOT,
        env=os.environ | {"DOCS_NOTEBOOKS": "off"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return folder / "html"


@pytest.mark.long
def test_links_of_the_site_lead_somewhere(site):
    pages = {path: Elements(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 50
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            if not target.is_file() or (fragment and target in pages and fragment not in pages[target].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead, "\n".join(dead)


@pytest.mark.long
def test_public_names_have_an_anchor(site):
    anchors = set().union(*(Elements(path.read_text()).anchors for path in (site / "docs" / "api").glob("*.html")))
    types = {name for name in documented_names() if name.startswith("tsplat.compat.gsplat.") and name[21:].isalpha()}
    assert {name for name in documented_names() if name not in anchors} <= types


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_pages_have_no_console_errors(site):
    pages = sorted(path for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "files")
    pages.remove(site / "index.html")  # redirects
    with open_page("about:blank", width=390, height=800) as browser:
        browser.call("Log.enable")
        for path in pages:
            browser.call("Page.navigate", url=path.as_uri())
            loaded = f"complete {path.as_uri()}"
            wait_for(lambda: browser.evaluate("document.readyState + ' ' + location.href") == loaded, 30, every=0.02)  # noqa: B023
            width = browser.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{path.relative_to(site)} is wider than a phone"
            cut = "[...document.querySelectorAll('.highlight pre')].some(code => code.scrollWidth > code.clientWidth)"
            assert not browser.evaluate(cut), f"{path.relative_to(site)}: code is cut"
            assert not browser.errors, f"{path.relative_to(site)}: {browser.errors}"


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_code_is_copied_by_a_button(site):
    page = site / "docs" / "quickstart.html"
    assert 'href="../_static/favicon.svg"' in page.read_text()
    assert (site / "_static" / "favicon.svg").is_file()
    with open_page(page.as_uri(), width=900, height=800) as browser:
        wait_for(lambda: browser.evaluate("document.querySelectorAll('button.copy').length") > 3, 30)
        browser.evaluate("document.querySelector('button.copy').click()")
        wait_for(lambda: browser.evaluate("document.querySelector('button.copy').textContent") != "Copy", 10)
        assert browser.evaluate("document.querySelector('button.copy').textContent") in ("Copied", "Selected")
        if browser.evaluate("document.querySelector('button.copy').textContent") == "Selected":
            assert browser.evaluate("getSelection().toString()").startswith("pip install .")
