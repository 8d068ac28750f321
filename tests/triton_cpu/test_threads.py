"""Threads: the same bits for any number, fork, Ctrl-C, launches from several threads."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tests.support.waiting import wait_for
from tsplat.triton_cpu import address_space, launch, threads

ROOT = Path(__file__).parents[2]


@triton.jit
def _work_kernel(x, out, steps):
    program = tl.program_id(0)
    i = tl.arange(0, 16)
    value = tl.load(x + i) + program
    for _ in range(steps):
        value = value * 0.999 + tl.sum(value) * 1e-3
    tl.store(out + program * 16 + i, value)


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    threads.set_num_threads(None)


def work(n_threads, programs=500, steps=40, pool=False):
    """Runs the kernel on PyTorch's OpenMP threads, or on those of the pool, which helps one thread of PyTorch."""
    torch.set_num_threads(1 if pool else n_threads)
    threads.set_num_threads(n_threads)
    x, out = torch.linspace(0, 1, 16), torch.full((programs, 16), torch.nan)
    launch(_work_kernel, (programs,), (x, out, steps))
    return out


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("pool", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch, pool):
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    expected = work(1)
    assert expected.isfinite().all()
    for n_threads in (2, 3, 8):
        for n in (500, 7, 2, 1):
            assert torch.equal(work(n_threads, n, pool=pool), expected[:n])
    if pool:
        wait_for(lambda: threads._pool._size >= 7)


@pytest.mark.usefixtures("_threads")
def test_openmp_threads_share_a_launch(monkeypatch):
    """Each of two threads claims programs, and none is of the pool."""
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    monkeypatch.setattr(threads, "TICKS", 0)  # each thread returns after one program
    monkeypatch.setattr(threads, "_pool", None)
    calls = []
    run_parallel = threads._openmp()

    def count(entry, state, n_threads, flags):
        run_parallel(entry, state, n_threads, flags)
        calls.append(state[threads.DONE])

    monkeypatch.setattr(threads, "_openmp", lambda: count)
    expected = work(1, 100)
    assert torch.equal(work(2, 100), expected)
    assert calls == list(range(2, 101, 2))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("pool", [False, True])
def test_launches_from_several_threads_at_once(monkeypatch, pool):
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    expected = work(2)
    results = {}

    def run(k):
        results[k] = work(2, pool=pool)

    callers = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(torch.equal(results[k], expected) for k in range(4))


@pytest.mark.usefixtures("_threads")
def test_calls_return_when_their_time_is_up_and_continue(monkeypatch):
    """Every call of machine code ends after its first program, as if programs were slow."""
    monkeypatch.setattr(threads, "TICKS", 0)
    calls = []
    expected = work(1, 100)

    def entry(state):
        calls.append(list(state[:3]))
        real(state)

    def run(run_entry, state, n_threads):
        nonlocal real
        real = run_entry
        original(entry, state, n_threads)

    real, original = None, threads.run
    monkeypatch.setattr(threads, "run", run)
    assert torch.equal(work(1, 100), expected)
    assert len(calls) == 100


@pytest.mark.usefixtures("_threads")
def test_a_launch_needs_no_further_threads(monkeypatch):
    """Where the system starts only one more thread, that one and the caller share the programs."""
    pool, started = threads.Pool(), []
    start = threads._thread.start_new_thread

    def start_one(*arguments):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(start(*arguments))

    expected = work(1)
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    monkeypatch.setattr(threads, "_pool", pool)
    monkeypatch.setattr(threads._thread, "start_new_thread", start_one)
    for _ in range(3):
        assert torch.equal(work(4, pool=True), expected)
    wait_for(lambda: pool._size == 1)
    assert len(started) == pool._started == 1
    assert pool._jobs.qsize() <= 3  # one per launch


@pytest.mark.usefixtures("_threads")
def test_threads_that_die_of_memory_are_not_waited_for(monkeypatch):
    """One never runs Python; others run out of it before they have worked, or before they have said that they did."""
    pool, started = threads.Pool(), []
    start = threads._thread.start_new_thread

    def start_or_not(*arguments):
        started.append(arguments)
        return start(*arguments) if len(started) > 1 else 0

    real, failures = threads.Job.work, []

    def work_or_fail(job):
        if not failures:
            failures.append(job)
            raise MemoryError
        real(threads.Job(job.entry, job.state))  # which nobody waits for

    expected = work(1)
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    monkeypatch.setattr(threads, "_pool", pool)
    monkeypatch.setattr(threads._thread, "start_new_thread", start_or_not)
    monkeypatch.setattr(threads.Job, "work", work_or_fail)
    for _ in range(3):
        assert torch.equal(work(4, pool=True), expected)
    assert len(started) == 3
    wait_for(lambda: failures and pool._size == 2)


@pytest.mark.usefixtures("_threads")
def test_little_address_space_leaves_the_work_to_one_thread(monkeypatch):
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    expected = work(1)
    monkeypatch.setattr(threads, "_pool", threads.Pool())
    monkeypatch.setattr(address_space, "is_available", lambda n_bytes: False)
    monkeypatch.setattr(threads._thread, "start_new_thread", None)
    assert torch.equal(work(4, pool=True), expected)


@pytest.mark.usefixtures("_threads")
def test_openmp_is_not_used_where_address_space_is_limited(monkeypatch):
    """OpenMP ends the process if it cannot start a thread."""
    monkeypatch.setattr("tsplat.triton_cpu.launcher.HELPER_SECONDS", 1e-12)
    expected = work(1)
    monkeypatch.setattr(address_space, "is_limited", lambda: True)
    monkeypatch.setattr(threads, "_openmp", None)
    assert torch.equal(work(2), expected)


LIMIT = """
import resource, sys, torch
from tests.triton_cpu.test_cache import scale
from tests.triton_cpu.test_threads import work
from tsplat.triton_cpu import address_space, launcher
kind, left = sys.argv[1], int(sys.argv[2])
launcher.HELPER_SECONDS = 1e-12
expected = work(1)
scale(2.0)
assert not address_space.is_limited()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + left, resource.RLIM_INFINITY))
assert address_space.is_limited()
try:
    if kind == "load":
        scale(2.0)
    elif kind == "compile":
        scale(3.25)
    else:
        assert torch.equal(work(4, pool=kind == "pool"), expected)
except MemoryError:
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are those of Linux")
@pytest.mark.parametrize("left", [0, 100_000, 8_300_000, 17_000_000])
@pytest.mark.parametrize("kind", ["load", "compile", "pool", "openmp"])
def test_a_limit_of_address_space_is_an_error_in_python(forks, kind, left, tmp_path):
    """Neither a thread that never starts nor an abort of LLVM or OpenMP."""
    found = forks.run(LIMIT, kind, left, environment={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)})
    assert found.returncode == 0, found.stderr


FORK = """
import os, threading, time
import torch
from tests.triton_cpu.test_threads import _work_kernel, threads, work
from tsplat.triton_cpu import launcher, machine
expected = work(2)
assert torch.equal(work(2, pool=True), expected)
held, released = threading.Event(), threading.Event()
def compile_slowly():
    with machine.lock, _work_kernel._hash_lock:
        held.set()
        time.sleep(0.5)
        released.set()
threading.Thread(target=compile_slowly).start()
held.wait()
child = os.fork()
assert released.is_set()
if child == 0:
    launcher._launchers[id(_work_kernel)].compiled.clear()
    _work_kernel.hash = None
    torch.set_num_threads = lambda n: None  # OpenMP would wait for the parent's threads
    threads.set_num_threads(2)
    os._exit(0 if all(torch.equal(work(2, pool=pool), expected) for pool in (False, True)) else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(work(2), expected)
assert torch.equal(work(2, pool=True), expected)
"""

INTERRUPT = """
import signal, sys
from tests.triton_cpu.test_threads import work
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with the signal ignored
n, pool = int(sys.argv[1]), sys.argv[2] == "pool"
work(n, 8, 1, pool)
try:
    print("started", flush=True)
    work(n, 400_000, 10_000_000, pool)  # hours
except KeyboardInterrupt:
    print("interrupted", flush=True)
    work(n, 8, 1, pool)
    sys.exit(7)
"""


@contextlib.contextmanager
def _python(script, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_forked_child_launches_with_threads_and_locks_of_its_own(forks):
    found = forks.run(FORK)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("n_threads", "kind"), [("1", "pool"), ("2", "pool"), ("2", "openmp")])
def test_ctrl_c_ends_a_long_launch(n_threads, kind):
    with _python(INTERRUPT, n_threads, kind) as process:
        assert process.stdout.readline() == "started\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert output == "interrupted\n"
    assert process.returncode == 7


@pytest.mark.usefixtures("_threads")
def test_idle_threads_take_no_time():
    work(4)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
