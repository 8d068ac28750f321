"""Heartbeats between ranks: a rank that stops sending them ends the run on all ranks, with a message that names it."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ...stages.process_group import RankGroup

INTERVAL = 2.0
"""Seconds between heartbeats."""

TIMEOUT = 20.0
"""Seconds without a heartbeat after which a rank counts as dead."""

EXIT_PEER = 13
"""Exit status of a rank that ends because another one died."""


@contextlib.contextmanager
def heartbeat(ranks: RankGroup) -> Iterator[None]:
    """Sends heartbeats and monitors those of the other ranks while the block runs. Does nothing for a single process.

    When another rank's heartbeats stop, a message is printed and the process exits immediately, because it may be
    blocked in a collective with the dead rank.
    """
    if ranks.world_size == 1:
        yield
        return
    # Typed as Any: PyTorch's stubs lack both.
    default_store: Any = dist.distributed_c10d._get_default_store()
    store = torch._C._distributed_c10d.PrefixStore("tsplat-heartbeat", default_store.clone())
    store.set(f"process {ranks.rank}", f"{os.getpid()}@{socket.gethostname()}")
    done = threading.Event()
    thread = threading.Thread(target=_monitor, args=(store, ranks, done), daemon=True)
    thread.start()
    try:
        yield
        # A rank that stopped its heartbeats before the others finish would look dead to them.
        ranks.barrier()
    finally:
        done.set()
        thread.join()


def _monitor(store: Any, ranks: RankGroup, done: threading.Event) -> None:
    others = [rank for rank in range(ranks.world_size) if rank != ranks.rank]
    last_change = {rank: (0, time.monotonic()) for rank in others}
    while not done.wait(INTERVAL):
        try:
            store.add(f"{ranks.rank}", 1)
            counts = {rank: store.add(f"{rank}", 0) for rank in others}
        except (RuntimeError, ValueError) as error:
            if not done.is_set():
                _exit(ranks.rank, f"the rendezvous store no longer answers ({str(error).splitlines()[0][:120]})")
            return
        now = time.monotonic()
        for rank in others:
            if counts[rank] != last_change[rank][0]:
                last_change[rank] = (counts[rank], now)
        dead = [rank for rank in others if now - last_change[rank][1] > TIMEOUT]
        if dead and not done.is_set():
            for rank in dead:
                _kill(store, rank)
            names = ", ".join(map(str, dead))
            reason = f"no heartbeat from rank {names} for {TIMEOUT:.0f} s; it was killed, is stopped or hangs"
            _exit(ranks.rank, reason)


def _kill(store: Any, rank: int) -> None:
    """Kills a rank on this machine by SIGKILL, since a stopped process ignores other signals."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        pid, _, machine = store.get(f"process {rank}").decode().partition("@")
        if machine == socket.gethostname():
            os.kill(int(pid), signal.SIGKILL)


def _exit(rank: int, message: str) -> NoReturn:
    print(f"tsplat: error: rank {rank} exits: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_PEER)
