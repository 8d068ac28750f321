"""Compares replayed calls with calls of the stages, with many random options: `python -m tests.tools.replayed_kinds`.

Images, gradients and `meta` must be bit-exact. The calls are distributed over four threads.
"""

import argparse
import concurrent.futures
import sys
from collections import Counter
from unittest import mock

import torch

from tests.support.call_kinds import STAGES, differences, random_kind
from tsplat import ArgumentError, UnsupportedError
from tsplat.passes import calls


def check(seed: int, replays: Counter[str]) -> list[str]:
    """Returns the names of the results that differ for the kind of call with this seed."""
    kind = random_kind(seed)
    try:
        expected = [call.outcome(STAGES[kind.function]) for call in (kind, kind.moved(1.01))]
    except (ArgumentError, UnsupportedError):
        replays["refused kinds"] += 1
        return []
    rendered = (kind, kind, kind, kind.moved(1.01))
    outcomes = [*expected[:1] * 3, expected[1]]
    return [name for call, outcome in zip(rendered, outcomes) for name in differences(call.outcome(), outcome)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("warn")  # arenas are filled with NaN
    counts: Counter[str] = Counter()
    original = calls.ReplayedCall.results

    def counted(self, *args, **kwargs):
        counts["replayed calls"] += 1
        return original(self, *args, **kwargs)

    seeds = range(arguments.first, arguments.first + arguments.count)
    with (
        mock.patch.object(calls.ReplayedCall, "results", counted),
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        for seed, found in zip(seeds, pool.map(lambda seed: check(seed, counts), seeds)):
            counts["kinds"] += 1
            if found:
                counts["kinds that differ"] += 1
                print(f"seed {seed}: {', '.join(found)}", flush=True)
    print(dict(counts))
    sys.exit(counts["kinds that differ"] > 0)


if __name__ == "__main__":
    main()
