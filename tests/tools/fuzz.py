"""Checks properties on many random cases: `python -m tests.tools.fuzz --minutes 10`, or `--long` for the scoreboard.

A failing case is simplified as long as it still fails, and saved under tests/cases. Every test run replays it.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.support.cases import Case, draw
from tests.support.interpreter import vectorize_reductions
from tests.support.paths import CASES, ROOT
from tests.support.properties import PROPERTIES
from tsplat.runtime.backend import triton_is_interpreted
from tsplat.triton_cpu import target_name

RESULTS = ROOT / "docs" / "reliability.json"
BLOCK = 10
"""Cases per task of a worker."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="time for all properties together (default: 5)")
    parser.add_argument("--long", action="store_true", help="run the scoreboard's number of cases and save its figures")
    parser.add_argument("--property", choices=tuple(PROPERTIES), help="check this property only")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**31, help="seed of the first case (default: the time)"
    )
    parser.add_argument("--backend", default="triton", choices=("torch", "triton"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    arguments = parser.parse_args()
    names = [arguments.property] if arguments.property else list(PROPERTIES)
    failures = 0
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, initializer=_prepare) as pool:
        for name in names:
            count = PROPERTIES[name].in_long_run // slowness(arguments.backend) if arguments.long else None
            seconds = None if arguments.long else 60 * arguments.minutes / len(names)
            record = _run(pool, name, arguments.seed, count, seconds, arguments.backend, arguments.jobs)
            failures += record["violations"]
            if arguments.long:
                write_record(f"{name} ({platform_of(arguments.backend)})", record)
    return 1 if failures else 0


def platform_of(backend: str) -> str:
    """Returns the platform's name for saved results: "torch"; for Triton "gpu", "interpreter" or the CPU's level."""
    if backend != "triton":
        return backend
    if torch.cuda.is_available():
        return "gpu"
    return "interpreter" if triton_is_interpreted() else target_name()


def slowness(backend: str) -> int:
    """Returns the factor by which to reduce the number of cases. Triton's interpreter is about 100 times slower."""
    return 50 if platform_of(backend) == "interpreter" else 1


def write_record(name: str, record: dict[str, Any]) -> None:
    """Saves the results of a run for the scoreboard. Replaces those of an older run."""
    records = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    records[name] = record | {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps(records, indent=1) + "\n")
    temporary.replace(RESULTS)


def machine() -> str:
    """Returns a description of this machine with PyTorch's version."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{platform.machine()}, {os.cpu_count()} cores, {gpu}, torch {torch.__version__}"


def _prepare() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.simplefilter("ignore")
    if os.environ.get("TRITON_INTERPRET") == "1":
        vectorize_reductions()


def _run(
    pool: concurrent.futures.Executor, name: str, seed: int, count: int | None, seconds: float | None,
    backend: str, jobs: int,
) -> dict[str, Any]:  # fmt: skip
    began = time.perf_counter()
    tried, violations, worst = 0, 0, 0.0
    shown = 0.0

    def blocks() -> Iterator[tuple[int, int]]:
        for first in itertools.count(seed, BLOCK):
            if count is not None and first - seed >= count:
                return
            yield first, min(BLOCK, count - (first - seed)) if count is not None else BLOCK

    pending: set[concurrent.futures.Future[Any]] = set()
    todo = blocks()
    while True:
        more = seconds is None or time.perf_counter() - began < seconds
        while more and len(pending) < 2 * jobs:
            block = next(todo, None)
            if block is None:
                more = False
                break
            pending.add(pool.submit(_try, name, *block, backend))
        if not pending:
            break
        done, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            n, largest, failed = future.result()
            tried, worst = tried + n, max(worst, largest)
            for case, message in failed:
                violations += 1
                print(f"\n{name}: {message}\n  saved as {_save(name, case, message)}")
        now = time.perf_counter()
        if now - shown > 1 and sys.stdout.isatty():
            shown = now
            print(f"\r{name}: {tried} cases, {violations} violations", end="", flush=True)
    rule = PROPERTIES[name]
    line = f"{name}: {tried * rule.per_case} tried, {violations} violations, largest error over bound {worst:.2f}"
    print(f"\r{line}, {time.perf_counter() - began:.0f} s", flush=True)
    return {"tried": tried * rule.per_case, "violations": violations, "worst": round(worst, 3), "seed": seed}


def _try(name: str, first: int, n: int, backend: str) -> tuple[int, float, list[tuple[dict[str, Any], str]]]:
    worst, failed = 0.0, []
    for seed in range(first, first + n):
        case = draw(seed)
        error = _check(name, case, backend)
        if isinstance(error, float):
            worst = max(worst, error)
        else:
            case = _simplify(name, case, backend)
            failed.append((case.to_json(), _check(name, case, backend) or error))
    return n, worst, failed  # type: ignore[return-value]


def _check(name: str, case: Case, backend: str) -> float | str:
    """Returns the largest ratio of an error to its bound, or the message of the failure."""
    try:
        return PROPERTIES[name].check(case, backend)
    except Exception as error:  # any exception is a finding
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _simplify(name: str, case: Case, backend: str) -> Case:
    """Simplifies a case step by step while it still fails."""
    while True:
        simpler = next((c for c in case.simpler() if isinstance(_check(name, c, backend), str)), None)
        if simpler is None:
            return case
        case = simpler


def _save(name: str, case: dict[str, Any], message: str) -> Path:
    CASES.mkdir(exist_ok=True)
    words = "".join(c if c.isalnum() else "-" for c in name)
    path = CASES / f"{words}-{case['structure']['seed']}.json"
    path.write_text(json.dumps({"property": name, "case": case, "found": message}, indent=1) + "\n")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
