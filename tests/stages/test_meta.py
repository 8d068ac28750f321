"""Values of ``meta`` that are computed when they are read."""

import copy
import pickle

import pytest
import torch

import tsplat
from tests.support import scenes
from tsplat.stages.meta import Meta

LAZY = [
    "batch_ids", "camera_ids", "flatten_ids", "gaussian_ids", "isect_ids", "isect_offsets", "memory", "n_invalid",
    "overflow", "tiles_per_gauss",
]  # fmt: skip


def make():
    return Meta({"a": 1}, {"b": lambda source: source, "c": lambda source: source + 1}, 2)


@pytest.mark.parametrize(
    "read",
    [
        dict,
        copy.copy,
        copy.deepcopy,
        Meta.copy,
        lambda meta: pickle.loads(pickle.dumps(meta)),
        lambda meta: {**meta},
        lambda meta: meta | {},
        lambda meta: {} | meta,
        lambda meta: dict(meta.items()),
        lambda meta: dict(zip(meta, meta.values())),
        lambda meta: {key: meta[key] for key in meta},
        lambda meta: {key: meta.get(key) for key in ("a", "b", "c")},
    ],
)
def test_readers_find_all_values(read):
    assert read(make()) == {"a": 1, "b": 2, "c": 3}
    meta = pickle.loads(pickle.dumps(make()))
    assert type(meta) is dict


def test_dictionary_methods():
    assert len(make()) == 3
    assert make() == {"a": 1, "b": 2, "c": 3}
    assert make() != {"a": 1}
    assert repr(make()) == "{'a': 1, 'b': 2, 'c': 3}"
    assert "b" in make()
    assert "d" not in make()
    assert make().get("d", 4) == 4
    assert make().pop("b") == 2
    assert make().setdefault("b", 5) == 2
    with pytest.raises(KeyError, match="d"):
        make()["d"]
    meta = make()
    del meta["b"]
    assert meta == {"a": 1, "c": 3}
    meta.clear()
    assert meta == {}


def test_values_that_are_set_replace_those_to_compute():
    meta = make()
    meta["b"] = 7
    meta.update(c=8)
    assert meta == {"a": 1, "b": 7, "c": 8}


def test_values_are_computed_once():
    meta = Meta({}, {"b": lambda _: object()}, None)
    assert meta["b"] is meta["b"] is dict(meta)["b"]


def test_nothing_is_computed_before_it_is_read():
    meta = tsplat.rasterization(**scenes.make(scenes.Structure(n=5), torch.float32), backend="torch")[2]
    assert sorted(meta._lazy) == LAZY
    assert meta["n_invalid"] == 0
    assert set(LAZY) <= set(meta)
