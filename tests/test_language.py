"""The vocabulary of the project: one word for one concept, in code, documentation and tests.

`RULES` lists expressions that are not used, each with the word to use instead. Names are searched word by word: neither
`n_pairs` nor `PairList` passes. Exceptions are listed with their reason.
"""

import functools
import io
import re
import tokenize
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("language")

EVERYWHERE = ("tsplat/", "docs/", "examples/", "tests/", "emulator/", "README.md", "CHANGELOG.md")
KERNELS = ("tsplat/kernels/", "tsplat/kernels_torch/", "tsplat/triton_cpu/")
MACHINES = (
    "tsplat/triton_cpu/",
    "tests/triton_cpu/",
    "tsplat/gpu_driver/",
    "tests/gpu_driver/",
    "tests/emulator/",
    "emulator/",
)
"""Compilers and emulators, which have register pairs, a host CPU, work items and sound assumptions of their own."""

SIZES = re.compile(r"\}\s?x\s?\{|(?<![-\w.])[1-9]\d*x\d+\b")
"""Sizes such as 4x3 or {width}x{height}; not names of scenes, such as garden-648x420."""

SIZES_IN = (
    "tsplat/cli/", "tsplat/compat/", "tsplat/kernels", "tsplat/runtime/", "tsplat/scene/", "tsplat/stages/",
    "tsplat/training/", "tsplat/viewing/", "docs/", "README.md", "CHANGELOG.md",
)  # fmt: skip

SUFFIXES = {".py", ".md", ".sh"}
THIS = "tests/test_language.py"


class Rule(NamedTuple):
    """A regular expression that is not used, and the word to use instead."""

    pattern: str
    instead: str
    where: tuple[str, ...] = EVERYWHERE
    glossary: bool = False  # about Gaussians: not applied to compilers and emulators


RULES = [
    Rule(r"pairs?", "intersection, or reword", glossary=True),
    Rule(r"(?<!\.)items?", "intersection, or reword", glossary=True),
    Rule(r"tile row groups?", "band"),
    Rule(r"(un)?sound(ness|ly)?", "valid, invalid", glossary=True),
    Rule(r"hosts?", "torch backend", glossary=True),
    Rule(
        r"truths?",
        "reference; target for a ground truth image",
        ("tsplat/", "docs/", "examples/", "README.md", "CHANGELOG.md"),
    ),
    Rule(r"teams?", "rank group, world_size"),
    Rule(r"owners?", "program", KERNELS),
    Rule(r"pictures?", "image"),
    Rule(r"films?", "video"),
    Rule(r"\w*(colour|favour|behaviour|neighbour)\w*", "American spelling: color, favor, behavior, neighbor"),
    Rule(r"grey\w*|cent(re|res|red|ring)|metres?|analyse[sd]?", "American spelling: gray, center, meter, analyze"),
    Rule(
        r"\w*(normal|initial|quant|optim|organ|serial|visual|summar|minim|maxim|synchron|parallel|special|general|util|"
        r"raster|local|linear|random|recogn|character|real)is(e|ed|es|er|ers|ing|ations?)",
        "American spelling: -ize, -ization",
    ),
]


EXPRESSION = r"(?<![\w-])(?:{})\b"
ANY = re.compile(EXPRESSION.format("|".join(rule.pattern for rule in RULES)))


class Allowed(NamedTuple):
    """A place where an expression is allowed: a file, a pattern of its line, and the reason."""

    path: str
    line: str
    reason: str


EXCEPTIONS = [
    Allowed("tsplat/viewing/videos.py", r'"-s", f"\{width\}x\{height\}"', "option of ffmpeg"),
    Allowed("tests/conftest.py", r"\bitems?\b", "parameter of pytest's hook"),
    Allowed("tests/viewing/viewer/test_opening_browser.py", r'"items"', "name in the protocol of Chromium"),
    Allowed("CHANGELOG.md", r"^\| `", "the old name of something that was renamed"),
    Allowed("tsplat/scene/capture/colmap_pipeline.py", r"(?i)pair", "two photographs, also in names of COLMAP"),
    Allowed("tsplat/scene/capture/colmap_process.py", r"(?i)pair", "two photographs, also in names of COLMAP"),
    Allowed("tsplat/viewing/viewer/guard.py", r"(?i)host", "header of HTTP"),
    Allowed("tests/viewing/viewer/test_guard.py", r"(?i)host", "header of HTTP"),
    *(
        Allowed(path, r"(?i)host.?name|`Host`|\$(http_)?host|\bname.{0,40}host|\bhost.{0,20}port", "name of a proxy")
        for path in (
            "tsplat/viewing/view_options.py",
            "tsplat/viewing/viewer/server.py",
            "tsplat/training/runs/live_view.py",
            "tsplat/cli/commands.py",
            "tsplat/cli/run_options.py",
            "docs/viewer.md",
            "CHANGELOG.md",
            "tests/training/runs/test_live_view.py",
            "tests/training/runs/test_run_photographs.py",
            "tests/cli/test_main.py",
        )
    ),
    Allowed(
        "tests/viewing/viewer/test_foreign_pages_browser.py", r"(?i)host", "name of a computer; option of Chromium"
    ),
    Allowed("docs/viewer.md", r"`Host`", "header of HTTP"),
    Allowed("docs/performance.md", r"(?i)\bhost\b", "the CPU beside a GPU, as CUDA calls it"),
    Allowed("tests/benchmarks/test_step.py", r"(?i)host", "the CPU beside a GPU, as CUDA calls it"),
    Allowed("tests/training/test_update_pass.py", r"(?i)host", "name of a module: the CPU beside a GPU"),
]


@functools.cache
def texts():
    """The lines of each file."""
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*")) if path.suffix in SUFFIXES}
    names = [name for name in paths if name.startswith(EVERYWHERE) and name != THIS]
    return {name: paths[name].read_text().splitlines() for name in names}


@functools.cache
def suspects():
    """The words of files in which a rule finds something; one search for all rules takes a fifth of the time."""
    separated = {relative: words("\n".join(lines)) for relative, lines in texts().items()}
    return {relative: text for relative, text in separated.items() if ANY.search(text)}


def words(line):
    """Separates the words of identifiers: n_pairs, nPairs -> n pairs; all in lower case."""
    return re.sub(r"_+|(?<=[a-z0-9])(?=[A-Z])", " ", line).lower()


def find(pattern, text, lines):
    """Yields the number, the line and the words of each match in the words of all lines."""
    for match in re.finditer(EXPRESSION.format(pattern), text):
        number = text.count("\n", 0, match.start()) + 1
        yield number, lines[number - 1], match[0]


def is_allowed(relative, line):
    return any(relative == allowed.path and re.search(allowed.line, line) for allowed in EXCEPTIONS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.instead)
def test_word_is_not_used(rule):
    problems = [
        f"{relative}:{number}: {match!r}: use {rule.instead}"
        for relative, text in suspects().items()
        if relative.startswith(rule.where) and not (rule.glossary and relative.startswith(MACHINES))
        for number, line, match in find(rule.pattern, text, texts()[relative])
        if not is_allowed(relative, line)
    ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_sizes_have_a_multiplication_sign():
    problems = [
        f"{relative}:{number}: {match[0]!r}: write ×"
        for relative, lines in texts().items()
        if relative.startswith(SIZES_IN)
        for number, line in enumerate(lines, 1)
        if (match := SIZES.search(line)) and not is_allowed(relative, line)
    ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_names_of_files():
    patterns = [rule.pattern for rule in RULES if rule.where == EVERYWHERE]
    problems = [
        f"{relative}:1: {match[0]!r} in the file's name"
        for relative in texts()
        for pattern in patterns
        for match in re.finditer(EXPRESSION.format(pattern), words(relative.rpartition("/")[2].removesuffix(".py")))
    ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_truth_in_tests_is_only_a_local_variable():
    problems = []
    for relative, lines in texts().items():
        if not (relative.startswith("tests/") and relative.endswith(".py") and "truth" in "\n".join(lines).lower()):
            continue
        previous = ""
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            is_text = token.type == tokenize.COMMENT or (
                token.type == tokenize.STRING and not token.string.lower().startswith(("f", "rf"))
            )
            is_definition = previous in ("def", "class")
            if (is_text or is_definition) and re.search(r"\btruths?\b", words(token.string)):
                problems.append(f"{relative}:{token.start[0]}: 'truth': use reference")
            previous = token.string
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("n_pairs = 3", True),
        ("class PairList:", True),
        ("itertools.pairwise(x)", False),
        ("loss.item()", False),
        ("for item in gaussians:", True),
        ("for k, v in state.items():", False),
    ],
)
def test_identifiers_are_searched_word_by_word(line, found):
    assert bool(ANY.search(words(line))) == found


COUNT = re.compile(
    r"\{(?!_describe|how\}|model\}|views\}|')[^{}]*?(?<!:,)(?<!\.1f)\} "
    r"(Gaussians|points|vertices|triangles|photographs|images|cameras|views|steps|frames|bytes)\b"
)
"""A count in a message without separators of thousands. Values in the first parentheses are texts, others small."""


def test_counts_in_messages_have_separators():
    """Numbers that users may type, such as a step, and those of JSON have none."""
    problems = [
        f"{relative}:{number}: {match[0]!r}: use :,"
        for relative, lines in texts().items()
        if relative.startswith(("tsplat/cli/", "tsplat/scene/", "tsplat/training/", "tsplat/viewing/"))
        for number, line in enumerate(lines, 1)
        for match in COUNT.finditer(line)
    ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
