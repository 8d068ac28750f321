"""A rank of a run in which one rank fails: ``python -m tests.support.fault_worker RUN KIND VICTIM STEP TIMEOUT``."""

import os
import resource
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
from tsplat.training import RunConfig, Trainer
from tsplat.training.configuration import to_json
from tsplat.training.processes import heartbeat
from tsplat.training.runs import train as runs

STEPS = 16


def configuration():
    strategy = MCMCStrategy(cap_max=250, refine_start_iter=2, refine_every=5, refine_stop_iter=13)
    return RunConfig(steps=STEPS, seed=5, strategy=strategy, sh_degree=1, save_every=3, eval_every=8, keep=2)


def inject(kind, step, time_file):
    """Makes this rank fail before a step, and records the time."""
    advance = Trainer.advance

    def failing(trainer):
        if trainer.step == step:
            time_file.write_text(str(time.time()))
            match kind:
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "interrupted":
                    os.kill(os.getppid(), signal.SIGINT)  # the launcher
                case "raises":
                    raise ValueError("an error in a callback")
                case "shape":
                    shN = trainer._parameters.params["shN"]
                    shN.data = shN.data[:, :0]
                case "setting":
                    trainer._parameters._flags["antialiased"] = True
                case "disk":
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        return advance(trainer)

    Trainer.advance = failing


def main():
    run, kind, victim, step, timeout = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    torch.set_num_threads(1)
    simplify()
    heartbeat.TIMEOUT = timeout
    heartbeat.INTERVAL = min(heartbeat.INTERVAL, timeout / 4)
    runs.read_run_capture = lambda config, device, *_: capture()
    if int(os.environ.get("RANK", "0")) == victim:
        inject(kind, step, Path(f"{run}.failed"))
    config = f"{run}.{os.environ.get('RANK', '0')}.json"
    write_json(config, to_json(configuration()))
    return cli.main(["train", ".", "--out", run, "--config", config])


if __name__ == "__main__":
    sys.exit(main())
