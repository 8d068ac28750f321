"""Selects the tests that can run on this machine, and fills uninitialized memory to reveal unwritten outputs."""

import gc
import math
import os
import signal
import sys
import threading

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers already share the cores

import hypothesis
import pytest
import torch

from tests.support.forks import Forks
from tests.support.interpreter import keep_booleans, vectorize_reductions
from tests.support.waiting import wait_for
from tsplat.runtime.backend import cpu_compiler_problem

if hasattr(signal, "SIGHUP"):
    # Under nohup, tests and the processes that they start would ignore it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a shell without job control.
    signal.signal(signal.SIGINT, signal.default_int_handler)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    vectorize_reductions()
    keep_booleans()

# Examples are the same in every run; `make fuzz` draws new ones. Slow machines do not fail.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    max_examples=20,
    print_blob=True,
)
# Mutants only need to know whether an example fails, so examples are not simplified.
hypothesis.settings.register_profile(
    "mutants", hypothesis.settings.get_profile("tests"), phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))


MASKED_LANES = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")
"""NumPy warns about lanes of the interpreter that kernels mask out."""


def pytest_make_parametrize_id(val, argname):
    # Contents of files would make ids of megabytes, which workers send with each result.
    return argname if isinstance(val, (str, bytes)) and len(val) > 200 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    _mark_repeated(items)
    for item in items:
        if item.get_closest_marker("interpreter"):
            assert "kernels" in item.path.parts, f"{item.nodeid}: make test interprets kernels in tests/kernels only"
            item.add_marker(MASKED_LANES)
            if not INTERPRETED:
                item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1 in a process of its own"))
        if item.get_closest_marker("triton") and not INTERPRETED and (problem := cpu_compiler_problem()):
            item.add_marker(pytest.mark.skip(reason=f"no compiled kernels: {problem}"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        # Tests that share a fixture run in one process (with --dist loadgroup), so that it is set up once.
        shared = [name for name in item.fixturenames if _scope(item, name) == "module"]
        # Once for the whole session: training by several ranks, and processes with imports that take seconds.
        session = [name for name in ("rank_results", "training_forks", "forks") if name in item.fixturenames]
        if session:
            item.add_marker(pytest.mark.xdist_group(session[0]))
        elif shared and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{shared[0]}"))


def _mark_repeated(items):
    """Leaves slow cases to `make repeated` where another case of the same test runs; marks long tests slow."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
    tested = {_test(item) for item in items if not item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("every_case"):
            if _test(item) in tested:
                item.add_marker("repeated")
            tested.add(_test(item))


def _test(item):
    """The name of a test, which its cases share."""
    return item.parent.nodeid, getattr(item, "originalname", item.name)


def pytest_collection_finish():
    gc.freeze()  # modules and tests stay; going through them again and again takes a few percent of the time


def _scope(item, fixture):
    """The scope of a fixture that a test asks for; None if pytest uses it for all tests of a module."""
    info = item._fixtureinfo
    definitions = info.name2fixturedefs.get(fixture)
    return definitions[-1].scope if definitions and fixture in info.argnames else None


@pytest.fixture(scope="module")
def frozen_objects():
    """For tests that collect garbage: leaves out what earlier tests left, which takes tenths of a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def forks():
    """Runs code in new processes; see :class:`Forks`."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def training_forks():
    """Runs code in new processes that have imported what examples, and ranks of a training, import."""
    from tests.support.forked_ranks import MODULES

    forks = Forks(("torch", "matplotlib.pyplot", *MODULES))
    yield forks
    forks.close()


@pytest.fixture(autouse=True)
def _uninitialized_memory_is_nan():
    """Fills the results of torch.empty with NaN or the largest integer."""
    # torch.use_deterministic_algorithms would import torch._inductor, which takes seconds.
    torch.set_deterministic_debug_mode("warn")
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(autouse=True)
def _calls_of_other_tests_are_forgotten():
    """A test that changes what the stages do must not replay what they did before."""
    yield
    if "tsplat.passes.replay_cache" in sys.modules:
        sys.modules["tsplat.passes.replay_cache"].clear_caches()


@pytest.fixture(autouse=True)
def _viewers_end():
    """A thread of a viewer that outlives its test would fail others, far from its cause."""
    yield
    wait_for(lambda: not any(thread.name == "tsplat-viewer" for thread in threading.enumerate()), 10)


@pytest.fixture(autouse=True)
def _threads_of_kernels_are_those_of_pytorch():
    """Takes back what commands set in this process; see ``reserve_threads``."""
    n_threads = torch.get_num_threads()
    yield
    if "tsplat.triton_cpu" in sys.modules:
        sys.modules["tsplat.triton_cpu"].set_num_threads(None)
    torch.set_num_threads(n_threads)


@pytest.fixture
def cut_lists(monkeypatch):
    """Cuts lists into chunks of the length that the fixture is called with; returns the numbers of chunks."""
    from tsplat.kernels import compositing
    from tsplat.kernels.compositing import tuning

    original, counts = compositing.list_parts, []

    def recorded(*arguments, **options):
        lists = original(*arguments, **options)
        counts.append(lists.n_chunks)
        return lists

    def cut(chunk):
        monkeypatch.setattr(tuning, "CPU_CHUNK", chunk)
        monkeypatch.setattr(tuning, "CHUNKS", {math.inf: chunk})
        monkeypatch.setattr(tuning, "AMD_CHUNKS", {math.inf: chunk})
        counts.clear()
        return counts

    monkeypatch.setattr(compositing, "list_parts", recorded)
    return cut
