"""Writes the shards of several ranks as one set of safetensors files, with ``torch.distributed.checkpoint``."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...runtime.process_group import RankGroup


def write_shards(folder: Path, tensors: dict[str, Tensor], n_rows: int, ranks: RankGroup) -> None:
    """Writes tensors whose `n_rows` rows are sharded over the ranks; every rank calls this with its own rows."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    device = next(iter(tensors.values())).device
    assert ranks.group is not None
    mesh = DeviceMesh.from_group(ranks.group, device.type)
    distributed = {}
    for name, tensor in tensors.items():
        shape = torch.Size([n_rows, *tensor.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        rows = tensor.detach().contiguous()
        distributed[name] = DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    with _quiet_torch_checkpoint():
        try:
            save(
                distributed,
                storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
                process_group=ranks.group,
            )
        except CheckpointException as error:
            causes = [f"rank {rank}: {cause[0]}" for rank, cause in sorted(error.failures.items())]
            raise OSError("; ".join(" ".join(cause.split())[:200] for cause in causes)) from error


@contextlib.contextmanager
def _quiet_torch_checkpoint() -> Iterator[None]:
    """Silences the warnings of ``torch.distributed.checkpoint`` about its intended use."""
    logger = logging.getLogger("torch.distributed.checkpoint")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
