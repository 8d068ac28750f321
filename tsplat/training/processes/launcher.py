"""Starts several ranks of a command on this machine, by torchrun's own launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

import torch

from ...errors import ArgumentError

PROGRAM = "tsplat"


def is_launched() -> bool:
    """Whether this process is one of the ranks that a launcher started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def gpus_of(text: str) -> list[int]:
    """GPUs from a list such as "0,1".

    Raises:
        ArgumentError: Not such a list, a GPU twice, or one that is not there.
    """
    there = torch.cuda.device_count()
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and len(word) < 5 for word in words):
        raise ArgumentError(f"--gpus: expected numbers with commas between them, such as 0,1, found {text!r}")
    chosen = [int(word) for word in words]
    if not there:
        raise ArgumentError(
            f"--gpus: this machine has no GPU that PyTorch can use, so not {text}; on a CPU: --device cpu --ranks 2"
        )
    if len(set(chosen)) < len(chosen) or max(chosen) >= there:
        raise ArgumentError(f"--gpus: expected different numbers below {there}, found {text}")
    return chosen


def launch(arguments: Sequence[str], ranks: int, gpus: Sequence[int] = (), *, module: str = PROGRAM) -> int:
    """Runs a module with these arguments as so many ranks, which find each other by the environment.

    Every rank is ended when one fails. Signals are passed on: after Ctrl-C ranks save and end, as one process does, and
    are given half a minute for it.

    Returns:
        0, or the exit status of the rank that failed first; 128 and its number after a signal.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    os.environ.setdefault("TORCHELASTIC_ERROR_FILE", os.devnull)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=PROGRAM,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
    )
    # What it has to say is said below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        ended = f"by signal {-failure.exitcode}" if failure.exitcode < 0 else f"with status {failure.exitcode}"
        print(f"tsplat: error: rank {rank} of {ranks} ended first, {ended}; the others were ended", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 1
    except SignalException as error:
        name = signal.Signals(error.sigval).name
        print(f"tsplat: {name} was passed on to all ranks, which have ended; go on with --resume", file=sys.stderr)
        return 128 + int(error.sigval)
    return 0
