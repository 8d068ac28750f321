"""Writes the shards of several ranks as one set of safetensors files, as ``torch.distributed.checkpoint`` does."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from ...stages.process_group import RankGroup


def write_shards(folder: Path, tensors: dict[str, Tensor], ranks: RankGroup) -> None:
    """Writes tensors whose rows are sharded over the ranks; every rank calls this and writes its own rows.

    The files are those of ``HuggingFaceStorageWriter`` of ``torch.distributed.checkpoint``, whose import takes seconds:
    each tensor's first row among the rows of all ranks is in the header.

    Args:
        folder: An existing folder.
        tensors: This rank's rows, cut as by :meth:`RankGroup.shard_rows`, under the same names on every rank.
        ranks: More than one rank.

    Raises:
        OSError: A rank cannot write; raised on every rank.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    counts = ranks.all_gather_object(len(next(iter(tensors.values()))))
    first = sum(counts[: ranks.rank])
    offsets = {name: {"saved_offsets": [first, *[0] * (t.dim() - 1)]} for name, t in tensors.items()}
    metadata = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
    rows = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    problem = None
    try:
        save_file(rows, folder / f"shard-{ranks.rank + 1:05d}-model-00001-of-00001.safetensors", metadata)
    except (OSError, SafetensorError) as error:
        problem = str(error)
    problems = ranks.all_gather_object(problem)
    causes = [f"rank {rank}: {' '.join(text.split())[:200]}" for rank, text in enumerate(problems) if text is not None]
    if causes:
        raise OSError("; ".join(causes))
