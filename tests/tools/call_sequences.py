"""Compares sequences of calls in one process with calls in fresh processes: `python -m tests.tools.call_sequences
--count 1000`.

Images, gradients and `meta` must be bit-exact regardless of what the process did before: calls with other options and
sizes, delayed backward passes, errors and interrupts, training, graphs. The tool simplifies and prints each sequence
whose results differ.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.support import call_sequences

COMPILED_EVERY = 50
"""One in this many sequences compiles calls, which takes ten seconds."""


def check(seed: int, compiled: bool) -> tuple[int, Counter[str], list[str]]:
    """Runs the sequence of a seed. Returns the seed, counts of the sequence's actions and, if results differ, the
        differences
    with a simplified sequence."""
    actions = call_sequences.random_sequence(seed, compiled=compiled)
    found = call_sequences.differences(actions)
    if found:
        found += [f"  {action}" for action in call_sequences.simplified(actions)]
    return seed, Counter(action.name for action in actions), found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**31, help="seed of the first (default: the time)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--no-compile", action="store_true", help="compile no calls")
    options = parser.parse_args(arguments)
    call_sequences.prepare()
    counts: Counter[str] = Counter()
    failed = 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as pool:
        seeds = range(options.seed, options.seed + options.count)
        compiled = [not options.no_compile and i % COMPILED_EVERY == 0 for i in range(options.count)]
        for seed, did, found in pool.map(check, seeds, compiled):
            counts += did
            if found:
                failed += 1
                print(f"sequence {seed}:", *found, sep="\n", flush=True)
    print(f"{options.count} sequences from seed {options.seed}, {failed} differ; {dict(counts)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
