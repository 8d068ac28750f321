"""Kills processes that save checkpoints, and sees what is left: `python -m tests.support.kill_saving FOLDER COUNT`.

A process of its own, as only one that has not trained yet can be forked safely.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from tsplat.scene import Gaussians
from tsplat.training import Checkpoint, RunConfig, checkpoints, read_checkpoint, read_newest, write_checkpoint


def checkpoint(step):
    gaussians = Gaussians.from_points(torch.randn(50, 3), torch.rand(50, 3), 1)
    return Checkpoint(step, gaussians, {"adam/means/exp_avg": torch.rand(50, 3)}, {}, RunConfig())


def save_for_ever(folder, said):
    for step in range(1, 10**6):
        write_checkpoint(folder, checkpoint(step), keep=2)
        os.write(said, step.to_bytes(4, "little"))


def main():
    top, count = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    draw, left_over = random.Random(1), 0
    for i in range(count):
        folder = top / f"{i}"
        done, said = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(folder, said)
            finally:
                os._exit(1)
        os.close(said)
        acknowledged = os.read(done, 4)
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(done, 4):
            acknowledged = chunk
        os.close(done)
        path, _, troubles = read_newest(folder)
        assert troubles == [], troubles
        assert read_checkpoint(path).step >= int.from_bytes(acknowledged, "little") > 0
        left_over += any(p.name.startswith((".step_", ".gone_")) for p in folder.iterdir())
        checkpoints.clean(folder)
        write_checkpoint(folder, checkpoint(10**7), keep=2)
        assert read_newest(folder)[0].name == "step_10000000"
        assert not [p.name for p in folder.iterdir() if p.name.startswith((".step_", ".gone_"))]
    print(f"killed {count}, of which {left_over} in the middle of a checkpoint")


if __name__ == "__main__":
    main()
