"""A run, or a rank of a run, that receives a signal: ``python -m tests.support.signal_worker RUN [SIGNAL WHERE
COUNT]``.

Without a signal, the run trains to its end, starting from its newest checkpoint if there is one.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from tests.support.plain_results import simplify
from tests.support.train_worker import capture
from tsplat import cli
from tsplat.strategies import MCMCStrategy
from tsplat.support.files import write_json
from tsplat.training import RunConfig, Trainer, evaluation
from tsplat.training.configuration import to_json
from tsplat.training.runs import run_checkpoints
from tsplat.training.runs import train as runs

STEPS, EVAL_EVERY, SAVE_EVERY = 24, 6, 9

MOMENTS = {"step": (Trainer, "advance"), "render": (evaluation, "_render"), "save": (run_checkpoints, "_write_files")}
"""Name of a moment -> function during which the signal is sent."""


def send(run, signum, where, count):
    """Sends a signal during the `count`-th call of a function, to the launcher if there is one."""
    owner, name = MOMENTS[where]
    function, calls = getattr(owner, name), 0

    def sending(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == count:
            Path(f"{run}.sent").write_text(str(time.time()))
            os.kill(os.getppid() if "RANK" in os.environ else os.getpid(), signum)
            if "RANK" in os.environ:
                time.sleep(0.5)  # until the launcher has forwarded it
        return function(*arguments, **options)

    setattr(owner, name, sending)


def main():
    run, arguments = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    simplify()
    runs.read_run_capture = lambda config, device, *_: capture()
    if arguments and os.environ.get("RANK", "0") == "0":
        send(run, getattr(signal, arguments[0]), arguments[1], int(arguments[2]))
    if (Path(run) / "checkpoints").exists():
        return cli.main(["train", "--resume", run])
    strategy = MCMCStrategy(cap_max=250, refine_start_iter=2, refine_every=5, refine_stop_iter=20)
    config = RunConfig(
        steps=STEPS, seed=5, strategy=strategy, sh_degree=1, save_every=SAVE_EVERY, eval_every=EVAL_EVERY, keep=9,
        deterministic=True, backend="torch",
    )  # fmt: skip
    path = f"{run}.{os.environ.get('RANK', '0')}.json"
    write_json(path, to_json(config))
    return cli.main(["train", ".", "--out", run, "--config", path])


if __name__ == "__main__":
    sys.exit(main())
