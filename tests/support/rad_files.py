"""Packs ``.rad`` files in the layout of Spark, independently of the package's reader."""

import json
import struct
import zlib

import numpy as np
import torch

PLAIN = {"center": "f32", "alpha": "f32", "rgb": "f32", "scales": "f32", "orientation": "f32", "sh": "f32"}
COMPACT = {
    "center": "f16_lebytes", "alpha": "r8", "rgb": "r8_delta", "scales": "ln_0r8", "orientation": "oct88r8", "sh": "s8",
}  # fmt: skip
"""Property -> encoding."""

BOUNDS = {"alpha": (0, 1), "rgb": (-0.5, 1.5), "scales": (-12, 9), "sh": (-1.5, 1.5)}


def rad_files(gaussians, encodings=PLAIN, size=40, *, tree=False, palette=0, beside=False, **values):
    """Returns name -> content of the files of a model with chunks of `size`.

    With `tree`, every other Gaussian is an inner node with an opacity of 1.5. With `palette`, SH coefficients refer by
    the index of the Gaussian to that number of palette rows in the first chunk. With `beside`, chunks are separate
    files. `values` replace values of the header.
    """
    count, degree = len(gaussians), gaussians.sh_degree
    chunks = [
        _chunk(gaussians, torch.arange(i, min(i + size, count)), encodings, tree, palette)
        for i in range(0, count, size)
    ]
    ends = np.cumsum([0, *map(len, chunks)])
    ranges = [
        {"offset": 0 if beside else int(ends[i]), "bytes": len(chunk)} | ({"filename": f"a-{i}.radc"} if beside else {})
        for i, chunk in enumerate(chunks)
    ]
    header = {
        "version": 1, "type": "gsplat", "count": count, "maxSh": degree, "chunkSize": size,
        "allChunkBytes": int(ends[-1]), "chunks": ranges,
    }  # fmt: skip
    header |= ({"lodTree": True} if tree else {}) | ({"shCodeCount": palette} if palette else {})
    content = _with_header(b"RAD0", header | values)
    if beside:
        return {"a.rad": content} | {f"a-{i}.radc": chunk for i, chunk in enumerate(chunks)}
    return {"a.rad": content + b"".join(chunks)}


def _with_header(magic, header):
    text = json.dumps(header, indent=2).encode()
    return magic + struct.pack("<I", len(text)) + text + bytes(-len(text) % 8)


def _chunk(gaussians, rows, encodings, tree, palette):
    """Returns a chunk with the given rows."""
    part = gaussians.select(rows)
    alpha = part.opacities.double().numpy()[:, None]
    if tree:
        inner = rows.numpy() % 2 == 1
        alpha = np.where(inner[:, None], 1.5, alpha)
    quats = torch.nn.functional.normalize(part.quats, dim=-1).double().numpy()
    quats = quats * np.where(quats[:, :1] < 0, -1, 1)
    colors = 0.5 + 0.28209479177387814 * part.sh0[:, 0].double().numpy()
    columns = [
        ("center", part.means.numpy()), ("alpha", alpha), ("rgb", colors), ("scales", part.scales.numpy()),
        ("orientation", quats[:, [1, 2, 3, 0]]),
    ]  # fmt: skip
    codes = gaussians.shN[:palette].numpy() if palette else part.shN.numpy()
    for degree in range(1, gaussians.sh_degree + 1):
        band = codes[:, degree**2 - 1 : (degree + 1) ** 2 - 1].reshape(len(codes), -1)
        if not palette:
            columns.append((f"sh{degree}", band))
        elif rows[0] == 0:
            columns.append((f"sh{degree}_code", band))
    if palette:
        columns.append(("sh_label", (rows.numpy() % palette)[:, None]))
    if tree:
        columns += [("child_count", inner[:, None].astype(int)), ("child_start", np.zeros((len(rows), 1), int))]
    properties, payload = [], b""
    for name, values in columns:
        kind = "sh" if name[:3] in ("sh1", "sh2", "sh3") else name
        whole = {"sh_label": "u16", "child_count": "u16", "child_start": "u32"}
        encoding = whole.get(name) or encodings[kind]
        low, high = (0, 2) if tree and name == "alpha" else BOUNDS.get(kind, (0, 1))
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        content = deflate.compress(_encode(values, encoding, low, high)) + deflate.flush()
        entry = {"offset": len(payload), "bytes": len(content), "property": name, "encoding": encoding}
        entry |= {"compression": "gz"}
        if encoding[:2] in ("r8", "s8", "ln"):
            entry |= {"min": low, "max": high}
        properties.append(entry)
        payload += content + bytes(-len(content) % 8)
    header = {"version": 1, "base": int(rows[0]), "count": len(rows), "payloadBytes": len(payload)}
    return _with_header(b"RADC", header | {"properties": properties}) + struct.pack("<Q", len(payload)) + payload


def _encode(values, encoding, low, high):
    """Encodes values [N, D] column by column."""
    if encoding == "oct88r8":
        return bytes(byte for row in values for byte in _octahedral(*row))
    if encoding in ("f32", "f16") and values.shape[1] == 4:
        values = values[:, :3]
    values = values.T
    if encoding == "ln_0r8":
        codes = 1 + np.round((np.log(values) - low) / (high - low) * 254).clip(0, 254)
        return codes.astype("u1").tobytes()
    if encoding == "ln_f16":
        return np.log(values).astype("<f2").tobytes()
    if encoding.startswith("r8"):
        codes = np.round((values - low) / (high - low) * 255).clip(0, 255).astype("u1")
        return (np.diff(codes, prepend=np.uint8(0), axis=1) if "delta" in encoding else codes).astype("u1").tobytes()
    if encoding.startswith("s8"):
        codes = np.round(values / high * 127).clip(-127, 127).astype("i1")
        return (np.diff(codes, prepend=np.int8(0), axis=1) if "delta" in encoding else codes).astype("i1").tobytes()
    if encoding.endswith("_lebytes"):
        size = 4 if encoding.startswith("f32") else 2
        words = np.ascontiguousarray(values, f"<f{size}").view("u1").reshape(*values.shape, size)
        return b"".join(words[:, :, byte].tobytes() for byte in range(size))
    return values.astype({"f32": "<f4", "f16": "<f2", "u16": "<u2", "u32": "<u4"}[encoding]).tobytes()


def _octahedral(x, y, z, w):
    """Encodes rotations in three bytes: the axis on the octahedron, and the angle."""
    angle = 2 * np.arccos(min(w, 1.0))
    axis = np.array([x, y, z]) / max(np.sin(angle / 2), 1e-9)
    axis = axis / max(np.abs(axis).sum(), 1e-9)
    u, v = axis[:2]
    if axis[2] < 0:
        u, v = (1 - abs(v)) * (1 if u >= 0 else -1), (1 - abs(u)) * (1 if v >= 0 else -1)
    return round((u + 1) / 2 * 255), round((v + 1) / 2 * 255), round(angle / np.pi * 255)
