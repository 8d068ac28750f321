"""Repeatedly kills an agent of torchrun at random times and measures how long training takes to continue.

    python -m tests.tools.agent_kills [--kills 20] [--seed 0]

Two agents with two ranks each train a small scene, as described in docs/distributed.md. The tool kills the second agent
and its ranks with SIGKILL. The ranks of the first agent must resume within a minute from the newest checkpoint saved
before the kill, or from a later one. Then a new second agent joins; every other one has rank 0. The tool prints a line
for each kill. On a busy machine, a restart may take more than a minute.
"""

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.captures import write_colmap
from tests.support.paths import ROOT
from tests.support.train_worker import capture
from tests.support.waiting import wait_for

REJOIN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Environment of the agents. Without it, an agent of PyTorch 2.13 that joins later waits forever for an address."""

LIMIT = 60.0
"""Maximum time in seconds from a kill until training continues."""


class Agents:
    """Two agents that train a scene and write to a folder. The first one serves the rendezvous."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            self.port = probe.getsockname()[1]
        scene = capture()
        self.scene = write_colmap(folder / "scene", [*scene.train, *scene.test], scene.points)
        self.folder, self.run, self.n = folder, folder / "run", 0

    def start(self) -> subprocess.Popen[bytes]:
        command = (
            "--nnodes 1:2 --nproc-per-node 2 --max-restarts 1000 --rdzv-id 1 --rdzv-backend c10d "
            f"--rdzv-endpoint localhost:{self.port} --rdzv-conf last_call_timeout=5,read_timeout=300 "
            f"-m tsplat train {self.scene} --out {self.run} "
            "--device cpu --steps 1000000 --save-every 10 --eval-every 1000000 --keep 3"
        )
        # Ranks are in the order of addresses, then of process ids.
        address = "127.0.0.1" if self.n % 2 else "localhost"
        with open(self.folder / f"agent_{self.n}.txt", "wb") as output:
            self.n += 1
            return subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--local-addr", address, *command.split()],
                env=os.environ | REJOIN | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )

    def is_open(self) -> bool:
        """Returns whether an agent serves the rendezvous."""
        with socket.socket() as probe:
            return probe.connect_ex(("localhost", self.port)) == 0

    def saved(self) -> int:
        """Returns the step of the newest checkpoint, or 0."""
        names = [path.name for path in self.run.glob("checkpoints/step_*")]
        return max((int(name.split("_")[1]) for name in names), default=0)

    def resumes(self) -> list[int]:
        """Returns the steps at which the ranks of the first agent resumed."""
        return list(map(int, re.findall(r"resumed from step_\d+: step (\d+) of", self.output())))

    def starts(self, agent: int = 0) -> list[int]:
        """Returns the number of ranks of each start of training in which rank 0 belonged to the agent."""
        return list(map(int, re.findall(r"(\d+) ranks with sharded Gaussians", self.output(agent))))

    def leader(self) -> int | None:
        """Returns the agent that has rank 0 while four ranks train, or None if fewer do."""
        return next((agent for agent in (0, self.n - 1) if self.starts(agent)[-1:] == [4]), None)

    def output(self, agent: int = 0) -> str:
        return (self.folder / f"agent_{agent}.txt").read_text(errors="replace")


def kill(agent: subprocess.Popen[bytes]) -> None:
    """Kills an agent and its ranks."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    for pid in (agent.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draws, times = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as folder:
        agents = Agents(Path(folder))
        first = agents.start()
        try:
            wait_for(agents.is_open, 300, 0.1)
            for i in range(options.kills):
                second = agents.start()
                wait_for(lambda: agents.leader() is not None, 300, 0.1)
                before = agents.saved()
                wait_for(lambda before=before: agents.saved() > before, 300, 0.1)
                time.sleep(draws.uniform(0, 5))
                saved, n_starts, n_resumes = agents.saved(), len(agents.starts()), len(agents.resumes())
                has_rank_0 = agents.leader() != 0
                kill(second)
                start = time.monotonic()
                wait_for(lambda n=n_starts: len(agents.starts()) > n, 300, 0.1)
                resumed = agents.resumes()
                assert len(resumed) == n_resumes + 1
                assert agents.starts()[-1] == 2
                assert resumed[-1] >= saved, f"step {saved} was saved, but training resumed at {resumed[-1]}"
                restart = time.monotonic() - start
                wait_for(lambda step=resumed[-1]: agents.saved() > step, 300, 0.1)
                times.append(restart)
                print(
                    f"kill {i + 1}{' of rank 0' if has_rank_0 else ''}: step {saved} was saved; "
                    f"2 ranks resumed at {resumed[-1]} after {restart:.1f} s, "
                    f"and saved the next step after {time.monotonic() - start:.1f} s",
                    flush=True,
                )
        finally:
            print(agents.output()[-2000:] if sys.exc_info()[0] else "", end="")
            first.terminate()
            first.wait(150)
    print(f"{len(times)} kills: training continued after {min(times):.1f} to {max(times):.1f} s")
    sys.exit(max(times) > LIMIT)


if __name__ == "__main__":
    main()
