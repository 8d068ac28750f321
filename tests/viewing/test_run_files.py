"""Outputs that would replace the model that is read, or files of a run."""

import os

import pytest

from tsplat.errors import FileError
from tsplat.viewing.run_files import check_output


@pytest.fixture
def run(tmp_path):
    """The folder of a run with a checkpoint."""
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step_00000002").mkdir(parents=True)
    (folder / "held_out").mkdir()
    for name in ("config.json", "run.json", "point_cloud.ply", "checkpoints/latest", "report.html"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    "name",
    ["config.json", "cameras.json", "point_cloud.ply", "held_out", "held_out/a.png", "checkpoints/step_00000002/a.ply"],
)
def test_files_of_a_run_are_refused(run, tmp_path, name):
    for model in (None, run, tmp_path / "other.ply"):
        with pytest.raises(FileError, match=r"belongs to the run|would replace the model"):
            check_output(run / name, model)
    os.symlink(run, tmp_path / "link")
    with pytest.raises(FileError, match=r"belongs to the run|would replace the model"):
        check_output(tmp_path / "link" / name)


def test_other_files_in_the_folder_of_a_run_are_written(run):
    for name in ("export.ply", "eval/step_00000002", "videos/config.json"):
        check_output(run / name, run)


def test_model_that_is_read_is_refused(tmp_path):
    for name in ("model.ply", "sog/meta.json", "images/meta.json", "images/means_l.png", "inria/point_cloud.ply"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.symlink("model.ply", tmp_path / "link.ply")
    for model, out in [
        ("model.ply", "model.ply"),
        ("model.ply", "link.ply"),
        ("link.ply", "model.ply"),
        ("sog", "sog/meta.json"),
        ("sog/meta.json", "sog"),
        ("images", "images/means_l.png"),
        ("inria", "inria/point_cloud.ply"),
    ]:
        with pytest.raises(FileError, match="would replace the model that is read"):
            check_output(tmp_path / out, tmp_path / model)
    check_output(tmp_path / "images" / "preview.png", tmp_path / "images")
    check_output(tmp_path / "other.ply", tmp_path / "model.ply")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.ply")
    with pytest.raises(OSError, match="is a device, a pipe or a socket"):
        check_output(tmp_path / "pipe.ply")
