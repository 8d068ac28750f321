"""Rotations as unit quaternions wxyz and as matrices."""

import torch
from torch import Tensor

Triple = tuple[Tensor, Tensor, Tensor]


def rotation_rows(quats: Tensor) -> tuple[Triple, Triple, Triple]:
    """Returns the entries [...] of the rotation matrices of unit quaternions wxyz [..., 4], row by row."""
    w, x, y, z = quats.unbind(-1)
    return (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )


def rotation_matrices(quats: Tensor) -> Tensor:
    """Returns the rotation matrices [..., 3, 3] of unit quaternions wxyz [..., 4]."""
    return torch.stack([torch.stack(row, -1) for row in rotation_rows(quats)], -2)


def rotate(w: Tensor, axis: Tensor, vectors: Tensor) -> Tensor:
    """Returns vectors [N, 3] rotated by unit quaternions with real parts w [N, 1] and imaginary parts [N, 3]."""
    across = 2 * axis.cross(vectors.to(axis), -1)
    rotated: Tensor = vectors + w * across + axis.cross(across, -1)
    return rotated


def quaternions(rotations: Tensor) -> Tensor:
    """Returns unit quaternions wxyz [..., 4] of rotation matrices [..., 3, 3], with either sign."""
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in rotations.unbind(-2))
    # Row k is 4 q_k q. The row with the largest q_k is the most precise.
    rows = (
        (1 + a + e + i, h - f, c - g, d - b),
        (h - f, 1 + a - e - i, d + b, c + g),
        (c - g, d + b, 1 - a + e - i, h + f),
        (d - b, c + g, h + f, 1 - a - e + i),
    )
    outer = torch.stack([torch.stack(row, -1) for row in rows], -2)
    largest = outer.diagonal(dim1=-2, dim2=-1).argmax(-1, keepdim=True)[..., None]
    return torch.nn.functional.normalize(outer.take_along_dim(largest, -2).squeeze(-2), dim=-1)
