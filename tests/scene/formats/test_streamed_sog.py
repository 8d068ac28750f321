"""Tests of Streamed SOG: its tree, its levels of detail, and damage."""

import contextlib
import dataclasses
import json
import math

import pytest
import torch

from tests.support.model_files import random_gaussians
from tests.support.round_trips import check_round_trip
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, morton_order, read_model, read_sog, read_streamed_sog, write_sog, write_streamed_sog
from tsplat.scene.editing.levels import detail_levels
from tsplat.scene.formats.streaming import streamed_sog_writer
from tsplat.scene.model_rows import as_rows, morton_sorted
from tsplat.scene.quantization import valid_bounds

pytest.importorskip("PIL")


def meta_of(folder):
    return json.loads((folder / "lod-meta.json").read_text())


def leaves(node):
    return [leaf for child in node["children"] for leaf in leaves(child)] if "children" in node else [node]


def spread(count, factor, degree=0):
    gaussians = random_gaussians(count, degree)
    return gaussians.map(lambda tensor: tensor * factor if tensor is gaussians.means else tensor)


@pytest.mark.parametrize("count", [0, 1, 3000])
@pytest.mark.parametrize("factor", [1, 20])
def test_round_trip(tmp_path, count, factor):
    gaussians = spread(count, factor, 2)
    assert "positions rounded to 16 bits, other values to 8" in write_streamed_sog(tmp_path / "a", gaussians)
    for path in (tmp_path / "a", tmp_path / "a" / "lod-meta.json"):
        check_round_trip("streamed-sog", gaussians, read_model(path))


@pytest.mark.slow
def test_tree_and_datasets(tmp_path, monkeypatch):
    """Each Gaussian of each level is in one leaf, in whose box it lies; files have whole leaves."""
    pytest.importorskip("scipy")
    monkeypatch.setattr(streamed_sog_writer, "LEAF_MAX", 700)
    monkeypatch.setattr(streamed_sog_writer, "LEAF_MIN", 200)
    gaussians = spread(4000, 8)
    write_streamed_sog(tmp_path / "a", gaussians, n_levels=3)
    widest = float(gaussians.means.quantile(torch.tensor([0.05, 0.95]), 0).diff(dim=0).max()) / 8
    meta = meta_of(tmp_path / "a")
    assert meta["counts"] == [4000, 2000, 1000] and meta["count"] == 7000 and meta["lodLevels"] == 3
    rows = {name: torch.zeros(len(read_sog(tmp_path / "a" / name)), dtype=torch.int64) for name in meta["filenames"]}
    assert len(rows) > 6
    for leaf in leaves(meta["tree"]):
        low, high = (torch.tensor(leaf["bound"][end]) for end in ("min", "max"))
        means = []
        for level, place in leaf["lods"].items():
            name = meta["filenames"][place["file"]]
            assert name.startswith(f"{level}_") and place["count"] > 0
            rows[name][place["offset"] : place["offset"] + place["count"]] += 1
            means.append(read_sog(tmp_path / "a" / name).means[place["offset"] : place["offset"] + place["count"]])
        means = torch.cat(means)
        assert len(means) <= 700
        assert len(means) <= 200 or float((means.amax(0) - means.amin(0)).max()) <= 1.001 * widest
        assert (means >= low - 0.01).all() and (means <= high + 0.01).all()
    assert all((seen == 1).all() for seen in rows.values())
    for level, count in enumerate(meta["counts"]):
        assert len(read_streamed_sog(tmp_path / "a", level=level)) == pytest.approx(count, rel=0.02)


@pytest.mark.parametrize("unit", [2.0**-10, 2.0**10])
def test_trees_do_not_depend_on_the_unit(tmp_path, monkeypatch, unit):
    monkeypatch.setattr(streamed_sog_writer, "LEAF_MIN", 50)
    gaussians = spread(1000, 8)
    scaled = dataclasses.replace(
        gaussians, means=unit * gaussians.means, log_scales=gaussians.log_scales + math.log(unit)
    )
    trees = []
    for name, model in (("plain", gaussians), ("scaled", scaled)):
        write_streamed_sog(tmp_path / name, model, n_levels=1)
        trees.append(meta_of(tmp_path / name)["tree"])
    places = [[leaf["lods"] for leaf in leaves(tree)] for tree in trees]
    assert places[0] == places[1] and len(places[0]) > 8
    for plain, moved in zip(leaves(trees[0]), leaves(trees[1]), strict=True):
        for end in ("min", "max"):
            assert [value / unit for value in moved["bound"][end]] == pytest.approx(
                plain["bound"][end], rel=1e-4, abs=1e-4
            )


def levels_of(gaussians, n_levels=None):
    rows, bounds = as_rows(gaussians), valid_bounds(as_rows(gaussians))
    with contextlib.ExitStack() as files:
        ordered = morton_sorted(rows, lambda means: means, bounds, "")
        return [level.read(0, len(level)) for level in detail_levels(ordered, bounds, "", n_levels, files)]


def test_levels_keep_what_is_shown():
    """Half of the Gaussians, with nearly the same sum of opacity times area, center and color; then of those half."""
    pytest.importorskip("scipy")
    gaussians = random_gaussians(4000, 1)
    levels = levels_of(gaussians, 3)
    assert [len(level) for level in levels] == [4000, 2000, 1000]
    assert torch.equal(levels[0].means, gaussians.means[morton_order(gaussians.means)])

    def mass(model):
        return model.opacities * model.log_scales.topk(2).values.sum(1).exp()

    for level in levels[1:]:
        assert float(mass(level).sum()) == pytest.approx(float(mass(gaussians).sum()), rel=0.3)
        for name in ("means", "sh0"):
            one, other = (
                (mass(model)[:, None] * getattr(model, name).flatten(1)).sum(0) / mass(model).sum()
                for model in (level, gaussians)
            )
            assert (one - other).abs().max() < 0.1, name
    assert len(levels_of(gaussians)) == len(levels_of(gaussians.as_surfels(), 3)) == 1
    assert [len(level) for level in levels_of(random_gaussians(3), 8)] == [3, 2, 1]


def test_files_are_the_same_in_every_run(tmp_path):
    pytest.importorskip("scipy")
    for name in ("a", "b"):
        write_streamed_sog(tmp_path / name, random_gaussians(300, 1), n_levels=2)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_environment_is_part_of_every_level(tmp_path):
    write_streamed_sog(tmp_path / "a", random_gaussians(30))
    write_sog(tmp_path / "a" / "env" / "meta.json", random_gaussians(7))
    changed(tmp_path / "a", lambda meta: meta.update(environment="env/meta.json"))
    assert len(read_model(tmp_path / "a")) == 37


def changed(folder, change):
    meta = meta_of(folder)
    change(meta)
    (folder / "lod-meta.json").write_text(json.dumps(meta))
    return folder


def place(meta):
    return meta["tree"]["lods"]["0"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda meta: meta.update(version=2), UnsupportedError, "expected Streamed SOG version 1, found 2"),
        (lambda meta: meta.update(filenames=["../a/meta.json"]), FileError, r"names of files in it, found '\.\./a"),
        (lambda meta: meta.update(filenames=["/etc/meta.json"]), FileError, "names of files in it, found '/etc"),
        (lambda meta: meta.update(filenames="a"), FileError, "filenames to be a list of names"),
        (lambda meta: meta.update(tree={}), FileError, "no leaf has Gaussians"),
        (
            lambda meta: meta.update(
                filenames=["0_0/meta.json", "./0_0//meta.json"],
                tree={"children": [meta["tree"], {"lods": {"0": {**place(meta), "file": 1}}}]},
            ),
            FileError,
            "'0_0/meta.json' and './0_0//meta.json', which are the same file",
        ),
        (lambda meta: place(meta).update(file=1), FileError, "a leaf is in file 1 of 1"),
        (lambda meta: place(meta).update(count=31), FileError, "rows 0 to 31 of 0_0/meta.json overlap others, or it"),
        (lambda meta: place(meta).update(offset=-1), FileError, r"tree\.lods\.0\.offset to be a nonnegative integer"),
        (lambda meta: meta.update(tree={"children": [meta["tree"]] * 2}), FileError, "rows 0 to 30 .* overlap others"),
        (lambda meta: meta["tree"].update(lods={"-1": place(meta)}), FileError, "levels by their numbers"),
    ],
)
def test_damaged_index_is_rejected(tmp_path, change, error, words):
    write_streamed_sog(tmp_path / "a", random_gaussians(30))
    with pytest.raises(error, match=rf"a: .*{words}"):
        read_model(changed(tmp_path / "a", change))


def test_arguments(tmp_path):
    with pytest.raises(UnsupportedError, match="at most 3 for Streamed SOG, found 4"):
        write_streamed_sog(tmp_path / "a", random_gaussians(3, 4))
    gaussians = random_gaussians(3)
    gaussians.means[0, 0] = torch.nan
    with pytest.raises(ArgumentError, match="1 of 3"):
        write_streamed_sog(tmp_path / "a", gaussians)
    assert not list(tmp_path.iterdir())
    write_streamed_sog(tmp_path / "a", random_gaussians(3))
    with pytest.raises(ArgumentError, match="level: expected a number of 0 or more, found -1"):
        read_streamed_sog(tmp_path / "a", level=-1)
