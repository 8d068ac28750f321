"""Creates and destroys the process group of a training run."""

import atexit
import gc
import importlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ...errors import ArgumentError
from ...stages.process_group import RankGroup
from .launcher import is_launched

TIMEOUT = timedelta(minutes=10)
"""Timeout of collectives: longer than any step or save. A dead rank is noticed earlier, by its missing heartbeat."""


def join_group(device: torch.device) -> RankGroup:
    """Returns the ranks that this process trains with.

    These are the ranks of the default process group if it is initialized. Otherwise a process started by torchrun
    initializes it, and any other process trains alone.
    """
    if not dist.is_available():
        return RankGroup()
    if not dist.is_initialized():
        if not is_launched() or int(os.environ["WORLD_SIZE"]) < 2:
            return RankGroup()
        # If torch.distributed.checkpoint imports this module later, its default arguments keep the group alive forever.
        importlib.import_module("torch.distributed.nn.functional")
        try:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise ArgumentError(f"ranks: cannot initialize the process group ({error})") from error
        atexit.register(_destroy_group)
    return RankGroup(dist.group.WORLD) if dist.get_world_size() > 1 else RankGroup()


def _destroy_group() -> None:
    """Destroys the group before the interpreter exits: its threads may need the interpreter to free a tensor."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # The group's threads end when its last reference is gone.
    gc.collect()
