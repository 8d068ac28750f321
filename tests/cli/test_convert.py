"""`tsplat convert` and `tsplat export`: models in other formats."""

import json
import os
import re
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.model_files import skip_without
from tsplat import cli
from tsplat.scene import read_model, read_ply, write_ply
from tsplat.scene.option_types import FORMATS


def test_convert_reports_losses_and_writes_a_model_that_renders(model, tmp_path, capsys):
    splat, out = tmp_path / "a.splat", tmp_path / "a.png"
    assert cli.main(["convert", str(model), str(splat)]) == 0
    printed = capsys.readouterr().out
    note = f"note: {splat.name} does not store all of the model exactly: colors, opacities and rotations rounded"
    assert printed.startswith(f"wrote 3 Gaussians to {splat}\n{note}")
    assert cli.main(["render", str(splat), "--out", str(out), "--width", "90", "--height", "60"]) == 0
    assert (np.asarray(Image.open(out)).max(-1) > 60).mean() > 0.1


def test_convert_mentions_invalid_gaussians(model, tmp_path, capsys):
    content = bytearray(model.read_bytes())
    content[-17 * 4 : -16 * 4] = b"\xff" * 4  # x of the last Gaussian
    model.write_bytes(content)
    out = tmp_path / "b.ply"
    assert cli.main(["convert", str(model), str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"wrote 3 Gaussians, 1 of them with invalid values, such as NaN, to {out}\n")


@pytest.mark.parametrize("format", FORMATS)
def test_gaussians_without_rotation_stay_invisible(format, model, tmp_path, capsys):
    """A PLY has a quaternion of zeros as it is; other formats have no place for one."""
    skip_without(format)
    gaussians = read_ply(model)
    gaussians.quats[1] = 0
    write_ply(model, gaussians)
    assert cli.main(["info", str(model)]) == 0
    assert "invalid      1" in capsys.readouterr().out
    out = tmp_path / ("b.splat" if format == "splat" else "b")
    assert cli.main(["convert", str(model), str(out), "--format", format]) == 0
    printed = capsys.readouterr().out
    found = read_model(out)
    assert found.means[found.valid][:, 0].sort().values.tolist() == pytest.approx([-1, 1], abs=1e-3)
    if format == "ply":
        assert printed.startswith("wrote 3 Gaussians, 1 of them with invalid values")
        assert len(found) == 3
    else:
        assert printed.startswith("wrote 2 Gaussians")
        assert "exactly: Gaussians whose rotation is a quaternion of zeros (1)" in printed
        assert len(found) == 2


@pytest.mark.parametrize("name", ["b.ply", "b.splat", "b/meta.json", "b/lod-meta.json", "b.html"])
def test_convert_prints_what_was_written_as_json(name, model, tmp_path, capsys):
    out = tmp_path / name
    assert cli.main(["convert", str(model), str(out), "--json"]) == 0
    printed = capsys.readouterr()
    written = json.loads(printed.out)
    assert (written["out"], written["count"]) == (str(out), 3)
    assert printed.err.startswith("wrote 3 Gaussians") and "\nnext: " in printed.err
    files = [out] if out.parent == tmp_path else [path for path in out.parent.rglob("*") if path.is_file()]
    assert written["size"] == sum(path.stat().st_size for path in files)
    assert bool(written["lost"]) == ("does not store all" in printed.err) == (name != "b.ply")
    assert written["format"] == {"b.ply": "ply", "b.splat": "splat", "b/lod-meta.json": "streamed-sog"}.get(name, "sog")
    assert (0 < written["model_size"] < written["size"]) if name == "b.html" else written["invalid"] == 0
    assert cli.main(["convert", str(model), str(out), "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    again = json.loads(printed.out)  # a folder's files have other names, and meta.json contains them
    assert again | {"size": written["size"]} == written and not printed.err


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX limits")
@pytest.mark.parametrize("name", ["b.ply", "b.splat", "b.compressed.ply", "b.spz", "b.sog", "b.html"])
def test_convert_names_path_and_size_on_a_full_disk(name, model, tmp_path, capsys):
    import resource

    out = tmp_path / name
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        assert cli.main(["convert", str(model), str(out)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == [model.parent]
    assert cli.main(["convert", str(model), str(out)]) == 0
    problem = r"File too large; at least ([\d,]+) bytes are needed, and [\d,]+ are free"
    error = capsys.readouterr().err
    found = re.fullmatch(rf"tsplat: error: {out}: {problem}\n", error)
    assert found, error
    size, needed = out.stat().st_size, int(found[1].replace(",", ""))
    # The images of an archive are made one after another.
    assert 16 < needed <= size if name == "b.sog" else needed == size


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP], ids=lambda signum: signum.name)
def test_terminated_convert_leaves_no_files(signum, model, tmp_path, forks):
    code = """
import os, sys
os.fsync = lambda _: os.kill(os.getpid(), int(sys.argv[1]))  # called when the temporary file is complete
from tsplat import cli
sys.exit(cli.main(["convert", *sys.argv[2:]]))
"""
    process = forks.run(code, int(signum), model, tmp_path / "b.ply")
    assert (process.returncode, process.stdout) == (128 + signum, "")
    assert process.stderr == f"tsplat: stopped by {signum.name}\n"
    assert list(tmp_path.iterdir()) == [model.parent]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("command", [["convert", "{model}", "{out}"], ["export", "{model}", "--out", "{out}"]])
def test_convert_and_export_write_the_format(command, format, model, tmp_path, capsys):
    skip_without(format)
    out = tmp_path / ("b.splat" if format == "splat" else "b")
    for _ in range(2):  # the second result replaces the first
        assert cli.main([*(word.format(model=model, out=out) for word in command), "--format", format]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"wrote 3 Gaussians to {out}")
    # A file is to be viewed if its name tells the format.
    assert printed.endswith(f"next: tsplat view {out}\n") == (out.is_dir() or format == "splat")
    means = read_model(out).means.sort(0).values
    assert (means - torch.tensor([[-1.0, 0, 0], [0, 0, 0], [1, 0, 0]])).abs().max() < 1e-3


@pytest.mark.parametrize("command", [["convert", "{model}", "{out}"], ["export", "{model}", "--out", "{out}"]])
def test_convert_and_export_keep_the_gaussians(command, model, tmp_path, capsys):
    out = tmp_path / "b.ply"
    assert cli.main([word.format(model=model, out=out) for word in command]) == 0
    assert capsys.readouterr().out == f"wrote 3 Gaussians to {out}\nnext: tsplat view {out}\n"
    assert read_ply(out).means.sort(0).values.tolist() == [[-1, 0, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("command", [["convert", "{model}", "{out}"], ["export", "{model}", "--out", "{out}"]])
def test_convert_and_export_rotate_a_model_upright_and_back(command, model, tmp_path):
    upright, back = tmp_path / "upright.ply", tmp_path / "back.ply"
    # z up becomes -y, after which the direction that was -y is z.
    for source, out, up in ((model, upright, "0 0 1"), (upright, back, "0 0 -1")):
        words = [word.format(model=source, out=out) for word in command]
        assert cli.main([*words, "--up", *up.split()]) == 0
    before, rotated, after = (read_ply(path) for path in (model, upright, back))
    assert torch.allclose(rotated.means, before.means[:, [0, 2, 1]] * torch.tensor([1.0, -1, 1]), atol=1e-6)
    for name, tensor in before.tensors().items():
        torch.testing.assert_close(getattr(after, name), tensor, rtol=0, atol=1e-5)


def test_invalid_up_of_a_file(model, tmp_path, capsys):
    assert cli.main(["convert", str(model), str(tmp_path / "a.ply"), "--up", "0", "0", "0"]) == 2
    assert "up: expected a finite direction that is not zero" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [model.parent]


@pytest.mark.parametrize("command", [["convert", "{model}", "{out}"], ["export", "{model}", "--out", "{out}"]])
def test_convert_and_export_write_a_page(command, model, tmp_path, capsys):
    out = tmp_path / "scene.html"
    command = [part.format(model=model, out=out) for part in command]
    assert cli.main([*command, "--title", "Three balls", "--up", "0", "0", "1", "--format", "compressed-ply"]) == 0
    size = f"{out.stat().st_size / 1e6:.1f} MB, of which the model has 0.0 MB and the viewer the rest"
    note = "the page does not store all of the model exactly: every value rounded to 8 to 11 bits; a plain .ply does"
    printed = f"wrote 3 Gaussians to {out}: {size}\nnote: {note}\n"
    assert capsys.readouterr().out == f"{printed}next: open {out} in a web browser\n"
    text = out.read_text("utf-8")
    assert "<title>Three balls</title>" in text
    assert '"filename": "scene.compressed.ply"' in text
    assert cli.main([*command, "--background", "1", "0", "0"]) == 0
    assert '"filename": "scene.sog"' in out.read_text("utf-8")
    assert "background: rgb(255, 0, 0);" in out.read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--format", "spz"], "format: expected .*sog.*compressed-ply"),
        (["--view", "0"], "--view: .*model.ply has no cameras.json of a run"),
        (["--up", "0", "0", "0"], "up: expected a finite direction that is not zero"),
    ],
)
def test_invalid_options_of_a_page(options, problem, model, tmp_path, capsys):
    assert cli.main(["convert", str(model), str(tmp_path / "scene.html"), *options]) == 2
    assert re.search(problem, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == [model.parent]


@pytest.mark.parametrize("options", [["--title", "a"], ["--view", "0"], ["--background", "0", "0", "0"]])
def test_options_of_a_page_need_a_page(options, model, tmp_path, capsys):
    assert cli.main(["convert", str(model), str(tmp_path / "scene.ply"), *options]) == 2
    assert f"{options[0]}: only for an output that ends in .html" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [model.parent]


@pytest.mark.parametrize("name", ["a.ply", "cameras/a.sog", "b/c/a.html"])
@pytest.mark.parametrize("command", [["convert", "{model}", "{out}"], ["export", "{model}", "--out", "{out}"]])
def test_convert_and_export_create_the_folder(command, name, model, tmp_path):
    out = tmp_path / "new" / name
    assert cli.main([word.format(model=model, out=out) for word in command]) == 0
    assert out.is_file()


def test_folder_of_a_failed_export_is_removed(model, tmp_path, capsys):
    gaussians = read_ply(model)
    gaussians.means[0] = torch.nan
    write_ply(model, gaussians)
    assert cli.main(["export", str(model), "--out", str(tmp_path / "new" / "deep" / "a.sog")]) == 2
    assert "not finite" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [model.parent]


@pytest.mark.parametrize("corners", [["-0.5", "-1", "-1", "1", "1", "1"], ["1", "-1", "1", "-0.5", "1", "-1"]])
@pytest.mark.parametrize("command", [["convert", "{model}", "{out}"], ["export", "{model}", "--out", "{out}"]])
def test_crop(command, corners, model, tmp_path, capsys):
    out = tmp_path / "b.ply"
    command = [word.format(model=model, out=out) for word in command]
    assert cli.main([*command, "--crop", *corners]) == 0
    assert capsys.readouterr().out.startswith(f"wrote 2 Gaussians to {out}\n")
    assert read_ply(out).means.sort(0).values.tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("name", ["b.ply", "b.html"])
def test_crop_that_leaves_nothing_is_an_error(name, model, tmp_path, capsys):
    command = ["convert", str(model), str(tmp_path / name)]
    assert cli.main([*command, "--crop", "5", "5", "5", "6", "6", "6"]) == 2
    problem = "crop: no Gaussian has its center between (5.0, 5.0, 5.0) and (6.0, 6.0, 6.0); choose another box"
    assert capsys.readouterr().err == f"tsplat: error: {problem}\n"
    assert list(tmp_path.iterdir()) == [model.parent]


def test_page_with_files_beside_it_is_to_be_served(model, tmp_path, capsys):
    skip_without("streamed-sog")
    out = tmp_path / "a site" / "the page.html"
    assert cli.main(["export", str(model), "--out", str(out), "--format", "streamed-sog"]) == 0
    server = f"python -m http.server --directory '{out.parent}'"
    assert capsys.readouterr().out.endswith(f"\nnext: {server}, then open http://localhost:8000/the%20page.html\n")


def test_page_of_a_crop(model, tmp_path, capsys):
    out = tmp_path / "b.html"
    assert cli.main(["export", str(model), "--out", str(out), "--crop", "0.5", "-1", "-1", "2", "1", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"wrote 1 Gaussians to {out}")


@pytest.mark.parametrize("name", ["a.mp4", "a.PNG"])
def test_images_and_videos_are_those_of_another_command(name, model, tmp_path, capsys):
    assert cli.main(["convert", str(model), str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.endswith("not a format of models; tsplat render writes images and videos\n")
    assert not (tmp_path / name).exists()
