"""Rows of a scene that several ranks hold, written and read by torch.distributed.checkpoint as safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ...scene.formats.checkpoints import quiet_torch_checkpoint
from .group import Team


def write_rows(folder: Path, tensors: dict[str, Tensor], total: int, team: Team) -> None:
    """Writes the rows of all ranks, each its own, into a folder that is there; called by all ranks.

    Args:
        tensors: This rank's rows, those of :meth:`Team.rows`, under the same names on every rank.
        total: How many rows all ranks have.

    Raises:
        OSError: A rank cannot write.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    device = next(iter(tensors.values())).device
    assert team.group is not None
    mesh = DeviceMesh.from_group(team.group, device.type)
    whole = {}
    for name, tensor in tensors.items():
        shape = torch.Size([total, *tensor.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        rows = tensor.detach().contiguous()
        whole[name] = DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    with quiet_torch_checkpoint():
        try:
            save(
                whole,
                storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
                process_group=team.group,
            )
        except CheckpointException as error:
            causes = [f"rank {rank}: {cause[0]}" for rank, cause in sorted(error.failures.items())]
            raise OSError("; ".join(" ".join(words.split())[:200] for words in causes)) from error
