"""Sharded checkpoints: bit-exact on any number of ranks, and verified when they are read."""

import shutil
import stat

import pytest
import torch
import torch.distributed as dist

from tests.support.train_worker import UMASKS
from tsplat import ArgumentError
from tsplat.scene.formats.checkpoints import _read_rows
from tsplat.training import CheckpointError, read_checkpoint, read_newest

pytestmark = pytest.mark.long

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)


@pytest.fixture
def sharded(rank_results):
    """A checkpoint that four ranks wrote."""
    rank_results.of("save", 4)
    return read_newest(rank_results.folder / "mcmc")[0]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_checkpoint_is_bit_exact_on_any_number_of_ranks(rank_results, world_size):
    saved = rank_results.of("save", 4)[0]
    (single,) = rank_results.of("load", 1)
    for kind in ("default", "mcmc", "long-axis"):
        assert len(set(saved[kind])) > 1  # the shards differ in size
        ranks = [result[kind] for result in rank_results.of("load", world_size)]
        assert sum(rank["own"] for rank in ranks) == sum(saved[kind])
        for rank in ranks:
            assert rank["differ"] == []
            assert rank["figures"]
            # Sharding the views does not change the metrics.
            assert [rank[name] for name in ("psnr", "ssim", "count")] == [
                single[kind][name] for name in ("psnr", "ssim", "count")
            ]


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_umask_decides_on_modes(rank_results, umask):
    rank_results.of("save", 4)
    paths = list((rank_results.folder / f"umask_{umask:03o}").rglob("*"))
    assert sum(path.suffix == ".safetensors" for path in paths) == 4 + 1 + 2  # sharded, then not
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask, path


@pytest.mark.parametrize("damage", ["missing", "foreign", "truncated"])
def test_damaged_shards_are_named(rank_results, sharded, tmp_path, damage):
    copy = tmp_path / sharded.name
    shutil.copytree(sharded, copy)
    rows = copy / "rows"
    names = sorted(path.name for path in rows.iterdir())
    assert len(names) == 4
    match damage:
        case "missing":
            (rows / names[1]).unlink()
            expected = f"{names[1]}: missing"
        case "foreign":
            shutil.copy(read_newest(rank_results.folder / "default")[0] / "rows" / names[2], rows / names[2])
            expected = f"{names[2]}: modified or truncated"
        case "truncated":
            (rows / names[0]).write_bytes((rows / names[0]).read_bytes()[:-8])
            expected = f"{names[0]}: modified or truncated"
    with pytest.raises(CheckpointError, match=expected):
        read_checkpoint(copy)


def test_other_files_beside_shards_are_ignored(sharded, tmp_path):
    copy = tmp_path / sharded.name
    shutil.copytree(sharded, copy)
    shard = min((copy / "rows").iterdir())
    shutil.copy(shard, copy / "rows" / "shard-00009.safetensors")
    for name in (".DS_Store", f"._{shard.name}"):
        (copy / "rows" / name).write_bytes(b"not a tensor")
    expected, found = read_checkpoint(sharded), read_checkpoint(copy)
    assert torch.equal(found.gaussians.means, expected.gaussians.means)
    assert found.tensors.keys() == expected.tensors.keys()


def test_shards_with_too_few_rows_are_rejected(sharded):
    n = len(read_checkpoint(sharded).gaussians)
    shards = sorted((sharded / "rows").iterdir())
    with pytest.raises(ArgumentError, match=rf"hold \d+ rows of .*, expected {n}"):
        _read_rows(sharded / "rows", shards[:-1], n)
