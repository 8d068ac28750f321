"""Notices ranks that have died or stand still, and ends this process with a message that says which."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .group import Team

INTERVAL = 2.0
SILENCE_MAX = 20.0
"""Seconds between heartbeats, and without one after which a rank counts as dead."""

EXIT_PEER = 13


@contextlib.contextmanager
def heartbeat(team: Team, end: Callable[[str], None] | None = None) -> Iterator[None]:
    """Beats while the block runs and listens to the others; a process of its own needs neither.

    Args:
        end: What to do with the message about a silent rank; by default it is printed and the process ends at once, as
            it may be waiting for that rank in the middle of an operation.
    """
    if team.size == 1:
        yield
        return
    # Typed as Any: PyTorch's stubs lack both.
    own: Any = dist.distributed_c10d._get_default_store()
    store = torch._C._distributed_c10d.PrefixStore("tsplat-heartbeat", own.clone())
    store.set(f"process {team.rank}", f"{os.getpid()}@{socket.gethostname()}")
    done = threading.Event()
    thread = threading.Thread(target=_listen, args=(store, team, done, end or _end), daemon=True)
    thread.start()
    try:
        yield
        # None leaves while another may still listen for it.
        team.wait()
    finally:
        done.set()
        thread.join()


def _listen(store: Any, team: Team, done: threading.Event, end: Callable[[str], None]) -> None:
    others = [rank for rank in range(team.size) if rank != team.rank]
    seen = {rank: (0, time.monotonic()) for rank in others}
    while not done.wait(INTERVAL):
        try:
            store.add(f"{team.rank}", 1)
            beats = {rank: store.add(f"{rank}", 0) for rank in others}
        except (RuntimeError, ValueError) as error:
            if not done.is_set():
                end(f"the ranks' meeting point does not answer any more ({str(error).splitlines()[0][:120]})")
            return
        now = time.monotonic()
        seen = {rank: (beats[rank], now) if beats[rank] != seen[rank][0] else seen[rank] for rank in others}
        silent = [rank for rank in others if now - seen[rank][1] > SILENCE_MAX]
        if silent and not done.is_set():
            names = ", ".join(map(str, silent))
            for rank in silent:
                _kill(store, rank)
            end(f"rank {names} has given no sign for {SILENCE_MAX:.0f} s; it has died, was stopped or hangs")
            return


def _kill(store: Any, rank: int) -> None:
    """Ends a silent process of this machine, which may be stopped and deaf to gentler words."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        pid, _, host = store.get(f"process {rank}").decode().partition("@")
        if host == socket.gethostname():
            os.kill(int(pid), signal.SIGKILL)


def _end(message: str) -> None:
    print(f"tsplat: error: rank {os.environ.get('RANK', '?')} ends: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_PEER)
