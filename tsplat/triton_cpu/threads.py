"""A pool of threads that run the programs of a launch together with the thread that launches.

Threads claim programs from a counter in machine code, without Python's global lock. Idle threads wait for a lock and
take no CPU time. The launching thread returns to Python every 100 ms or so, or after a program that takes longer, which
lets Ctrl-C interrupt a launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
import time
from typing import Any

import torch

from .machine import EntryPoint

NEXT, DONE, TOTAL, ACTIVE = 0, 1, 2, 8
TICKS = 1 << 28
"""Ticks of the CPU's clock, at 1 to 5 GHz on x86-64, after which a call returns although programs are left."""

State = ctypes.c_int64 * 9
"""State of a launch, which machine code reads and updates: next program, programs done, programs in all, the most
programs to claim at a time, ticks, grid x, y, z, and threads in machine code."""


_limit: int | None = None


def set_num_threads(n: int | None) -> None:
    """Sets the largest number of threads of a launch; with None, it is that of PyTorch, ``torch.get_num_threads()``."""
    global _limit
    _limit = n


def get_num_threads() -> int:
    """Returns the largest number of threads of a launch."""
    return torch.get_num_threads() if _limit is None else _limit


class Job:
    """A launch that several threads work on."""

    def __init__(self, entry: EntryPoint, arguments: Any, state: Any) -> None:
        self.entry = entry
        self.arguments = arguments
        self.state = state
        self.finished: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(self) -> None:
        """Runs programs until none is left to claim; called by the threads of the pool."""
        state = self.state
        while state[NEXT] < state[TOTAL]:
            self.entry(self.arguments, state)
        if state[DONE] >= state[TOTAL]:
            self.finished.put(None)


class Pool:
    """Threads, started when they are first needed."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._size = 0
        self._lock = threading.Lock()

    def help(self, job: Job, helpers: int) -> None:
        """Asks a number of threads to work on a job; fewer where the system starts no more threads."""
        if self._size < helpers:
            with self._lock, contextlib.suppress(RuntimeError):
                while self._size < helpers:
                    threading.Thread(target=self._run, name="triton_cpu", daemon=True).start()
                    self._size += 1
        for _ in range(min(helpers, self._size)):
            self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._jobs.get().work()


def run(entry: EntryPoint, arguments: bytes, grid: tuple[int, int, int], threads: int) -> None:
    """Runs all programs of a grid, on at most a number of threads, and returns when they are done.

    An exception in the launching thread, such as KeyboardInterrupt, cancels the programs that no thread has claimed.
    """
    total = grid[0] * grid[1] * grid[2]
    threads = min(threads, total)
    claim = min(max(total // (16 * max(threads, 1)), 1), 64)
    state = State(0, 0, total, claim, TICKS, *grid, 0)
    if threads <= 1:
        while state[DONE] < total:
            entry(arguments, state)
        return
    job = Job(entry, arguments, state)
    try:
        _pool.help(job, threads - 1)
        while state[NEXT] < total:
            entry(arguments, state)
        if state[DONE] < total:
            job.finished.get()
    except BaseException:
        _cancel(state)
        raise


def _cancel(state: Any) -> None:
    """Waits until no thread works on a launch any more, without starting further programs."""
    state[NEXT] = state[TOTAL]
    while state[ACTIVE] > 0:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.001)


_pool = Pool()


def _forget_threads() -> None:
    """Starts over in a forked child, where the threads of the parent do not exist."""
    global _pool
    _pool = Pool()


os.register_at_fork(after_in_child=_forget_threads)
