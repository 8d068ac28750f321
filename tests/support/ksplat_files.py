"""Packs ``.ksplat`` files in the layout of GaussianSplats3D, independently of the package's reader."""

import itertools
import struct

import numpy as np
import torch

BLOCK, BUCKET, PARTIAL = 10.0, 16, 5
"""Edge length of a bucket, which must contain all Gaussians; number of Gaussians in a full bucket; maximum in
others."""

RANGE = 32767


def ksplat_bytes(gaussians, level, degrees):
    """Returns a file with one section per SH degree; coefficients above the degree of a section are left out."""
    rows = np.array_split(np.arange(len(gaussians)), len(degrees)) if degrees else []
    sections = [_section(gaussians, torch.from_numpy(ids), level, degree) for ids, degree in zip(rows, degrees)]
    count = len(gaussians)
    header = struct.pack("<BB2xIIIIH2x3fff", 0, 1, len(degrees), len(degrees), count, count, level, 0, 0, 0, -1.5, 1.5)
    return b"".join([header.ljust(4096, b"\0"), *(head for head, _ in sections), *(data for _, data in sections)])


def _section(gaussians, rows, level, degree):
    """Returns the header of 1,024 bytes and the data of a section."""
    means = gaussians.means[rows].double().numpy()
    n_full = len(rows) // BUCKET if level else 0
    starts = [*range(0, n_full * BUCKET, BUCKET), *range(n_full * BUCKET, len(rows), PARTIAL)] if level else []
    bucket_centers = [means[a:b].mean(0).astype("<f4") for a, b in itertools.pairwise([*starts, len(rows)])]
    sizes = np.diff([*starts, len(rows)]) if level else []
    centers = np.repeat(np.reshape(bucket_centers, (-1, 3)), sizes, axis=0) if level else means
    lengths, buckets = np.array(sizes[n_full:], "<u4").tobytes(), np.array(bucket_centers, "<f4").tobytes()
    offsets = np.clip(np.round((means - centers) * RANGE / (BLOCK / 2)) + RANGE, 0, 2 * RANGE + 1).astype("<u2")
    half = "<f4" if level == 0 else "<f2"
    quats = torch.nn.functional.normalize(gaussians.quats[rows], dim=-1).numpy()
    colors = np.clip(0.5 + 0.28209479177387814 * gaussians.sh0[rows, 0].numpy(), 0, 1)
    rgba = np.concatenate([colors, gaussians.opacities[rows, None].numpy()], 1)
    bands = [gaussians.shN[rows, k * k - 1 : (k + 1) ** 2 - 1].numpy() for k in range(1, degree + 1)]
    rest = np.concatenate(
        [np.zeros((len(rows), 0)), *(band.transpose(0, 2, 1).reshape(len(rows), -1) for band in bands)], 1
    )
    packed = np.clip(np.round((rest + 1.5) / 3 * 255), 0, 255).astype("u1") if level == 2 else rest.astype(half)
    columns = [means.astype("<f4") if level == 0 else offsets, gaussians.scales[rows].numpy().astype(half)]
    columns += [quats.astype(half), np.round(255 * rgba).astype("u1"), packed]
    records = b"".join(b"".join(column[i].tobytes() for column in columns) for i in range(len(rows)))
    data = lengths + buckets + records
    n_buckets = len(bucket_centers)
    numbers = (len(rows), len(rows), BUCKET, n_buckets, BLOCK, 12, RANGE, len(data), n_full, n_buckets - n_full)
    return struct.pack("<IIIIfH2xIIIIH", *numbers, degree).ljust(1024, b"\0"), data
