"""A rank of a run in which one goes wrong: `python -m tests.support.fault_worker RUN KIND VICTIM STEP SILENCE`."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch

from tests.support.team_worker import capture
from tsplat import cli
from tsplat.strategies import MCMCStrategy
from tsplat.training import RunConfig, Trainer, runs, train
from tsplat.training.processes import heartbeat

STEPS = 60


def configuration():
    strategy = MCMCStrategy(cap_max=250, refine_start_iter=2, refine_every=7, refine_stop_iter=50)
    return RunConfig(steps=STEPS, seed=5, strategy=strategy, sh_degree=1, save_every=3, keep=2)


def inject(kind, step, struck):
    """Has this rank do something wrong before it takes that step, and write down when."""
    advance = Trainer.advance

    def wrong(trainer):
        if trainer.step == step:
            struck.write_text(str(time.time()))
            match kind:
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "interrupted":
                    os.kill(os.getppid(), signal.SIGINT)  # the launcher
                case "raises":
                    raise ValueError("a mistake in a callback")
                case "shape":
                    trainer._params["shN"].data = trainer._params["shN"].data[:, :0]
                case "setting":
                    trainer._antialiased = True
                case "disk":
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        return advance(trainer)

    Trainer.advance = wrong


def main():
    run, kind, victim, step, silence = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    torch.set_num_threads(1)
    heartbeat.SILENCE_MAX = silence
    heartbeat.INTERVAL = min(heartbeat.INTERVAL, silence / 4)
    runs._read = lambda config, device: capture()
    if int(os.environ.get("RANK", "0")) == victim:
        inject(kind, step, Path(f"{run}.struck"))
    # As the command does, errors end in a line.
    cli._train = lambda *_: train(configuration(), run) and 0
    return cli.main(["train"])


if __name__ == "__main__":
    sys.exit(main())
