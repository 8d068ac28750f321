"""The rank group; collectives between processes are tested with the exchange and with training."""

import pytest
import torch
import torch.distributed as dist

from tsplat.runtime.process_group import RankGroup
from tsplat.stages.agreement import Ranks


def test_shard_rows_cuts_as_torch_chunk():
    ranks = RankGroup()
    ranks.world_size = 4
    for n in (0, 1, 3, 4, 9, 10):
        shards = [torch.arange(n)[ranks.shard_rows(n, rank)].tolist() for rank in range(4)]
        chunks = [chunk.tolist() for chunk in torch.arange(n).chunk(4)]
        assert [shard for shard in shards if shard] == [chunk for chunk in chunks if chunk]


@pytest.mark.parametrize(
    ("types", "device", "expected"),
    [
        (["cuda"], "cuda:1", "cuda:1"),
        (["cuda"], "cpu", "cuda"),
        (["cpu", "cuda"], "cuda:1", "cpu"),
        (["cpu"], "cpu", "cpu"),
    ],
)
def test_records_are_sent_from_the_gpu_of_the_tensors(monkeypatch, types, device, expected):
    """NCCL refuses two ranks on one GPU, which the current one is on all ranks that have not set it."""

    class Means(torch.Tensor):
        pass

    class Group:
        pass

    Group._device_types, Means.device = list(map(torch.device, types)), torch.device(device)
    monkeypatch.setattr(dist, "get_rank", lambda _group: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda _group: 2)
    ranks = Ranks(Group(), torch.zeros(4, 3).as_subclass(Means))
    assert ranks._description_device == torch.device(expected)
    assert Ranks(Group(), None)._description_device.index is None
