"""Writes docs/reliability.md from the results of long runs: `python -m tests.tools.scoreboard`."""

import json
from pathlib import Path
from typing import Any

from tests.support.properties import PROPERTIES
from tests.tools.fuzz import RESULTS

PAGE = RESULTS.with_suffix(".md")
PLATFORMS = {
    "x86-64-v4": "Triton kernels, compiled for the CPU (AVX-512)",
    "x86-64-v3": "Triton kernels, compiled for the CPU (AVX2)",
    "interpreter": "Triton kernels, interpreted",
    "torch": "torch backend",
    "sm_80-ptx": "NVIDIA PTX sm_80, emulated",
    "sm_90-ptx": "NVIDIA PTX sm_90, emulated",
    "sm_120-ptx": "NVIDIA PTX sm_120, emulated",
    "sm_80-sass": "NVIDIA SASS sm_80, emulated",
    "sm_90-sass": "NVIDIA SASS sm_90, emulated",
    "gfx942-amdgcn": "AMD gfx942, emulated",
    "gfx1100-amdgcn": "AMD gfx1100, emulated",
    "gpu": "Triton kernels on a GPU",
}
EMULATED_PROPERTY = "random scenes against fp64"
"""The property that `tests.emulator.fuzz` checks."""

HEAD = """# Reliability

This page has the results of property-based tests of the rasterizer on random scenes. `make scoreboard` runs them on a
CPU and writes this page; `make emulate` runs random scenes on emulated GPUs. `make test` runs a subset, and
`make fuzz MINUTES=60` runs them with new seeds for any length of time. A case that fails is simplified, saved under
`tests/cases` and replayed by every run of the tests.

A violation is an image or gradient outside the tolerance policy (`tests/support/closeness.py`), a value that is not
finite, a bit that differs where results must be bit-exact, or an error other than the documented one.
`tests/support/properties.py` defines the properties.

| property | platform | cases | violations | largest error / bound | seed | machine | date |
| --- | --- | ---: | ---: | ---: | ---: | --- | --- |
"""

FOOT = """
The largest error / bound is 0 for properties that compare bits. "Emulated" means that a CPU executed the code that
Triton compiles for a GPU, on small scenes in fp32; see [GPU code without a GPU](emulation.md). Only the rows "on a GPU"
were run on hardware. The 8 violations there are bits of the gradient of the backgrounds: PyTorch's sum over pixels
depended on the number of images. This has been fixed; the test has not been run on a GPU again.
"""


def page(records: dict[str, Any]) -> str:
    """Returns the page for the saved results, which are given by name."""
    lines = []
    for name in PROPERTIES:
        for platform, label in PLATFORMS.items():
            record = records.get(f"{name} ({platform})")
            if record is None:
                if name == EMULATED_PROPERTY or "emulated" not in label:
                    lines.append(f"| {name} | {label} | not run | | | | | |")
                continue
            lines.append(
                f"| {name} | {label} | {record['tried']:,} | {record['violations']} | {record['worst']:.2f} | "
                f"{record['seed']} | {record['machine']} | {record['date']} |"
            )
    text = HEAD + "\n".join(lines) + "\n" + FOOT
    mutants = records.get("mutants")
    if mutants:
        text += f"""
## Mutants

Small bugs are seeded one by one into copies of the package (`tests/tools/mutants.py`): a wrong factor or sign, a
missing cross term, a dropped camera, an off-by-one error. The tests caught {mutants["caught"]} of {mutants["tried"]}
({mutants["machine"]}, {mutants["date"]}).
"""
        text += "".join(f"- survived: {survivor}\n" for survivor in mutants["survivors"])
    return text


def main() -> None:
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE)


if __name__ == "__main__":
    main()
