"""Starts a command as several ranks on this machine, with torchrun's launcher."""

import logging
import os
import signal
import sys
from collections.abc import Sequence

import torch

from ...errors import ArgumentError
from ...support.interruption import SIGNALS
from .environment import LOCAL_WORLD_SIZE, WORLD_SIZE, is_launched

PROGRAM = "tsplat"

RANKS_MAX = 16
"""Maximum number of ranks per machine, unless it has more processors."""

SAVE_TIMEOUT = 120
"""Seconds that ranks have for saving after a signal, before they are killed."""


def parse_gpus(text: str) -> list[int]:
    """Parses a list of GPU indices such as "0,1", and checks that the GPUs exist."""
    n_gpus = torch.cuda.device_count()
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and len(word) < 5 for word in words):
        raise ArgumentError(f"--gpus: expected indices separated by commas, such as 0,1; found {text!r}")
    if not n_gpus:
        raise ArgumentError(
            f"--gpus: PyTorch finds no GPU on this machine, so {text} cannot be used; on a CPU, use --device cpu "
            "--ranks 2"
        )
    indices = [int(word) for word in words]
    if len(set(indices)) < len(indices) or max(indices) >= n_gpus:
        raise ArgumentError(f"--gpus: expected distinct indices below {n_gpus}, found {text}")
    return indices


def ranks_and_gpus(ranks: int, gpus: str) -> tuple[int, list[int]]:
    """Returns the number of ranks and the indices of their GPUs; with ``gpus``, there is one rank per GPU.

    If torchrun or srun started the process, the launcher determines the number of ranks, and no GPUs are returned.
    Raises ArgumentError if the GPUs do not exist, or the launcher started another number of ranks.
    """
    if is_launched():
        name, expected = ("--gpus", len(gpus.split(","))) if gpus else ("--ranks", ranks)
        variable = LOCAL_WORLD_SIZE if LOCAL_WORLD_SIZE in os.environ else WORLD_SIZE
        if (gpus or ranks != 1) and str(expected) != os.environ[variable]:
            raise ArgumentError(
                f"{name}: asks for {expected} ranks, but this process was started as one of {os.environ[variable]} "
                f"({variable}); leave {name} out, or start {expected} ranks"
            )
        return int(os.environ[WORLD_SIZE]), []
    most = max(RANKS_MAX, os.cpu_count() or 1)
    if not 1 <= ranks <= most:
        raise ArgumentError(f"--ranks: expected an integer from 1 to {most} on this machine, found {ranks}")
    chosen = parse_gpus(gpus) if gpus else []
    if chosen and ranks not in (1, len(chosen)):
        raise ArgumentError(f"--ranks: expected one rank for each of {len(chosen)} GPUs, found {ranks}")
    return len(chosen) or ranks, chosen


def launch(arguments: Sequence[str], world_size: int, gpus: Sequence[int] = (), *, module: str = PROGRAM) -> int:
    """Runs ``python -m module arguments`` as several ranks and waits for them.

    If a rank fails, the others are terminated. Signals are forwarded: after Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, the
    ranks save and exit, as a single process does. After a second signal, they exit at once. `gpus` are the indices of
    the GPUs to use, one per rank; empty for the launcher's default. Returns 0, the exit status of the rank that failed
    first, or 128 plus the number of a forwarded signal.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // world_size)))
    os.environ.setdefault("TORCHELASTIC_ERROR_FILE", os.devnull)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id=PROGRAM,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
    )
    # Older versions of PyTorch lack these options; they do not forward SIGUSR1, and wait for 30 s.
    handled = ",".join(s.name for s in SIGNALS if s == signal.SIGINT or signal.getsignal(s) != signal.SIG_IGN)
    for name, value in (("signals_to_handle", handled), ("shutdown_timeout", SAVE_TIMEOUT)):
        if hasattr(config, name):
            setattr(config, name, value)
    # Failures are reported below, in one line.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode - 128 in SIGNALS:
            return int(failure.exitcode)  # a signal to the ranks themselves
        cause = f"killed by signal {-failure.exitcode}" if failure.exitcode < 0 else f"exit status {failure.exitcode}"
        print(
            f"tsplat: error: rank {rank} of {world_size} failed first ({cause}); the other ranks were terminated",
            file=sys.stderr,
        )
        return failure.exitcode if failure.exitcode > 0 else 1
    except SignalException as error:
        name = signal.Signals(error.sigval).name
        print(
            f"tsplat: {name} was forwarded to all ranks, which have exited; continue with tsplat train --resume",
            file=sys.stderr,
        )
        return 128 + int(error.sigval)
    return 0
