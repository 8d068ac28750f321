"""The threads that run the programs of a launch together with the thread that launches.

Threads claim programs from a counter in machine code, without Python's global lock. They return to Python every 100 ms
or so, or after a program that takes longer, which lets Ctrl-C interrupt a launch.

Where PyTorch's operators use as many threads as the launch, its own OpenMP threads run the programs: they spin for
some milliseconds after an operator, so that others would have to wait for a core. Otherwise the threads are those of a
pool, which wait for a lock and take no CPU time, and which the launching thread does not wait for if they are late.

OpenMP ends a process that cannot start a thread, and ``threading.Thread.start`` waits forever for one that runs out of
memory before it has said that it runs. So where address space is limited, OpenMP is not used, and the pool starts its
threads without waiting for them, and only where there is room.
"""

import _thread
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

from . import room
from .machine import EntryPoint

NEXT, DONE, TOTAL, CLAIM, ACTIVE, ADDRESS = 0, 1, 2, 3, 8, 9
TICKS = 1 << 28
"""Ticks of the CPU's clock, at 1 to 5 GHz on x86-64, after which a call returns although programs are left."""

WAIT = 0.1
"""Seconds after which the launching thread looks again whether all programs are done."""

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


def start_thread(function: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
    """Starts a daemon thread without waiting for it. Returns False if there is no room for it, or no thread left."""
    if not room.has_room(room.THREAD):
        return False
    try:
        _thread.start_new_thread(function, arguments)
    except (RuntimeError, MemoryError):
        return False
    return True


class Pool:
    """Threads, started when they are first needed."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._started = self._size = 0  # threads that were started, and those that run
        self._lock = threading.Lock()

    def help(self, job: Job, helpers: int) -> None:
        """Asks a number of threads to work on a job; fewer where the system starts no more threads."""
        ready = min(helpers, self._size)
        if self._started < helpers:
            with self._lock:
                while self._started < helpers and start_thread(self._run, (job,)):
                    self._started += 1
        for _ in range(ready):
            self._jobs.put(job)

    def _run(self, job: Job) -> None:
        with self._lock:
            self._size += 1
        while True:
            with contextlib.suppress(MemoryError):  # of Python; the launching thread continues
                job.work()
            job = self._jobs.get()


def run(entry: EntryPoint, state: Any, threads: int) -> bool:
    """Runs all programs of a launch on at most `threads` threads, and returns when they are done.

    Returns whether other threads may read the state later: then it must not be used for another launch.

    The state is an array of int64: the header, and the arguments. An exception in the launching thread, such as
    KeyboardInterrupt, cancels the programs that no thread has claimed.
    """
    if threads <= 1:
        entry(state)
        while state[DONE] < state[TOTAL]:
            entry(state)
    elif threads == torch.get_num_threads() and not _forked and not room.is_limited() and (run_parallel := _openmp()):
        while state[DONE] < state[TOTAL]:
            run_parallel(entry, state, threads, 0)
    else:
        _run_in_pool(Job(entry, state), threads - 1)
        return True
    return False


def _run_in_pool(job: Job, helpers: int) -> None:
    state = job.state
    try:
        _pool.help(job, helpers)
        while state[NEXT] < state[TOTAL]:
            job.entry(state)
        while state[DONE] < state[TOTAL]:
            with contextlib.suppress(queue.Empty):
                job.finished.get(timeout=WAIT)  # a thread that is out of memory does not answer
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
