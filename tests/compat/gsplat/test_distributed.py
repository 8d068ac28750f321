"""The entry point of scripts that train with several processes."""

import os
import socket

import pytest
import torch

from tsplat import UnsupportedError
from tsplat.compat.gsplat.distributed import LAUNCHERS, cli

RANK = """
import torch, torch.distributed as dist
from tsplat.compat.gsplat.distributed import cli

def main(local_rank, world_rank, world_size, args):
    value = torch.tensor([args + world_rank])
    dist.all_reduce(value)
    print(local_rank, world_rank, world_size, int(value))

cli(main, 10)
assert not dist.is_initialized()
"""

RANKS = f"""
import os, sys
pipe, is_first = os.pipe(), os.fork() > 0
for name in sys.argv[1:]:
    os.environ[name] = str(int(not is_first))
if not is_first:
    os.dup2(pipe[1], 1)
{RANK}
sys.stdout.flush()
if is_first:
    os.close(pipe[1])
    print(open(pipe[0]).read(), end="")
    assert os.wait()[1] == 0
"""
"""Forks two ranks, and prints the output of one after that of the other."""


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for names in LAUNCHERS:
        for name in names:
            monkeypatch.delenv(name, raising=False)


def test_single_process_is_the_only_rank(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    calls = []
    assert cli(lambda *values: calls.append(values), {"steps": 3}, verbose=True)
    assert calls == [(0, 0, 1, {"steps": 3})]
    assert capsys.readouterr().out == "rank 0 of 1: begins\nrank 0 of 1: ends\n"


def test_several_gpus_need_a_launcher(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(UnsupportedError, match="torchrun --nproc-per-node 4"):
        cli(lambda *values: pytest.fail("called"), None)


@pytest.mark.slow
@pytest.mark.parametrize("names", LAUNCHERS, ids=lambda names: names[2])
def test_ranks_of_a_launcher_share_a_group(names, forks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # Without GPUs, so that the backend is gloo.
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": "", names[2]: "2"}
    found = forks.run(RANKS, *names[:2], environment=os.environ | shared, timeout=100)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "0 0 2 21\n1 1 2 21\n"
