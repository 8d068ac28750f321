"""Random Gaussians, and model files built independently of the package's writers."""

import gzip
import io
import json
import struct
import zipfile

import numpy as np
import pytest
import torch

from tsplat.scene import Gaussians
from tsplat.scene.formats.models import WRITERS

PLY_GEOMETRY = ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
PLY_ENCODINGS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "<"}
"""PLY encoding -> byte order; binary_little_endian also for the values of ASCII files."""


FILE_FORMATS = tuple(format for format in WRITERS if format != "streamed-sog")
"""Formats that consist of one file."""


def skip_without(format):
    """Skips a test if a package for a format, other than Pillow, is not installed."""
    if format == "spz4":
        pytest.importorskip("zstandard")
    if format.startswith("usd"):
        pytest.importorskip("pxr", reason="needs usd-core")


def random_gaussians(n=50, degree=0, antialiased=False):
    """Returns Gaussians with normally distributed parameters; equal arguments give equal Gaussians."""
    generator = torch.Generator().manual_seed(n)

    def draw(*size):
        return torch.randn(n, *size, generator=generator)

    shN = 0.3 * draw((degree + 1) ** 2 - 1, 3)
    return Gaussians(draw(3), draw(3) - 3, draw(4), draw(), 0.5 * draw(1, 3), shN, antialiased)


def assert_same_tensors(one, other):
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def assert_same_rotations(one, other, tolerance):
    """Compares normalized quaternions up to their sign."""
    a, b = (torch.nn.functional.normalize(gaussians.quats, dim=-1) for gaussians in (one, other))
    assert (torch.minimum((a - b).norm(dim=-1), (a + b).norm(dim=-1)) < tolerance).all()


def ply_names(degree, normals=False):
    """Returns the properties of Inria's layout in order."""
    rest = [f"f_rest_{i}" for i in range(3 * ((degree + 1) ** 2 - 1))]
    return ["x", "y", "z", *(["nx", "ny", "nz"] if normals else []), "f_dc_0", "f_dc_1", "f_dc_2", *rest, *PLY_GEOMETRY]


def ply_bytes(names, values, encoding="binary_little_endian", comments=()):
    """Returns a PLY with float32 values [N, len(names)]."""
    lines = ["ply", f"format {encoding} 1.0", *(f"comment {comment}" for comment in comments)]
    lines += [f"element vertex {len(values)}", *(f"property float {name}" for name in names), "end_header", ""]
    if encoding == "ascii":
        body = "".join(" ".join(f"{value:.9g}" for value in row) + "\n" for row in values.tolist()).encode()
    else:
        body = values.astype(PLY_ENCODINGS[encoding] + "f4").tobytes()
    return "\n".join(lines).encode() + body


def compressed_ply_bytes(rng, count, degree, colors=True):
    """Returns a compressed PLY with random words; with `colors`, the chunks have color bounds."""
    chunks = -(-count // 256)
    bounds = ["x", "y", "z", "scale_x", "scale_y", "scale_z", *(["r", "g", "b"] if colors else [])]
    words = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
    size = 3 * ((degree + 1) ** 2 - 1)
    lines = ["ply", "format binary_little_endian 1.0", f"element chunk {chunks}"]
    lines += [f"property float {end}_{bound}" for bound in bounds for end in ("min", "max")]
    lines += [f"element vertex {count}", *(f"property uint {name}" for name in words)]
    lines += [f"element sh {count}", *(f"property uchar f_rest_{i}" for i in range(size))] if size else []
    low = rng.normal(size=(chunks, len(bounds)))
    high = low + rng.random(low.shape)
    body = np.stack([low, high], 2).astype("<f4").tobytes() + rng.bytes(16 * count) + rng.bytes(size * count)
    return "\n".join([*lines, "end_header", ""]).encode() + body


SAFE_ORBIT_CAMERA = struct.pack("<IIfff", 0xADBE0002, 12, -0.5, 0.75, 2)
"""An extension of SPZ files."""


def spz_bytes(gaussians, version, flags=0, raw=False, extensions=None):
    """Returns an SPZ file with the values of `gaussians` without converting axes; `raw` omits the gzip compression.

    By default, version 4 has an extension that its flags do not announce, and other versions have none.
    """
    sections = _spz_sections(gaussians, version)
    header = struct.pack("<4sIIBBB", b"NGSP", version, len(gaussians), gaussians.sh_degree, 12, flags)
    if version < 4:
        content = header + b"\0" + b"".join(sections) + (extensions or b"")
        return content if raw else gzip.compress(content, mtime=0)
    zstandard = pytest.importorskip("zstandard")
    streams = [(zstandard.compress(section), len(section)) for section in sections if section]
    extension = SAFE_ORBIT_CAMERA if extensions is None else extensions
    table = b"".join(struct.pack("<QQ", len(packed), size) for packed, size in streams)
    header += struct.pack("<BI12x", len(streams), 32 + len(extension))
    return header + extension + table + b"".join(packed for packed, _ in streams)


def _spz_sections(gaussians, version):
    fixed = (gaussians.means.double() * 4096).round().long().numpy()
    positions = np.stack([fixed >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
    rgb = (gaussians.sh0[:, 0] * 0.15 + 0.5) * 255
    quats = torch.nn.functional.normalize(gaussians.quats, dim=-1)[:, [1, 2, 3, 0]].double().numpy()
    if version == 2:
        xyz = quats[:, :3] * np.where(quats[:, 3:] < 0, -1, 1)
        rotations = np.round((xyz + 1) * 127.5).astype(np.uint8)
    else:
        words = []
        for quat in quats:
            largest = int(np.abs(quat).argmax())
            word = largest
            for value in np.delete(quat * np.sign(quat[largest]), largest):
                word = word << 10 | (512 if value < 0 else 0) | round(abs(value) * 2**0.5 * 511)
            words.append(word)
        rotations = np.array(words, "<u4")

    def bytes_of(values):
        return values.round().clamp(0, 255).to(torch.uint8).numpy().tobytes()

    parts = [gaussians.opacities * 255, rgb, (gaussians.log_scales + 10) * 16]
    return [positions.tobytes(), *map(bytes_of, parts), rotations.tobytes(), bytes_of(gaussians.shN * 128 + 128)]


def webp_bytes(values):
    """Returns a lossless WebP image of [H, W, 4] uint8."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(values, "RGBA").save(file, "WEBP", lossless=True, exact=True)
    return file.getvalue()


def sog_files(count=30, bands=2, **changes):
    """Returns the files of a random SOG dataset by name, with images of 5 x 8 pixels; their arrays; and the
    codebooks."""
    rng = np.random.default_rng(0)
    size = (bands + 1) ** 2 - 1
    names = ("means_l", "means_u", "scales", "sh0", "quats", "shN_labels")
    arrays = {name: rng.integers(0, 256, (5, 8, 4), dtype=np.uint8) for name in names}
    arrays["quats"][..., 3] = rng.integers(252, 256, (5, 8))
    arrays["shN_labels"][..., 0] %= 100
    arrays["shN_labels"][..., 1] = 0
    arrays["shN_centroids"] = rng.integers(0, 256, (2, 64 * size, 4), dtype=np.uint8)
    codebooks = {name: np.sort(rng.normal(size=256)).tolist() for name in ("scales", "sh0", "shN")}
    meta = {
        "version": 2,
        "count": count,
        "means": {"mins": [-1, -2, -3], "maxs": [1, 2, 4], "files": ["means_l.webp", "means_u.webp"]},
        "quats": {"files": ["quats.webp"]},
        **{name: {"codebook": codebooks[name], "files": [f"{name}.webp"]} for name in ("scales", "sh0")},
        "shN": {
            **{"count": 100, "bands": bands, "codebook": codebooks["shN"]},
            "files": ["shN_centroids.webp", "shN_labels.webp"],
        },
        **changes,
    }
    files = {f"{name}.webp": webp_bytes(array) for name, array in arrays.items()}
    return {**files, "meta.json": json.dumps(meta).encode()}, arrays, codebooks


def write_folder(path, files):
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def write_zip(path, files, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path
