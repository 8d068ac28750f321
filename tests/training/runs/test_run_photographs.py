"""The photographs of a run in the viewer: found with its scene, and read when they are needed."""

import shutil

import pytest
import torch

from tests.support.captures import write_scene
from tsplat import cli
from tsplat.scene import FileError
from tsplat.training import RunConfig, train
from tsplat.training.runs.scenes import photograph_reader
from tsplat.viewing import viewer
from tsplat.viewing.viewer import ViewedModel, open_viewed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a run on ten images of 43 x 30 pixels, and its scene."""
    folder = tmp_path_factory.mktemp("photographs")
    write_scene(folder / "scene")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        config = RunConfig(
            scene=str(folder / "scene"), steps=2, backend="torch", sh_degree=0, test_every=5, downscale=1
        )
        train(config, folder / "run")
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the folder, to change; without the original, whose scene would be found by its absolute path."""
    copy = shutil.copytree(finished, tmp_path / "copy")
    finished.joinpath("scene").rename(finished / "away")
    yield copy
    finished.joinpath("away").rename(finished / "scene")


def test_photographs_of_a_run(folder, capfd):
    read = photograph_reader(folder / "run", None, pytest.fail)
    model = open_viewed(folder / "run", torch.device("cpu"), read_views=read, warn=pytest.fail)
    assert model.views == {}
    messages = []
    views = [model.find_view(camera.name, messages.append) for camera in model.cameras]
    assert messages == ["Reading the photographs"]
    for camera, view in zip(model.cameras, views, strict=True):
        assert (view.width, view.height) == (camera.width, camera.height) == (43, 30)
        assert torch.allclose(view.camera.viewmat, camera.viewmat, atol=1e-5)
    assert capfd.readouterr() == ("", "")


def test_scene_that_is_missing_is_noted(folder):
    shutil.move(folder / "scene", folder / "moved")
    notes = []
    assert photograph_reader(folder / "run", None, notes.append) is None
    (note,) = notes
    assert note.startswith(f"{folder / 'run'}: shown without its photographs: ")
    assert note.endswith("no such scene; if it has moved: --scene PATH")
    read = photograph_reader(folder / "run", str(folder / "moved"), pytest.fail)
    assert len(read()) == 10
    with pytest.raises(FileError, match="absent: no such scene"):
        photograph_reader(folder / "run", str(folder / "absent"), pytest.fail)


class Viewer:
    """Takes the place of the viewer: keeps its arguments, and ends the command."""

    url, port, proxy_url = "http://localhost:8080", 8080, ""

    def __init__(self, models, *, address, port, host_name, draw, open_model):
        type(self).models, type(self).open_model = models, staticmethod(open_model)

    def close(self, message):
        pass


@pytest.fixture
def view(monkeypatch):
    """Calls ``tsplat view``, ends it as Ctrl-C does, and returns the models and what opens others."""

    def interrupt(_model):
        raise KeyboardInterrupt

    pytest.importorskip("viser", reason="needs the extra viewer")
    monkeypatch.setattr(viewer, "Viewer", Viewer)
    monkeypatch.setattr(ViewedModel, "warm_up", interrupt)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def view(*arguments):
        assert cli.main(["view", *map(str, arguments)]) == 0
        return Viewer.models, Viewer.open_model

    return view


def test_command_finds_the_photographs(folder, view, capsys):
    run = folder / "run"
    # Options may stand between models, and the checkpoint is that of the run.
    models, open_model = view(run, "--checkpoint", "2", run / "point_cloud.ply")
    for model in (*models, open_model(str(run), pytest.fail)):
        assert model.find_view(model.cameras[0].name, print) is not None
    shutil.move(folder / "scene", folder / "moved")
    capsys.readouterr()
    (model,), open_model = view(run)
    assert capsys.readouterr().err.count("shown without its photographs") == 1
    assert model.find_view(model.cameras[0].name, pytest.fail) is None
    notes = []
    open_model(str(run), notes.append)
    assert len(notes) == 1
    (model,), _ = view(run, "--scene", folder / "moved")
    assert model.find_view(model.cameras[0].name, print) is not None
    assert cli.main(["view", str(run), "--scene", str(folder / "absent")]) == 2
    assert "absent: no such scene" in capsys.readouterr().err


def test_unknown_options_of_view_are_errors(view, capsys):
    assert cli.main(["view", "a.ply", "--frobnicate", "b.ply"]) == 2
    assert "unrecognized arguments: --frobnicate" in capsys.readouterr().err


def test_checkpoint_of_a_model_that_is_no_run_is_an_error(folder, view, capsys):
    assert cli.main(["view", str(folder / "run" / "point_cloud.ply"), "--checkpoint", "2"]) == 2
    assert "point_cloud.ply is not a training run" in capsys.readouterr().err


def test_scene_of_a_model_that_is_no_run_is_an_error(folder, view, capsys):
    model = folder / "elsewhere" / "point_cloud.ply"
    model.parent.mkdir()
    shutil.copy(folder / "run" / "point_cloud.ply", model)
    assert cli.main(["view", str(model), "--scene", str(folder / "scene")]) == 2
    assert "--scene: only for a run with cameras, found" in capsys.readouterr().err
    view(model, folder / "run", "--scene", folder / "scene")
