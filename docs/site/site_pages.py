"""Sphinx extension: Markdown that reads well on GitHub and on the site.

- `<!-- site ... -->`: Markdown for the site only, such as directives. GitHub does not show comments.
- `<!-- github -->` to `<!-- /github -->`: Markdown for GitHub only.
- Relative links to files that are not pages, such as `../tsplat/data.py`, and links from the API reference to source
  code lead to pages that show these files.
- `{drawing}`: a figure of `drawings.py`, in a light and a dark version.
- `{command-help}`: the output of `tsplat COMMAND --help`, or of `tsplat COMMAND SUBCOMMAND --help`.
- `{scene}`: the scene of `tsplat demo` in an interactive frame; omitted if the examples are not run.
- Formulas become MathML, which browsers show without scripts.
"""

import contextlib
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import drawings
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.utils.math.latex2mathml import tex2mathml
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
DRAWINGS = "docs/_build/drawings"
SHOWN = {".py", ".sh", ".json", ".toml", ".cff", ".html", ".yaml", ".yml"}


def adapt_markdown(app, docname, source):
    """Uncomments the Markdown for the site, and removes the Markdown for GitHub."""
    if Path(app.env.doc2path(docname)).suffix == ".md":
        text = re.sub(r"<!-- github -->.*?<!-- /github -->\n?", "", source[0], flags=re.DOTALL)
        source[0] = re.sub(r"<!-- site\n(.*?)\n?-->", r"\1", text, flags=re.DOTALL)


def shown_file(page, target):
    """Returns the path, relative to the root, of the file that a link on a page points to; None for pages and missing
    files."""
    path = Path(os.path.normpath((ROOT / page).parent / target))
    if (path / "__init__.py").exists():
        path = path / "__init__.py"
    relative = path.relative_to(ROOT).as_posix()
    if path.suffix not in SHOWN or not path.is_file() or relative.startswith("examples/"):
        return None
    return relative


def page_of_file(file):
    return f"files/{file}"


class LinksToFiles(SphinxTransform):
    """Replaces links to files that are not pages by links to the pages that show them."""

    default_priority = 5

    def apply(self):
        page = self.env.doc2path(self.env.docname, base=False)
        kinds = (addnodes.download_reference, addnodes.pending_xref)
        for node in [node for kind in kinds for node in self.document.findall(kind)]:
            target = node.get("reftarget", "")
            if node.get("refdomain") == "doc":  # Python files have the suffix of pages
                target = os.path.relpath(f"{target}.py", Path(page).parent)
            if node.get("reftype") == "myst" and (file := shown_file(page, target)) is not None:
                node.replace_self(nodes.reference("", "", *node.children, internal=True, file=file, refuri="#"))


def source_of(module, name):
    """Returns the source file, relative to the root, and the first line of an object; None if it is not in the
    package."""
    value = importlib.import_module(module)
    for attribute in name.split("."):
        value = getattr(value, attribute, None)
    value = inspect.unwrap(getattr(value, "fget", value))
    try:
        path, line = Path(inspect.getsourcefile(value)), inspect.getsourcelines(value)[1]
    except (TypeError, OSError):
        return None
    return (path.relative_to(ROOT).as_posix(), line) if path.is_relative_to(ROOT / "tsplat") else None


def link_sources(app, doctree):
    """Adds links to source code to the API reference, and notes which files are shown."""
    for signature in doctree.findall(addnodes.desc_signature):
        if signature.get("module") and (found := source_of(signature["module"], signature["fullname"])):
            text = nodes.inline("", "[source]", classes=["viewcode-link"])
            signature += nodes.reference("", "", text, internal=True, refuri="#", file=found[0], line=found[1])
    files = {node["file"] for node in doctree.findall(nodes.reference) if "file" in node}
    app.env.metadata[app.env.docname]["files"] = " ".join(sorted(files))


class AddressesOfFiles(SphinxPostTransform):
    """Fills in the addresses of pages that show files; they depend on the builder."""

    default_priority = 5

    def run(self):
        for node in self.document.findall(nodes.reference):
            if "file" in node:
                address = self.app.builder.get_relative_uri(self.env.docname, page_of_file(node["file"]))
                node["refuri"] = f"{address}#L-{node['line']}" if "line" in node else address


def pages_of_files(app):
    """Yields a page for each source file that a page links to."""
    formatter = HtmlFormatter(cssclass="highlight", lineanchors="L")
    for file in sorted({file for data in app.env.metadata.values() for file in data.get("files", "").split()}):
        code = highlight((ROOT / file).read_text(), get_lexer_for_filename(file), formatter)
        yield page_of_file(file), {"title": file, "body": f"<h1><code>{file}</code></h1>{code}"}, "page.html"


class Drawing(SphinxDirective):
    """Inserts a figure of `drawings.py`; the content is its caption."""

    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self):
        (name,) = self.arguments
        figure = nodes.figure(classes=["drawing"])
        for theme in drawings.THEMES:
            uri = f"/{DRAWINGS}/{name}-{theme}.svg"
            figure += nodes.image("", uri=uri, alt=self.options["alt"], classes=[f"only-{theme}"])
        caption, messages = self.parse_inline(" ".join(self.content))
        figure += nodes.caption("", "", *caption)
        self.env.note_dependency(drawings.__file__)
        return [figure, *messages]


class CommandHelp(SphinxDirective):
    """Inserts the output of `tsplat COMMAND --help`."""

    required_arguments, optional_arguments = 1, 1

    def run(self):
        from tsplat.cli import main

        os.environ["COLUMNS"] = "90"
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            main([*self.arguments, "--help-all" if self.arguments[0] == "train" else "--help"])
        text = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue()).strip()
        if not text:
            raise self.error(f"tsplat {self.arguments[0]} --help prints nothing")
        return [nodes.literal_block(text, text, language="text")]


class Scene(SphinxDirective):
    """Inserts a frame with the page that `export_scene` writes; the content is its caption."""

    has_content = True

    def run(self):
        if self.config.nb_execution_mode == "off":
            return []
        frame = '<iframe class="scene" src="scene.html" title="A scene that can be turned"></iframe>'
        caption, messages = self.parse_inline(" ".join(self.content))
        return [nodes.raw("", frame, format="html"), nodes.paragraph("", "", *caption), *messages]


def export_scene(app, exception):
    """Trains the demo unless it has been trained before, and exports it beside docs/index.html."""
    if exception is not None or app.config.nb_execution_mode == "off":
        return
    run, page = ROOT / "docs/_build/demo", Path(app.outdir) / "docs" / "scene.html"
    commands = [["demo", "--out", run], ["export", run, "--out", page]]
    for command in commands[(run / "point_cloud.ply").exists() :]:
        subprocess.run([sys.executable, "-m", "tsplat", *command], check=True)


def visit_math(translator, node):
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def draw(app):
    drawings.draw_all(ROOT / DRAWINGS)


def setup(app):
    app.connect("builder-inited", draw)
    app.connect("source-read", adapt_markdown)
    app.connect("doctree-read", link_sources)
    app.connect("html-collect-pages", pages_of_files)
    app.connect("build-finished", export_scene)
    app.add_transform(LinksToFiles)
    app.add_post_transform(AddressesOfFiles)
    app.add_directive("drawing", Drawing)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("scene", Scene)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
