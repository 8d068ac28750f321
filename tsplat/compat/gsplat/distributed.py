"""The names of ``gsplat.distributed``: the entry point of scripts that train with several processes."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ... import UnsupportedError

__all__ = ["cli"]

LAUNCHERS = (
    ("LOCAL_RANK", "RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""Environment variables of torchrun and Open MPI: local rank, rank, number of ranks."""


def cli(fn: Callable[[int, int, int, Any], object], args: Any, verbose: bool = False) -> bool:
    """Calls ``fn(local_rank, world_rank, world_size, args)`` in this process.

    If torchrun or Open MPI started the process, it is one of several ranks and joins the default process group for the
    duration of the call. Otherwise, it is the only rank. Unlike gsplat's function, this one does not require a GPU and
    does not start processes.

    Args:
        fn: The function to call.
        args: Last argument of the function.
        verbose: Whether to print when the call begins and ends.

    Returns:
        True.

    Raises:
        NotImplementedError: Several GPUs are visible, and no launcher started this process.
    """
    ranks = next((names for names in LAUNCHERS if all(name in os.environ for name in names)), None)
    if ranks is None:
        n_gpus = torch.cuda.device_count()
        if n_gpus > 1:
            raise UnsupportedError(
                f"cli: starting a process for each of {n_gpus} GPUs is not implemented; start the script with torchrun "
                f"--nproc-per-node {n_gpus}, or set CUDA_VISIBLE_DEVICES to one of them"
            )
        local_rank, world_rank, world_size = 0, 0, 1
    else:
        local_rank, world_rank, world_size = (int(os.environ[name]) for name in ranks)
    if verbose:
        print(f"rank {world_rank} of {world_size}: begins")
    if world_size > 1:
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl" if on_gpu else "gloo", rank=world_rank, world_size=world_size)
    try:
        fn(local_rank, world_rank, world_size, args)
        if world_size > 1:
            dist.barrier()
    finally:
        if world_size > 1:
            dist.destroy_process_group()
    if verbose:
        print(f"rank {world_rank} of {world_size}: ends")
    return True
