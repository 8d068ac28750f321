"""Kills processes while they save checkpoints, and verifies the remaining files.

``python -m tests.support.kill_saving FOLDER COUNT`` runs in a separate process, because a process that has trained
cannot be forked safely.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from tsplat.scene import Gaussians
from tsplat.training import Checkpoint, RunConfig, read_checkpoint, read_newest, write_checkpoint
from tsplat.training.runs.run_checkpoints import delete_incomplete


def checkpoint(step):
    gaussians = Gaussians.from_points(torch.randn(50, 3), torch.rand(50, 3), 1)
    return Checkpoint(step, gaussians, {"adam/means/exp_avg": torch.rand(50, 3)}, {}, RunConfig())


def save_forever(folder, acknowledge):
    for step in range(1, 10**6):
        write_checkpoint(folder, checkpoint(step), keep=2)
        os.write(acknowledge, step.to_bytes(4, "little"))


def main():
    top, count = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    rng, n_interrupted = random.Random(1), 0
    for i in range(count):
        folder = top / f"{i}"
        receive, acknowledge = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_forever(folder, acknowledge)
            finally:
                os._exit(1)
        os.close(acknowledge)
        last = os.read(receive, 4)
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(receive, 4):
            last = chunk
        os.close(receive)
        path, _, errors = read_newest(folder)
        assert errors == [], errors
        assert read_checkpoint(path).step >= int.from_bytes(last, "little") > 0
        n_interrupted += any(p.name.startswith((".step_", ".gone_")) for p in folder.iterdir())
        delete_incomplete(folder)
        write_checkpoint(folder, checkpoint(10**7), keep=2)
        assert read_newest(folder)[0].name == "step_10000000"
        assert not [p.name for p in folder.iterdir() if p.name.startswith((".step_", ".gone_"))]
    print(f"killed {count} processes, {n_interrupted} of them while writing")


if __name__ == "__main__":
    main()
