"""Random sequences of actions with tsplat in one process, compared with the same actions in fresh processes.

A fresh process is a fork of a process that has imported modules but not called anything.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import hashlib
import importlib
import inspect
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tsplat
import tsplat.kernels
from tests.support.call_kinds import Begun, CallKind, random_kind
from tests.support.graphs import FakeRecorder
from tests.support.training_scenes import gray, make_gaussians, make_views
from tsplat.passes import graphed_calls, replay_cache
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import Config, Trainer

PACKAGE = str(Path(tsplat.__file__).parent)
CAPACITY = 60_000
"""Capacity of compiled calls."""

Outcome = dict[str, str]
"""Name of a result -> text that identifies its bits."""


@dataclasses.dataclass(frozen=True)
class Rendering:
    """A call of a random kind, forward and backward.

    Attributes:
        seed: Random seed of the kind.
        factor, grown: Changes of the Gaussians of the kind.
        mode: "plain", "inference", "autocast", "capacity" (too small), "invalid" (an argument is invalid), "graphed" or
            "compiled".
    """

    seed: int
    factor: float = 1.0
    grown: float = 1.0
    mode: str = "plain"

    def kind(self) -> CallKind:
        kind = random_kind(self.seed)
        if (self.factor, self.grown) != (1.0, 1.0):
            kind = kind.moved(self.factor, self.grown)
        if self.mode == "compiled":
            # The `meta` of compiled calls has fewer values, none of which is differentiable.
            options = kind.options | {"packed": False, "capacity": CAPACITY, "absgrad": False}
            options |= {"return_normals": False} if "return_normals" in options else {}
            tensors = {name: tensor for name, tensor in kind.tensors.items() if name != "extra_signals"}
            kind = dataclasses.replace(kind, tensors=tensors, options=options, centers=False, twice=False)
        changed = {"capacity": {"capacity": 3}, "invalid": {"width": -1}}
        return dataclasses.replace(kind, options=kind.options | changed.get(self.mode, {}))

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.mode == "inference":
                stack.enter_context(torch.inference_mode())
            if self.mode == "autocast":
                stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            yield

    def begin(self, function: Callable[..., Any] | None = None) -> Begun:
        kind = self.kind()
        if self.mode == "inference":
            kind = dataclasses.replace(kind, enabled=False)
        with self.context():
            return kind.begin(function)

    def outcome(self) -> Outcome:
        """Runs the call in this process."""
        return outcome(lambda: self.begin().finish())

    def fresh(self) -> Outcome:
        """Runs the call in this process without graphs."""
        return self.outcome()


@dataclasses.dataclass(frozen=True)
class Training:
    """A training run with a few Gaussians, up to a step."""

    name: str
    steps: int

    def trainer(self) -> Trainer:
        gaussians = make_gaussians(40, sh_degree=1)
        views = make_views(gaussians, 2)
        strategy: Any = {"standard": DefaultStrategy, "mcmc": MCMCStrategy}[self.name]
        schedule = dict(refine_start_iter=1, refine_every=3, refine_stop_iter=50)
        return Trainer(gray(gaussians), views, Config(steps=60, strategy=strategy(**schedule)))

    def fresh(self) -> Outcome:
        trainer = self.trainer()
        return outcome(lambda: advance(trainer, self.steps))


def advance(trainer: Trainer, to: int) -> dict[str, Any]:
    """Trains up to a step, and returns the Gaussians."""
    while trainer.step < to:
        loss = trainer.advance().loss
    found = {f.name: getattr(trainer.gaussians, f.name) for f in dataclasses.fields(trainer.gaussians)}
    return found | {"loss": loss}


Work = Rendering | Training


def outcome(function: Callable[[], dict[str, Any]]) -> Outcome:
    """Runs a function, and returns an outcome that identifies its results or its error."""
    try:
        return {name: identity(value) for name, value in function().items()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def identity(value: Any) -> str:
    """Identifies a value by its bits, ignoring the sign of zeros and the bits of NaN.

    Zeros and None are equal: if no used image depends on a tensor, its gradient may be either.
    """
    if not isinstance(value, Tensor):
        return repr(value)
    plain = value.detach()
    if not plain.any():
        return "None"
    array = plain.contiguous().numpy()
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.nan, array + 0.0).astype(array.dtype)
    return f"{list(value.shape)} {value.dtype} {hashlib.sha1(array.tobytes()).hexdigest()}"


# --- actions of a process


@dataclasses.dataclass(frozen=True)
class Action:
    """An action of a process.

    Attributes:
        name: Name of a method of :class:`Process`.
        rendering: The call that the action renders.
        others: Calls that other threads render at the same time.
        number: Depending on the action: the slot of a call that waits for its backward pass, the index of the function
            call that is interrupted, or a number of kinds or steps.
        text: Further details of the action.
    """

    name: str
    rendering: Rendering | None = None
    others: tuple[Rendering, ...] = ()
    number: int = 0
    text: str = ""


class Process:
    """The state of a process between actions."""

    def __init__(self) -> None:
        self.begun: dict[int, tuple[Rendering, Begun]] = {}
        self.trainers: dict[str, Trainer] = {}
        self.graphed: dict[Any, Any] = {}
        self.compiled: dict[Any, Any] = {}
        self.results: list[tuple[Work, Outcome]] = []

    def note(self, of: Work, found: Outcome) -> None:
        self.results.append((of, found))

    def do(self, action: Action) -> None:
        state = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        getattr(self, action.name)(action)
        assert state == (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))

    def call(self, action: Action) -> None:
        assert action.rendering is not None
        self.note(action.rendering, action.rendering.outcome())

    def begin(self, action: Action) -> None:
        rendering = action.rendering
        assert rendering is not None
        try:
            self.begun[action.number] = rendering, rendering.begin()
        except Exception as error:
            self.note(rendering, {"error": f"{type(error).__name__}: {error}"})

    def finish(self, action: Action) -> None:
        if action.number not in self.begun:
            return
        rendering, begun = self.begun.pop(action.number)
        with rendering.context():
            if action.text == "thread":
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    self.note(rendering, pool.submit(outcome, begun.finish).result())
            elif action.text == "here":
                self.note(rendering, outcome(begun.finish))

    def together(self, action: Action) -> None:
        with concurrent.futures.ThreadPoolExecutor(len(action.others)) as pool:
            for rendering, found in zip(action.others, pool.map(Rendering.outcome, action.others)):
                self.note(rendering, found)

    def interrupt(self, action: Action) -> None:
        assert action.rendering is not None
        error = KeyboardInterrupt() if action.text == "interrupt" else MemoryError("out of memory")
        kind, finished = action.rendering, False
        with contextlib.suppress(KeyboardInterrupt, MemoryError), raising(error, action.number):
            found = kind.outcome()
            finished = "MemoryError" not in found.get("error", "")
        if finished:
            self.note(kind, found)

    def fork(self, action: Action) -> None:
        assert action.rendering is not None
        self.note(action.rendering, in_fork(action.rendering.outcome))

    def forget(self, action: Action) -> None:
        replay_cache.clear_caches()

    def limit(self, action: Action) -> None:
        replay_cache.ENTRIES_MAX = action.number

    def collect(self, action: Action) -> None:
        """Frees memory, and overwrites some of it."""
        gc.collect()
        for size in (64, 1000, 4096, 60_000):
            for _ in range(4):
                torch.full((size,), torch.nan)

    def train(self, action: Action) -> None:
        trainer = self.trainers.get(action.text) or Training(action.text, 0).trainer()
        self.trainers[action.text] = trainer
        target = trainer.step + action.number
        self.note(Training(action.text, target), outcome(lambda: advance(trainer, target)))

    def graph(self, action: Action) -> None:
        rendering = action.rendering
        assert rendering is not None
        kind = rendering.kind()
        function = self.graphed.setdefault(kind.function, tsplat.graphed(kind.function))
        self.note(rendering, outcome(lambda: kind.begin(function).finish()))

    def compile(self, action: Action) -> None:
        rendering = action.rendering
        assert rendering is not None
        kind = rendering.kind()
        function = self.compiled.setdefault(rendering.seed, torch.compile(kind.function))
        found = outcome(lambda: kind.begin(function).finish())
        found.pop("v_means2d", None)
        self.note(rendering, found)


@contextlib.contextmanager
def raising(error: BaseException, n: int) -> Iterator[None]:
    """Raises an error at the n-th call of a Python function of tsplat in the block.

    Generators and exits of context managers are excluded, because code after a `yield` would be skipped.
    """
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_flags & inspect.CO_GENERATOR:
            return
        if code.co_name == "__exit__" or ("triton_cpu" in code.co_filename and "launch" not in code.co_name):
            return  # compiling a kernel calls thousands of functions, which would get nearly all interrupts
        count += 1
        if count == n:
            sys.setprofile(None)
            raise error

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


# --- sequences


KINDS = 40
"""Number of kinds of calls in sequences. The kernels of each are compiled once per machine."""

MODES = ("plain",) * 8 + ("inference", "autocast", "capacity", "invalid")


def random_sequence(seed: int, *, compiled: bool = False) -> list[Action]:
    """Returns random actions of a process. Most calls are of a few kinds, so that they are replayed."""
    r = random.Random(seed)
    seeds = [r.randrange(KINDS) for _ in range(r.choice([1, 2, 2, 3]))]
    factors, grown = (1.0, 1.0, 1.01, 0.97), (1.0,) * 5 + (2.5,)

    def rendering() -> Rendering:
        return Rendering(r.choice(seeds), r.choice(factors), r.choice(grown), r.choice(MODES))

    actions: list[Action] = []
    if r.random() < 0.3:
        actions.append(Action("limit", number=r.choice([1, 2, 3])))
    slots: list[int] = []
    for i in range(r.randrange(8, 16)):
        name = r.choice(
            ["call"] * 8 + ["begin"] * 5 + ["finish"] * 4 + ["together"] + ["interrupt"] * 2
            + ["fork", "forget", "collect", "train", "graph"] + ["compile"] * compiled
        )  # fmt: skip
        if name == "begin":
            slots.append(i)
            actions.append(Action(name, rendering(), number=i))
        elif name == "finish" and slots:
            slot = slots.pop(r.randrange(len(slots)))
            actions.append(Action(name, number=slot, text=r.choice(["here", "here", "thread", "never"])))
        elif name == "together":
            actions.append(Action(name, others=tuple(rendering() for _ in range(3))))
        elif name == "interrupt":
            # The first call of a kind calls thousands of functions, a replayed one dozens.
            n = r.choice([r.randrange(1, 40), r.randrange(1, 400), r.randrange(1, 2000)])
            actions.append(Action(name, rendering(), number=n, text=r.choice(["interrupt", "memory"])))
        elif name == "train":
            actions.append(Action(name, text=r.choice(["standard", "mcmc"]), number=r.randrange(1, 7)))
        elif name in ("graph", "compile"):
            mode = "graphed" if name == "graph" else "compiled"
            actions += [Action(name, dataclasses.replace(rendering(), mode=mode, seed=seeds[0])) for _ in range(3)]
        elif name in ("call", "fork"):
            actions.append(Action(name, rendering()))
        elif name in ("forget", "collect"):
            actions.append(Action(name))
    r.shuffle(slots)
    return actions + [Action("finish", number=slot, text="here") for slot in slots]


def perform(actions: list[Action]) -> list[tuple[Work, Outcome]]:
    """Performs actions in this process, and returns their outcomes."""
    process = Process()
    for action in actions:
        process.do(action)
    return process.results


def in_fork(function: Callable[[], Any], seconds: int = 300) -> Any:
    """Runs a function in a fork of this process, and returns its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            signal.alarm(seconds)
            # PyTorch replaces the parent's thread pool here. If several threads did this at once, it would raise an
            # error.
            torch.set_num_threads(torch.get_num_threads())
            try:
                found: Any = function()
            except BaseException:
                found = {"error": traceback.format_exc()}
            with os.fdopen(writing, "wb") as file:
                pickle.dump(found, file)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if status == 0 else {"error": f"ended with status {status}"}


def prepare() -> None:
    """Prepares a process whose forks are fresh processes.

    It imports the modules that calls import, and computes Triton's hashes of kernels, so that forks need not.
    """
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("warn")  # arenas are filled with NaN
    graphed_calls.RECORDERS["cpu"] = FakeRecorder
    for name in in_fork(_modules_of_calls):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in [name for name in sys.modules if name.startswith("tsplat.")]:
        for value in list(vars(sys.modules[name]).values()):
            getattr(value, "cache_key", None)


def _modules_of_calls() -> list[str]:
    """Makes calls, and returns the names of all modules that are imported afterwards."""
    for seed in (1, 2, 97):
        for _ in range(3):
            Rendering(seed).outcome()
    Training("standard", 4).fresh()
    return [name for name in sys.modules if name.startswith(("tsplat.", "torch.", "sympy", "triton.", "numpy."))]


@functools.cache
def fresh_outcome(of: Work) -> Outcome:
    """Returns the outcome in a fresh process."""
    found: Outcome = in_fork(of.fresh)
    return found


def differences(actions: list[Action]) -> list[str]:
    """Performs actions in a fork, and returns the differences from fresh processes."""
    results = in_fork(functools.partial(perform, actions))
    if isinstance(results, dict):
        return [results["error"]]
    found = []
    for of, own in results:
        expected = fresh_outcome(of)
        names = own if isinstance(of, Rendering) and of.mode == "compiled" else {**expected, **own}
        wrong = [name for name in names if own.get(name, "None") != expected.get(name, "None")]
        if wrong:
            wrong.sort(key=lambda name: name != "error")
            values = "; ".join(f"{n}: {own.get(n)} instead of {expected.get(n)}" for n in wrong[:2])
            found.append(f"{of}: {len(wrong)} differ, {values}")
    return found


def simplified(actions: list[Action]) -> list[Action]:
    """Removes actions as long as there are still differences."""
    i = 0
    while i < len(actions):
        fewer = actions[:i] + actions[i + 1 :]
        if differences(fewer):
            actions = fewer
        else:
            i += 1
    return actions
