"""Heartbeats between ranks: a rank that stops sending them ends the run on all ranks, with a message that names it."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ...errors import PeerError
from ...runtime.process_group import RankGroup
from ...support.process_identity import describe_process, is_running, shares_ids

INTERVAL = 2.0
"""Seconds between heartbeats."""

TIMEOUT = 20.0
"""Seconds without a heartbeat after which a rank counts as dead, while the monitor itself was running."""

EXIT_PEER = 13
"""Exit status of a rank that ends because another one died."""


@contextlib.contextmanager
def heartbeat(ranks: RankGroup) -> Iterator[None]:
    """Context manager that sends heartbeats and monitors those of the other ranks. Does nothing for a single process.

    When another rank's heartbeats stop, a message is printed and the process exits immediately, because it may be
    blocked in a collective with the dead rank. Raises PeerError if a collective fails while no heartbeat is missing:
    collectives fail as soon as another rank ends.
    """
    if ranks.world_size == 1:
        yield
        return
    # Typed as Any: PyTorch's stubs lack both.
    default_store: Any = dist.distributed_c10d._get_default_store()
    store = torch._C._distributed_c10d.PrefixStore("tsplat-heartbeat", default_store.clone())
    store.set(f"process {ranks.rank}", json.dumps(describe_process()))
    done = threading.Event()
    thread = threading.Thread(target=_monitor, args=(store, ranks, done), daemon=True)
    thread.start()
    try:
        yield
        # A rank that stopped its heartbeats before the others finish would look dead to them.
        ranks.barrier()
    except RuntimeError as error:
        if not _is_backend_error(error):
            raise
        # The other rank reports why it ended. If it cannot, the launcher does, or the monitor, which then exits.
        thread.join(TIMEOUT + 4 * INTERVAL)
        reason = re.sub(r"^\[[^]]*\] *", "", str(error)).splitlines()[0][:200]
        raise PeerError(f"ranks: the connection to another rank was lost ({reason}); see its messages") from error
    finally:
        done.set()
        thread.join()


def _is_backend_error(error: RuntimeError) -> bool:
    """Returns whether Gloo or NCCL has raised an error."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


def _monitor(store: Any, ranks: RankGroup, done: threading.Event) -> None:
    others = [rank for rank in range(ranks.world_size) if rank != ranks.rank]
    latest, waited = dict.fromkeys(others, 0), dict.fromkeys(others, 0.0)
    before = time.monotonic()
    while not done.wait(INTERVAL):
        try:
            store.add(f"{ranks.rank}", 1)
            counts = {rank: store.add(f"{rank}", 0) for rank in others}
        except (RuntimeError, ValueError) as error:
            if not done.is_set():
                _exit(ranks.rank, f"the rendezvous store no longer answers ({str(error).splitlines()[0][:120]})")
            return
        now = time.monotonic()
        # After Slurm has suspended the job, or the process with the store, ranks resume one after another.
        was_suspended = now - before > TIMEOUT / 2
        for rank in others:
            is_unchanged = counts[rank] == latest[rank] and not was_suspended
            waited[rank] = waited[rank] + now - before if is_unchanged else 0.0
        latest, before = counts, now
        dead = [rank for rank in others if waited[rank] > TIMEOUT]
        if dead and not done.is_set():
            for rank in dead:
                _kill(store, rank)
            names = ", ".join(map(str, dead))
            reason = f"no heartbeat from rank {names} for {TIMEOUT:.0f} s; it was killed, is stopped or hangs"
            _exit(ranks.rank, reason)


def _kill(store: Any, rank: int) -> None:
    """Kills a rank on this machine by SIGKILL, because a stopped process ignores other signals."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        process = json.loads(store.get(f"process {rank}"))
        if shares_ids(process) and is_running(process):
            os.kill(process["pid"], signal.SIGKILL)


def _exit(rank: int, message: str) -> NoReturn:
    print(f"tsplat: error: rank {rank} exits: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_PEER)
