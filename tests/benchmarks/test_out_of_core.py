"""The model that is larger than memory: the same each time, and what its file has."""

import torch

from benchmarks.out_of_core import COMMANDS, TownRows
from tests.support.model_files import assert_same_tensors
from tsplat.cli.parser import build_parser
from tsplat.scene import read_ply, write_ply


def test_town_is_the_same_each_time(tmp_path):
    write_ply(tmp_path / "a.ply", TownRows(3000))
    found = read_ply(tmp_path / "a.ply")
    assert_same_tensors(found, TownRows(3000).read(0, 3000))
    assert bool(found.valid.all()) and float(found.means[:, 1].min()) < -2
    assert torch.equal(TownRows(3000).columns(("means",), 0, 3000)["means"], found.means)


def test_commands_are_valid():
    for words in COMMANDS.values():
        arguments, rest = build_parser().parse_known_args([*words, "--memory", "2"])
        assert arguments.memory == 2 and not rest
