"""Runs the programs of a launch on the launching thread and further threads.

Machine code claims programs from an atomic counter, without the GIL. Threads return to Python about every 100 ms, or
after a program that takes longer, so that Ctrl-C can interrupt a launch.

If the launch uses as many threads as PyTorch's operators, PyTorch's OpenMP threads run the programs: they spin for some
milliseconds after an operator, and other threads would have to wait for a core. Otherwise the threads of a pool are
used. They wait for a lock without using CPU time. The launching thread does not wait for threads that start late.

OpenMP ends a process that cannot start a thread. ``threading.Thread.start`` waits forever for a thread that runs out of
memory while it starts. So if the address space is limited, OpenMP is not used, and the pool starts threads without
waiting for them, and only if enough address space is left.
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

from . import address_space
from .machine import EntryPoint

NEXT, DONE, TOTAL, CLAIM, ACTIVE, ADDRESS = 0, 1, 2, 3, 8, 9
TICKS = 1 << 28
"""Clock ticks (at 1 to 5 GHz on x86-64) after which a call returns even if programs are left."""

WAIT = 0.1
"""Seconds after which the launching thread checks again whether all programs are done."""

HEADER = "10q"
"""Format of the header of the state of a launch, which machine code reads and updates: next program, number of programs
that are done, total number of programs, maximum number to claim at a time, ticks, grid x, y and z, number of threads in
machine code, and the address of the arguments, which follow the header."""

HEADER_BYTES = struct.calcsize(f"<{HEADER}")


_limit: int | None = None


def set_num_threads(n: int | None) -> None:
    """Sets the maximum number of threads of a launch. None stands for ``torch.get_num_threads()``."""
    global _limit
    _limit = n


def get_num_threads() -> int:
    """Returns the maximum number of threads of a launch."""
    return torch.get_num_threads() if _limit is None else _limit


class Job:
    """A launch that several threads work on."""

    def __init__(self, entry: EntryPoint, state: Any) -> None:
        self.entry = entry
        self.state = state
        self.finished: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(self) -> None:
        """Runs programs until none is left. Called by the threads of the pool."""
        state = self.state
        while state[NEXT] < state[TOTAL]:
            self.entry(state)
        if state[DONE] >= state[TOTAL]:
            self.finished.put(None)


def start_thread(function: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
    """Starts a daemon thread without waiting for it. Returns whether memory and the system allow another thread."""
    if not address_space.is_available(address_space.THREAD):
        return False
    try:
        _thread.start_new_thread(function, arguments)
    except (RuntimeError, MemoryError):
        return False
    return True


class Pool:
    """A pool of threads, which are started on first use."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._started = self._size = 0  # number of threads that were started, and that are running
        self._lock = threading.Lock()

    def help(self, job: Job, helpers: int) -> None:
        """Assigns a job to a number of threads, or to fewer if the system cannot start as many."""
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
            with contextlib.suppress(MemoryError):  # raised by Python; the launching thread runs the programs instead
                job.work()
            job = self._jobs.get()


def run(entry: EntryPoint, state: Any, threads: int) -> bool:
    """Runs all programs of a launch on at most `threads` threads. Returns when they are done.

    An exception in the launching thread, such as KeyboardInterrupt, cancels the programs that no thread has claimed.

    Args:
        entry: The machine code.
        state: Array of int64: the header, followed by the arguments.
        threads: Maximum number of threads, including this one.

    Returns:
        Whether other threads may still read the state later. If so, do not use it for another launch.
    """
    if threads <= 1:
        entry(state)
        while state[DONE] < state[TOTAL]:
            entry(state)
    elif (
        threads == torch.get_num_threads()
        and not _forked
        and not address_space.is_limited()
        and (run_parallel := _openmp())
    ):
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
                job.finished.get(timeout=WAIT)  # a thread that ran out of memory does not report
    except BaseException:
        _cancel(state)
        raise


@functools.cache
def _openmp() -> Callable[[Any, Any, int, int], None] | None:
    """Returns GOMP_parallel(function, argument, number of threads, flags) of PyTorch's OpenMP, or None."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    parallel: Callable[[Any, Any, int, int], None] = function
    return parallel


def _cancel(state: Any) -> None:
    """Cancels the programs of a launch that no thread has claimed, and waits for the others."""
    state[NEXT] = state[TOTAL]
    while state[ACTIVE] > 0:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.001)


_pool = Pool()
_forked = False


def _forget_threads() -> None:
    """Resets the pool in a forked child. It has no other threads, and OpenMP would wait for them forever."""
    global _pool, _forked
    _pool, _forked = Pool(), True


os.register_at_fork(after_in_child=_forget_threads)
