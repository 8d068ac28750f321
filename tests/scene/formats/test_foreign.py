"""Tests that models of other methods are refused by name, and that what is ignored is noted."""

import numpy as np
import pytest
import torch

from tests.support.model_files import compressed_ply_bytes, ply_bytes, ply_names, sog_files, write_folder
from tsplat import UnsupportedError, cli
from tsplat.scene import read_model, read_ply, read_sog

BASE = ply_names(1, normals=True)


def write(path, *names, without=()):
    """Writes a PLY with further properties."""
    names = [*(name for name in BASE if name not in without), *names]
    path.write_bytes(ply_bytes(names, np.full((3, len(names)), 0.5, np.float32)))
    return path


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (["t", "scale_t", "rot_r_0", "rot_r_1"], "t, scale_t, rot_r_0, rot_r_1"),
        (["t", "scale_t_0"], "t, scale_t_0"),
        (["mu_t", "t_scale", "rot_l_0"], "mu_t, t_scale, rot_l_0"),
        (["rot_4", "rot_5", "rot_6", "rot_7"], "rot_4, rot_5, rot_6, rot_7"),
        (
            ["trbf_center", "trbf_scale", *(f"motion_{i}" for i in range(9))],
            "trbf_center, trbf_scale, motion_0, .* and",
        ),
        (["omega_0", "f_t_0"], "omega_0, f_t_0"),
        (["motion_coefs_0"], "motion_coefs_0"),
        (["velocity_0", "time", "duration"], "velocity_0, time, duration"),
        (["delta_x_t0", "delta_rot_0_t0"], "delta_x_t0, delta_rot_0_t0"),
        (["scaling_t", "rotation_r_0", "rotation_l_3"], "scaling_t, rotation_r_0, rotation_l_3"),
        (["t_center", "xyz_t_0", "vel_x"], "t_center, xyz_t_0, vel_x"),
        (["xyz_motion_0", "rot_motion_0", "_opacity_time"], "xyz_motion_0, rot_motion_0, _opacity_time"),
    ],
)
def test_4d_models_are_refused_by_name(tmp_path, names, listed):
    path = write(tmp_path / "a.ply", *names)
    with pytest.raises(UnsupportedError, match=rf"a\.ply: its vertices have {listed}.*4D.*; export one frame as 3D"):
        read_ply(path)


def test_other_methods_are_refused_by_name(tmp_path):
    scaffold = write(tmp_path / "a.ply", "f_offset_0", "f_anchor_feat_0", "scale_3", without=["f_dc_0", "f_dc_1"])
    with pytest.raises(UnsupportedError, match=r"f_offset_0, f_anchor_feat_0: .*Scaffold-GS.*; export explicit"):
        read_ply(scaffold)
    with pytest.raises(UnsupportedError, match=r"have scale_3, scale_4: .*more than three scales"):
        read_ply(write(tmp_path / "b.ply", "scale_3", "scale_4"))


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (["beta", "sb_params_0"], r"beta, sb_params_0: reading Beta kernels \(Deformable Beta Splatting\)"),
        (["shape"], r"shape: reading generalized exponential functions \(GES\)"),
        (["texture_0", "texture_alpha_0"], "texture_0, texture_alpha_0: reading textured Gaussians"),
    ],
)
def test_other_primitives_are_refused_by_name(tmp_path, names, method):
    with pytest.raises(UnsupportedError, match=f"have {method} is not implemented; train 3D Gaussians"):
        read_ply(write(tmp_path / "a.ply", *names))


def test_harmless_properties_are_not_mentioned(tmp_path):
    notes = []
    read_ply(write(tmp_path / "a.ply", "red", "green", "blue", "alpha", "s", "t"), warn=notes.append)
    assert notes == []


def test_unknown_properties_are_noted_in_one_line(tmp_path):
    path = write(tmp_path / "a.ply", "confidence", "label", *(f"semantic_{i}" for i in range(6)))
    notes = []
    read_ply(path, warn=notes.append)
    names = "confidence, label, semantic_0, semantic_1, semantic_2 and 3 more"
    assert notes == [f"{path}: ignored the properties {names}; only 3D Gaussians are read"]
    with pytest.warns(UserWarning, match="ignored the properties confidence, label"):
        read_model(path)


def test_unprintable_names_of_damaged_files_are_escaped(tmp_path):
    path = write(tmp_path / "a.ply", "x\x1b[31m", "long" * 99)
    notes = []
    read_ply(path, warn=notes.append)
    assert notes[0].isprintable()
    assert len(notes[0]) < len(str(path)) + 200


def test_compressed_ply_notes_what_it_ignores(tmp_path):
    content = compressed_ply_bytes(np.random.default_rng(0), 300, 1)
    for old in (b"element vertex", b"element sh"):
        content = content.replace(old, b"property float density\n" + old)
    content = content.replace(b"end_header", b"element cameras 0\nproperty float fov\nend_header")
    size = content.index(b"end_header\n") + len(b"end_header\n")
    chunk = 2 * (18 * 4)
    rows = content[size + chunk :]
    body = b"".join(content[size + i * 72 : size + (i + 1) * 72] + bytes(4) for i in range(2))
    body += b"".join(rows[i * 16 : i * 16 + 16] + bytes(4) for i in range(300)) + rows[300 * 16 :]
    (tmp_path / "a.ply").write_bytes(content[:size] + body)
    notes = []
    read_ply(tmp_path / "a.ply", warn=notes.append)
    assert [note.split("ignored ")[1].split(";")[0] for note in notes] == [
        "the properties of 'vertex': density",
        "the properties of 'chunk': density",
        "the elements cameras",
    ]


def test_sog_notes_unknown_parts_and_reads_the_antialias_flag(tmp_path):
    notes = []
    folder = write_folder(tmp_path / "a", sog_files(antialias=True, deformation={"files": ["d.webp"]}, extras={})[0])
    assert read_sog(folder, warn=notes.append).antialiased
    assert notes == [f"{folder}: ignored the parts deformation; only 3D Gaussians are read"]
    assert not read_sog(write_folder(tmp_path / "b", sog_files(antialias=False)[0])).antialiased


@pytest.mark.parametrize("command", ["info", "render", "convert", "export"])
def test_commands_print_one_clean_line(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = write(tmp_path / "a.ply", "confidence")
    options = {
        "info": [],
        "render": ["--out", str(tmp_path / "a.png"), "--width", "16", "--height", "12"],
        "convert": [str(tmp_path / "b.ply")],
        "export": ["--out", str(tmp_path / "b.ply")],
    }
    assert cli.main([command, str(path), *options[command]]) == 0
    expected = f"tsplat: {path}: ignored the properties confidence; only 3D Gaussians are read\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("command", ["info", "convert"])
def test_commands_refuse_4d_models_in_one_line(tmp_path, capsys, command):
    path = write(tmp_path / "a.ply", "t", "scale_t")
    assert cli.main([command, str(path), *([str(tmp_path / "b.ply")] if command == "convert" else [])]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"tsplat: error: {path}: its vertices have t, scale_t: reading 4D Gaussians, which change over time, is not "
        "implemented; export one frame as 3D Gaussians\n"
    )
    assert not (tmp_path / "b.ply").exists()
