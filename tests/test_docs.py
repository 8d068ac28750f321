"""Documentation: Python examples run, and links within the repository lead to files and headings that exist."""

import re

import pytest
from PIL import Image

import tsplat
from tests.support.markdown import python_blocks
from tests.support.paths import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "packaging/README.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does so
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), namespace)
    if page.name in ("README.md", "quickstart.md") and page.parent in (ROOT, ROOT / "docs"):
        with Image.open("image.png") as image:
            size = (640, 480) if page.name == "README.md" else (160, 120)
            assert (image.size, len(image.getcolors(1 << 20)) > 1000) == (size, True)


def anchors(page):
    """The anchors of a page's headings, as GitHub and the documentation site make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        repeated = sum(1 for other in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other))
        found.add(f"{anchor}-{repeated}" if repeated else anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_local_links_exist(page):
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"https?://|mailto:", link):
            continue
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name}: {target} does not exist"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name}: {link}: no such heading; there are {sorted(anchors(path))}"


def test_links_for_language_models_are_pages():
    links = re.findall(r"\]\((.*?)\)", (ROOT / "docs/site/llms.txt").read_text())
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).with_suffix(".md").exists()] == []


def test_external_links_are_https():
    for page in PAGES:
        for link in LINK.findall(page.read_text()):
            assert not link.startswith("http://"), f"{page.name}: {link}"


def test_citation_file():
    text = (ROOT / "CITATION.cff").read_text()
    keys = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    assert {"cff-version", "message", "title", "authors", "license"} <= set(keys)
    assert "license: Apache-2.0" in text
    assert f"\nversion: {tsplat.__version__}\n" in text
    assert "\t" not in text, "YAML is indented by spaces"


def test_version_is_the_same_everywhere():
    places = {"CHANGELOG.md": "## {} (", "README.md": "alpha ({})", "packaging/recipe.yaml": 'version: "{}"\n'}
    for name, text in places.items():
        assert text.format(tsplat.__version__) in (ROOT / name).read_text(), name


@pytest.mark.parametrize("record", sorted((ROOT / "docs" / "decisions").glob("0*.md")), ids=lambda p: p.stem)
def test_decision_records_fit_on_a_page(record):
    text = record.read_text()
    assert re.findall("^## (.*)", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= 35
    number = record.name[:4]
    assert text.startswith(f"# {number}: ")
    assert f"[{text.splitlines()[0][2:]}]({record.name})" in (record.parent / "README.md").read_text()


def test_readme_starts_with_the_commands_that_ci_runs():
    first_screen = (ROOT / "README.md").read_text().split("## Installation")[0]
    assert re.findall("^make ([a-z]+)", first_screen, re.MULTILINE) == ["demo", "test", "check"]
    targets = re.findall("^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "check"} <= set(targets)
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-2:] == ["make test", "exec make check"]


def test_readme_has_a_python_block():
    assert python_blocks(ROOT / "README.md")


def test_quickstart_needs_only_the_core():
    """Its code is meant to be copied into an environment without extras; the page says how to install Pillow."""
    blocks = "\n".join(python_blocks(ROOT / "docs" / "quickstart.md"))
    modules = re.findall(r"^(?:import|from) (\S+)", blocks, re.MULTILINE)
    assert set(modules) == {"torch", "tsplat", "PIL"}
    assert "pip install pillow" in (ROOT / "docs" / "quickstart.md").read_text()
