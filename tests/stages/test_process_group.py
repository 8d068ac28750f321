"""The rank group; collectives between processes are tested with the exchange and with training."""

import torch

from tsplat.stages.process_group import RankGroup


def test_shard_rows_cuts_as_torch_chunk():
    ranks = RankGroup()
    ranks.world_size = 4
    for n in (0, 1, 3, 4, 9, 10):
        shards = [torch.arange(n)[ranks.shard_rows(n, rank)].tolist() for rank in range(4)]
        chunks = [chunk.tolist() for chunk in torch.arange(n).chunk(4)]
        assert [shard for shard in shards if shard] == [chunk for chunk in chunks if chunk]
