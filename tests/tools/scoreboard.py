"""Writes docs/reliability.md from the figures that long runs have left: `python -m tests.tools.scoreboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.properties import PROPERTIES
from tests.tools.fuzz import RESULTS

PAGE = RESULTS.with_suffix(".md")
BACKENDS = {"torch": "host path", "triton": "Triton kernels"}

HEAD = """# Reliability

What was tried to break the rasterizer, and what came of it. `make scoreboard` repeats all of it and writes this page;
`make test` runs a share of it every time, `make fuzz MINUTES=60` as much as one likes with new seeds. A case that fails
is made simpler, saved under `tests/cases` and replayed by every run of the tests.

A violation is a picture or gradient outside the tolerance policy (`tests/closeness.py`), a number that is not finite, a
bit that differs where bits should not, or an error other than the documented one. What each property says is in
`tests/properties.py`.

| property | where | tried | violations | largest error over its bound | seed | machine | date |
| --- | --- | ---: | ---: | ---: | ---: | --- | --- |
"""

FOOT = """
An error over its bound of 0 stands for a comparison of bits. The Triton kernels run in Triton's interpreter where the
machine has no GPU, which shows their arithmetic but not the compiler's nor races.
"""


def page(records: dict[str, Any]) -> str:
    """The page's text for the figures by name."""
    rows = []
    for name in PROPERTIES:
        for backend, where in (*BACKENDS.items(), ("gpu", "on a GPU")):
            record = records.get(f"{name} ({backend})")
            if record is None:
                if backend == "gpu":
                    rows.append(f"| {name} | {where} | not run | | | | | |")
                continue
            rows.append(
                f"| {name} | {where} | {record['tried']:,} | {record['violations']} | {record['worst']:.2f} | "
                f"{record['seed']} | {record['machine']} | {record['date']} |"
            )
    text = HEAD + "\n".join(rows) + "\n" + FOOT
    mutants = records.get("mutants")
    if mutants:
        text += f"""
## Mutants

Small bugs seeded one by one into copies of the package (`tests/mutants.py`): a factor, a sign, a cross term, a dropped
camera, an off-by-one. {mutants["caught"]} of {mutants["tried"]} were caught by the tests ({mutants["machine"]},
{mutants["date"]}).
"""
        text += "".join(f"- survived: {survivor}\n" for survivor in mutants["survivors"])
    return text


def main() -> None:
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)


if __name__ == "__main__":
    main()
