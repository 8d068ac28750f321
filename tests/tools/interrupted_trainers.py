"""Interrupts trainers at random times and compares the bits: `python -m tests.tools.interrupted_trainers --count 200`.

Trainers with each strategy run steps that are traced, replayed and refined. A signal, or an error such as an
out-of-memory error, occurs at a random function call or at a random time. After a signal, the trainer continues. After
an error in the middle of a step, for example from a second Ctrl-C, this trainer or a new one resumes from the previous
state. Every state must be bit-exact with that of an uninterrupted trainer.
"""

import argparse
import collections
import contextlib
import copy
import dataclasses
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from tests.support.training_scenes import make_gaussians, make_views
from tsplat.strategies import DefaultStrategy, LongAxisStrategy, MCMCStrategy
from tsplat.support import interruption
from tsplat.training import Config, RunConfig, Trainer
from tsplat.training.presets import for_surfels

STEPS = 18
REFINED = dict(refine_start_iter=3, refine_every=5, refine_stop_iter=14)
STRATEGIES = {
    "long axis": LongAxisStrategy(**REFINED, cap_max=70),
    "mcmc": MCMCStrategy(**REFINED, cap_max=70),
    "default": DefaultStrategy(**REFINED, reset_every=7, grow_grad2d=1e-6),
    "none": None,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gains": dict(gains=True, opacity_weight=0.01, scale_weight=0.01),
    "visible": dict(visible_adam="on", clip_gradients=1e-3),
    "corrections": dict(exposure=True, pose_refinement=True),
    "two views": dict(views_per_step=2, random_background=True),
    "torch": dict(backend="torch"),
    "2dgs": {},
    "fp16": dict(precision="fp16"),
}
KINDS = ("signal", "timer", "second signal", "too little memory")
EXEMPT = ("__enter__", "__exit__", "__del__")
"""Functions in which no error is raised: an error there would leave PyTorch's modes enabled, and they allocate no
memory."""
CALLS_MAX = 14
"""Base-two logarithm of the maximum number of function calls before an interrupt. A traced step has about this many."""


def make_trainer(strategy: str, variant: str) -> Trainer:
    """Returns a trainer with 60 Gaussians. Half of them have such a low opacity that they are relocated or pruned."""
    chosen = STRATEGIES[strategy]
    config = Config(steps=STEPS, strategy=chosen, **{"backend": "triton", **VARIANTS[variant]})
    if variant == "2dgs":
        if isinstance(chosen, DefaultStrategy):
            config = dataclasses.replace(config, strategy=dataclasses.replace(chosen, key_for_gradient="gradient_2dgs"))
        config = dataclasses.replace(for_surfels(RunConfig(**vars(config))), normal_weight=0.0)
    gaussians = make_gaussians(60, sh_degree=1)
    logits = torch.where(torch.arange(60) % 2 == 0, -5.0, 1.0)
    start = dataclasses.replace(gaussians, opacity_logits=logits, means=gaussians.means + 0.05)
    return Trainer(start.as_surfels() if variant == "2dgs" else start, make_views(gaussians), config)


State = tuple[dict[str, torch.Tensor], dict[str, Any]]


def states(strategy: str, variant: str) -> list[State]:
    """Returns the states before and after each step of an uninterrupted trainer."""
    trainer = make_trainer(strategy, variant)
    found = [copy.deepcopy(trainer.state())]
    while trainer.step < STEPS:
        trainer.advance()
        found.append(copy.deepcopy(trainer.state()))
    return found


def is_same(found: State, expected: State) -> bool:
    """Returns whether two states have equal bits."""
    return (
        found[1] == expected[1]
        and found[0].keys() == expected[0].keys()
        and all(torch.equal(found[0][name], expected[0][name]) for name in expected[0])
    )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _is_exempt(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_name in EXEMPT


@contextlib.contextmanager
def interrupting(kind: str, rng: random.Random) -> Iterator[None]:
    """Interrupts the body of the `with` statement at a random time, unless it ends earlier."""
    at, n_calls = int(2 ** rng.uniform(0, CALLS_MAX)), 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal n_calls
        if event not in ("call", "c_return"):
            return
        if kind == "too little memory" and (event == "c_return" or _is_exempt(frame) or _is_exempt(frame.f_back)):
            return
        n_calls += 1
        if n_calls == at:
            sys.setprofile(None)
            if kind == "too little memory":
                raise MemoryError("of this test")
            signal.raise_signal(signal.SIGINT)

    # A second signal is not deferred. With a minimum interval of 0, neither is the first one.
    repeat, interruption.REPEAT = interruption.REPEAT, 0.0 if kind == "second signal" else interruption.REPEAT
    previous = signal.signal(signal.SIGALRM, _interrupt)
    try:
        if kind == "timer":
            signal.setitimer(signal.ITIMER_REAL, 2 ** rng.uniform(-13, -4))
        else:
            sys.setprofile(count)
        yield
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        interruption.REPEAT = repeat


def run(strategy: str, variant: str, expected: list[State], rng: random.Random) -> tuple[collections.Counter[str], str]:
    """Trains with interrupts. Returns the number of interrupts of each kind, and an error message or ""."""
    trainer, counts = make_trainer(strategy, variant), collections.Counter[str]()
    before, kept = copy.deepcopy(trainer.state()), []
    while trainer.step < STEPS:
        kind, step = rng.choice((*KINDS, "nothing")), trainer.step
        where = f"{kind} in step {step}"
        try:
            with interrupting(kind, rng) if kind != "nothing" else contextlib.nullcontext():
                trainer.advance()
        except (KeyboardInterrupt, MemoryError) as error:
            counts[kind] += 1
            kept.append(error)  # as in a notebook, which keeps the traceback with all frames
            if kind in ("second signal", "too little memory"):
                counts["resumed"] += 1
                if rng.random() < 0.5:
                    trainer = make_trainer(strategy, variant)
                trainer.restore(*copy.deepcopy(before))
        except Exception as error:
            return counts, f"{where}: {type(error).__name__}: {error}"
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled() or torch._C._len_torch_function_stack():
            return counts, f"{where}: PyTorch's modes changed"
        before = copy.deepcopy(trainer.state())
        if not is_same(before, expected[trainer.step]):
            return counts, f"{where}: other bits at step {trainer.step}"
    return counts, ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="trainers of each strategy")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=[*STRATEGIES])
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in the background
    failed = 0
    for strategy in options.strategy:
        start, counts, wrong = time.monotonic(), collections.Counter[str](), 0
        expected: dict[str, list[State]] = {}
        for seed in range(options.seed, options.seed + options.count):
            variant = [*VARIANTS][seed % len(VARIANTS)]
            if variant not in expected:
                expected[variant] = states(strategy, variant)
            found, error = run(strategy, variant, expected[variant], random.Random(seed))
            counts += found
            if error:
                wrong += 1
                print(f"{strategy}, {variant}, seed {seed}: {error}", flush=True)
        print(
            f"{strategy}: {options.count} trainers, {wrong} wrong, {dict(counts)}, {time.monotonic() - start:.0f} s",
            flush=True,
        )
        failed += wrong
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
