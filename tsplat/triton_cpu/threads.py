"""The threads that run the programs of a launch together with the thread that launches.

Threads claim programs from a counter in machine code, without Python's global lock. They return to Python every 100 ms
or so, or after a program that takes longer, which lets Ctrl-C interrupt a launch.

Where PyTorch's operators use as many threads as the launch, its own OpenMP threads run the programs: they spin for
some milliseconds after an operator, so that others would have to wait for a core. Otherwise the threads are those of a
pool, which wait for a lock and take no CPU time, and which the launching thread does not wait for if they are late.
"""

import contextlib
import ctypes
import functools
import os
import queue
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .machine import EntryPoint

NEXT, DONE, TOTAL, ACTIVE = 0, 1, 2, 8
TICKS = 1 << 28
"""Ticks of the CPU's clock, at 1 to 5 GHz on x86-64, after which a call returns although programs are left."""

HEADER = "10q"
"""State of a launch, which machine code reads and updates: next program, programs done, programs in all, the most
programs to claim at a time, ticks, grid x, y, z, threads in machine code, and the address of the arguments, which are
behind the header."""

HEADER_BYTES = struct.calcsize(f"<{HEADER}")


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

    def __init__(self, entry: EntryPoint, state: Any) -> None:
        self.entry = entry
        self.state = state
        self.finished: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(self) -> None:
        """Runs programs until none is left to claim; called by the threads of the pool."""
        state = self.state
        while state[NEXT] < state[TOTAL]:
            self.entry(state)
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


def run(entry: EntryPoint, state: Any, threads: int) -> None:
    """Runs all programs of a launch on at most `threads` threads, and returns when they are done.

    The state is an array of int64: the header, and the arguments. An exception in the launching thread, such as
    KeyboardInterrupt, cancels the programs that no thread has claimed.
    """
    if threads <= 1:
        entry(state)
        while state[DONE] < state[TOTAL]:
            entry(state)
    elif threads == torch.get_num_threads() and not _forked and (run_parallel := _openmp()):
        while state[DONE] < state[TOTAL]:
            run_parallel(entry, state, threads, 0)
    else:
        _run_in_pool(Job(entry, state), threads - 1)


def _run_in_pool(job: Job, helpers: int) -> None:
    state = job.state
    try:
        _pool.help(job, helpers)
        while state[NEXT] < state[TOTAL]:
            job.entry(state)
        if state[DONE] < state[TOTAL]:
            job.finished.get()
    except BaseException:
        _cancel(state)
        raise


@functools.cache
def _openmp() -> Callable[[Any, Any, int, int], None] | None:
    """Returns GOMP_parallel of PyTorch's OpenMP, if it has one: function, its argument, number of threads, flags."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    found: Callable[[Any, Any, int, int], None] = function
    return found


def _cancel(state: Any) -> None:
    """Waits until no thread works on a launch any more, without starting further programs."""
    state[NEXT] = state[TOTAL]
    while state[ACTIVE] > 0:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.001)


_pool = Pool()
_forked = False


def _forget_threads() -> None:
    """Starts over in a forked child, where the parent's threads do not exist and OpenMP would wait for them forever."""
    global _pool, _forked
    _pool, _forked = Pool(), True


os.register_at_fork(after_in_child=_forget_threads)
