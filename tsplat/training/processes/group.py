"""Creates and destroys the process group of a training run."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ...errors import ArgumentError
from ...runtime.process_group import RankGroup
from ...viewing.devices import pick_device
from ..configuration import RunConfig
from .environment import is_launched

TIMEOUT = timedelta(minutes=10)
"""Maximum time that ranks wait for each other at the start."""

SUSPENSION = timedelta(days=7)
"""Timeout of collectives. It is long, as it includes the time for which a job is suspended; missing heartbeats detect a
dead rank much earlier."""

STORE = "tsplat-store"
"""Key under which torchrun's agent store holds the port of rank 0's store."""


def join_ranks(config: RunConfig) -> tuple[torch.device, str, RankGroup]:
    """Returns the device of this process, a sentence that describes it, and the rank group of this process.

    The ranks are those of the default process group if it is initialized. Otherwise, a process that torchrun or Slurm's
    ``srun`` started initializes the group, and any other process is a single rank. Raises ArgumentError if variables of
    the launcher contradict each other, or the group cannot be initialized or does not support the device; and
    BackendError as :func:`tsplat.viewing.devices.pick_device`.
    """
    exists = dist.is_available() and dist.is_initialized()
    launched = dist.is_available() and not exists and is_launched()
    device, description = pick_device(config.backend, config.device)
    if launched and int(os.environ["WORLD_SIZE"]) > 1:
        # If torch.distributed.checkpoint imports this module later, its default arguments keep the group alive forever.
        importlib.import_module("torch.distributed.nn.functional")
        try:
            _create_group("nccl" if device.type == "cuda" else "gloo")
            dist.distributed_c10d._set_pg_timeout(SUSPENSION)
        except (RuntimeError, ValueError) as error:
            raise ArgumentError(f"ranks: cannot initialize the process group ({error})") from error
        atexit.register(_destroy_group)
        exists = True
    if not exists or dist.get_world_size() < 2:
        return device, description, RankGroup()
    if device.type == "cpu" and dist.get_backend() == "nccl":
        raise ArgumentError(
            "device: is cpu, but the process group has the backend nccl; initialize it with cpu:gloo,cuda:nccl or gloo"
        )
    return device, description, RankGroup(dist.group.WORLD)


def _create_group(backend: str) -> None:
    """Initializes the default process group of a rank that a launcher started."""
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0" or not shared:
        dist.init_process_group(backend, timeout=TIMEOUT)
        return
    # The agents' store outlives a restart and contains addresses of earlier ranks, so rank 0 creates a new store.
    rank, address = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
    agents = torch._C._distributed_c10d.TCPStore(address, int(os.environ["MASTER_PORT"]), timeout=TIMEOUT)
    if rank == 0:
        store = torch._C._distributed_c10d.TCPStore(address, 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
        agents.set(STORE, str(store.port))
    else:
        store = _connect(agents, address)
    dist.init_process_group(backend, store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]), timeout=TIMEOUT)


def _connect(agents: torch._C._distributed_c10d.Store, address: str) -> torch._C._distributed_c10d.TCPStore:
    """Connects to the store of rank 0. Retries, as the agents' store may have a port from before a restart."""
    end = time.monotonic() + TIMEOUT.total_seconds()
    while True:
        port = int(agents.get(STORE))
        try:
            store = torch._C._distributed_c10d.TCPStore(
                address, port, timeout=timedelta(seconds=5), wait_for_workers=False
            )
        except (RuntimeError, ValueError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            store.set_timeout(TIMEOUT)
            return store


def _destroy_group() -> None:
    """Destroys the group before the interpreter exits, as its threads may need the interpreter to free a tensor."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # The group's threads end when its last reference is gone.
    gc.collect()
