"""Models in folders: a failure leaves the old or the new one, never neither."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.support.faults import fault
from tests.support.model_files import assert_same_tensors, random_gaussians
from tsplat.scene import FileError, Gaussians, read_model, write_model
from tsplat.scene.formats.png_images import PARAMETERS, is_png_folder, read_png_images, write_png_images

pytest.importorskip("PIL")


def write_images(path, gaussians):
    tensors = {name: getattr(gaussians, field) for name, field in PARAMETERS.items()}
    write_png_images(path.parent, tensors)


WRITERS = {"meta.json": write_model, "lod-meta.json": write_model, "images": write_images}


def model_in(folder):
    return read_model(folder).map(torch.clone)


def is_equal(one, other):
    return len(one) == len(other) and all(torch.equal(t, other.tensors()[name]) for name, t in one.tensors().items())


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", WRITERS)
def test_every_operation_fails_once(name, number, tmp_path):
    write = WRITERS[name]
    models = [random_gaussians(n, 1) for n in (25, 16)]
    read = []
    for i, gaussians in enumerate(models):
        write(tmp_path / str(i) / name, gaussians)
        read.append(model_in(tmp_path / str(i)))
    found = set()
    for k in range(400):
        folder = tmp_path / f"try{k}"
        shutil.copytree(tmp_path / "0", folder)
        with fault(k, number, lambda path: str(tmp_path) in path) as names:
            try:
                write(folder / name, models[1])
                ended = True
            except (OSError, FileError):
                ended = False
        left = model_in(folder)
        kinds = [is_equal(left, model) for model in read]
        assert any(kinds), (k, names[-1])
        assert kinds[1] or not ended, (k, names[-1])
        found.add(kinds.index(True))
        shutil.rmtree(folder)
        if len(names) <= k:
            break
    else:
        pytest.fail("more than 400 operations")
    assert k > 20 and found == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_every_operation_fails_from_one_on(name, tmp_path):
    """The old model stays, or the error names where it is."""
    write = WRITERS[name]
    models = [random_gaussians(n, 1) for n in (25, 16)]
    for i, gaussians in enumerate(models):
        write(tmp_path / str(i) / name, gaussians)
    read = [model_in(tmp_path / str(i)) for i in range(2)]
    n_moved = 0
    for k in range(400):
        folder = tmp_path / "try"
        shutil.copytree(tmp_path / "0", folder)
        message = ""
        with fault(k, errno.EIO, lambda path: str(tmp_path) in path, lasts=True) as names:
            try:
                write(folder / name, models[1])
            except (OSError, FileError) as error:
                message = str(error)
        if moved := re.search(r"move (.*) from (.*) back to it", message):
            n_moved += 1
            for file in moved[1].split(", "):
                os.replace(Path(moved[2], file), folder / file)
        left = model_in(folder)
        assert any(is_equal(left, model) for model in read), (k, names[-1])
        shutil.rmtree(folder)
        if len(names) <= k:
            break
    else:
        pytest.fail("more than 400 operations")
    assert k > 20 and (n_moved > 0) == (name == "images")


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_of_the_old_model_is_left(name, tmp_path):
    for n in (25, 16, 25):
        WRITERS[name](tmp_path / "a" / name, random_gaussians(n, 1))
        assert len(read_model(tmp_path / "a")) == n
    WRITERS[name](tmp_path / "b" / name, random_gaussians(25, 1))
    count = {folder: len([path for path in (tmp_path / folder).rglob("*") if path.is_file()]) for folder in "ab"}
    assert count["a"] == count["b"]
    assert not [path for path in (tmp_path / "a").rglob(".*")]


@pytest.mark.parametrize("name", WRITERS)
def test_failures_leave_nothing_behind(name, tmp_path, monkeypatch):
    WRITERS[name](tmp_path / "a" / name, random_gaussians(25, 1))
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    for module in ("image_sets", "png_images"):
        monkeypatch.setattr(f"tsplat.scene.formats.{module}.atomic_write", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        WRITERS[name](tmp_path / "a" / name, random_gaussians(16, 1))
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before


def test_other_files_of_a_folder_stay(tmp_path):
    write_model(tmp_path / "meta.json", random_gaussians(25))
    (tmp_path / "notes.txt").write_text("mine")
    meta = json.loads((tmp_path / "meta.json").read_text())
    meta["means"]["files"].append("../outside.webp")  # damaged: it names nothing that is removed
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    write_model(tmp_path / "meta.json", random_gaussians(16))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(read_model(tmp_path)) == 16


def test_sog_replaces_images_of_gsplat(tmp_path):
    write_images(tmp_path / "images", random_gaussians(25))
    assert is_png_folder(tmp_path)
    write_model(tmp_path / "meta.json", random_gaussians(16))
    assert not is_png_folder(tmp_path)
    assert len(read_model(tmp_path)) == 16
    write_images(tmp_path / "images", random_gaussians(25))
    assert len(read_png_images(tmp_path)["means"]) == 25


def test_an_empty_model_replaces_another(tmp_path):
    for n in (9, 0, 4):
        write_images(tmp_path / "images", random_gaussians(n))
        assert len(read_model(tmp_path)) == n
    assert isinstance(read_model(tmp_path), Gaussians)
    assert_same_tensors(read_model(tmp_path), read_model(tmp_path))
