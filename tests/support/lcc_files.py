"""Packs LCC datasets in the layout of XGRIDS' white paper, independently of the package's reader."""

import json
import struct

import numpy as np
import torch

from tsplat.scene import set_sh_degree, write_model


def lcc_files(gaussians, cells=3, levels=2, around=0, **values):
    """Returns name -> content of the files for Gaussians with z up; the last `around` Gaussians are the surroundings.

    Coarser levels contain the first Gaussians of each cell. `values` replace values of the JSON.
    """
    rows = np.split(np.arange(len(gaussians)), [len(gaussians) - around])
    degree = 3 if gaussians.sh_degree else 0
    gaussians = set_sh_degree(gaussians, degree)
    bounds = {}
    packed = [_pack(gaussians, ids, prefix, bounds) for ids, prefix in zip(rows, ("", "env"))]
    index, data, coefficients = b"", b"", b""
    totals = [0] * levels
    for cell, ids in enumerate(np.array_split(np.arange(len(rows[0])), cells)):
        index += struct.pack("<HH", cell, 7)
        for level in range(levels):
            own = ids[: len(ids) >> level]
            index += struct.pack("<IQI", len(own), len(data), 32 * len(own))
            totals[level] += len(own)
            data += b"".join(packed[0][0][i] for i in own)
            coefficients += b"".join(packed[0][1][i] for i in own)
    meta = {
        "version": "5.0", "totalSplats": len(data) // 32, "totalLevel": levels, "indexDataSize": 4 + 16 * levels,
        "offset": [0, 0, 0], "epsg": 0, "shift": [0, 0, 0], "scale": [1, 1, 1], "encoding": "COMPRESS",
        "splats": totals,
        "fileType": "Quality" if degree else "Portable",
        "attributes": [{"name": name, "min": low, "max": high} for name, (low, high) in bounds.items()],
    }  # fmt: skip
    files = {"a.lcc": json.dumps(meta | values).encode(), "index.bin": index, "data.bin": data}
    files |= {"shcoef.bin": coefficients} if degree else {}
    both = b"".join(one + other if degree else one for one, other in zip(*packed[1]))
    return files | ({"environment.bin": both} if around else {})


def _pack(gaussians, ids, prefix, bounds):
    """Returns the 32-byte and 64-byte records of Gaussians. Adds the bounds of scales and coefficients to `bounds`."""
    part = gaussians.select(torch.from_numpy(ids))
    scales, coefficients = part.scales.double().numpy(), part.shN.double().numpy()
    if not len(ids):
        return [], []
    low, high = scales.min(0), scales.max(0)
    bounds[f"{prefix}scale"] = low.tolist(), high.tolist()
    codes = np.round((scales - low) / np.maximum(high - low, 1e-30) * 65535).astype(int)
    xyzw = torch.nn.functional.normalize(part.quats, dim=-1)[:, [1, 2, 3, 0]].double().numpy()
    rgba = np.concatenate([0.5 + 0.28209479177387814 * part.sh0[:, 0].numpy(), part.opacities[:, None].numpy()], 1)
    colors = np.round(255 * np.clip(rgba, 0, 1)).astype(int)
    records, words = [], []
    for i in range(len(ids)):
        largest = int(np.abs(xyzw[i]).argmax())
        others = np.delete(xyzw[i] * np.sign(xyzw[i, largest]), largest)
        levels = [round((value + 0.5**0.5) / 2**0.5 * 1023) for value in others]
        rotation = levels[0] | levels[1] << 10 | levels[2] << 20 | largest << 30
        records.append(struct.pack("<3f4B3HI3H", *part.means[i].tolist(), *colors[i], *codes[i], rotation, 0, 0, 0))
    if coefficients.shape[1]:
        least, most = coefficients.min((0, 1)), coefficients.max((0, 1))
        bounds[f"{prefix}shcoef"] = least.tolist(), most.tolist()
        parts = np.round((coefficients - least) / np.maximum(most - least, 1e-30) * [2047, 1023, 2047]).astype(int)
        for one in parts:
            packed = [int(red) | int(green) << 11 | int(blue) << 21 for red, green, blue in one]
            words.append(struct.pack("<16I", *packed, 0))
    return records, words or [b""] * len(ids)


def write_lcc2(folder, gaussians, suffix=".ply", around=0, **values):
    """Writes Gaussians with z up as LCC2: three leaves at two depths, and coarser nodes. Returns the path of the JSON.

    Two leaves share a file. The last `around` Gaussians are the surroundings. `values` replace values of the JSON.
    """
    n = len(gaussians) - around
    ids = torch.arange(len(gaussians))
    names = [f"data/3dgs/{i}{suffix}" for i in range(3 + (around > 0))]
    files = [ids[: n // 2 : 2], ids[: n // 2], ids[n // 2 : n], ids[n:]]
    for name, rows in zip(names, files):
        write_model(folder / name, gaussians.select(rows))
    quarter = n // 4

    def node(name, start, count, children=()):
        own = {"id": "0", "data": {"3dgs": {"name": name, "start": start, "count": count}, "mesh": None}}
        return own | {"childNum": len(children), "child": {str(i): child for i, child in enumerate(children)}}

    halves = [node(1, 0, quarter), node(1, quarter, n // 2 - quarter)]
    children = [node(0, 0, len(files[0]), halves), node(2, 0, n - n // 2)]
    root = {"id": "0", "data": {"env": {"name": 3}} if around else None, "splatFiles": names, "childNum": 2}
    root["child"] = {str(i): child for i, child in enumerate(children)}
    meta = {
        "version": "0.0.3", "totalSplats": n, "totalLevels": 2, "splatType": suffix, "epsg": 0, "offset": [0, 0, 0],
        "shift": [0, 0, 0], "scale": [1, 1, 1], "root": root,
    }  # fmt: skip
    (folder / "a.lcc2").write_text(json.dumps(meta | values))
    return folder / "a.lcc2"
