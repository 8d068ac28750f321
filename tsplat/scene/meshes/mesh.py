"""Triangle meshes: normals, connected components and decimation."""

import dataclasses

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...scalars import check_size
from ...support.extras import require

COMPONENT_SHARE_MIN = 0.01
"""Components smaller than this share of the area of the largest one are left out by default."""


@dataclasses.dataclass(frozen=True, eq=False)
class Mesh:
    """A triangle mesh.

    Attributes:
        vertices: [V, 3] fp64, world frame.
        faces: [F, 3] int64 indices of vertices, counterclockwise as seen from outside.
        colors: [V, 3] fp32 RGB in [0, 1].
        voxel: Edge of the voxels from which it was extracted, world units.
    """

    vertices: Tensor
    faces: Tensor
    colors: Tensor
    voxel: float = 0.0

    @property
    def areas(self) -> Tensor:
        """[F] fp64 areas of the faces."""
        areas: Tensor = self._crosses().norm(dim=-1) / 2
        return areas

    @property
    def normals(self) -> Tensor:
        """[V, 3] fp64 unit normals of the vertices, means of those of their faces weighted by area."""
        crosses = self._crosses()
        sums = torch.zeros_like(self.vertices)
        for corner in self.faces.unbind(-1):
            sums.index_add_(0, corner, crosses)
        return normalize(sums, dim=-1)

    def _crosses(self) -> Tensor:
        """Returns the cross products [F, 3] of two edges of each face."""
        a, b, c = (self.vertices[corner] for corner in self.faces.unbind(-1))
        return (b - a).cross(c - a, dim=-1)

    def select(self, faces: Tensor) -> "Mesh":
        """Returns the faces that a mask [F] selects, and their vertices."""
        kept = self.faces[faces]
        used, indices = torch.unique(kept, return_inverse=True)
        return dataclasses.replace(self, vertices=self.vertices[used], faces=indices, colors=self.colors[used])


def keep_components(mesh: Mesh, n: int | None = None) -> Mesh:
    """Returns the `n` connected components of the largest area; None for all with 1 % of that of the largest."""
    if n is not None:
        check_size("components", n)
    if not len(mesh.faces):
        return mesh
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    faces = mesh.faces.numpy()
    edges = faces[:, [0, 1, 1, 2]].reshape(-1, 2)
    size = len(mesh.vertices)
    graph = coo_array((np.ones(len(edges), np.bool_), (edges[:, 0], edges[:, 1])), (size, size))
    labels = torch.from_numpy(connected_components(graph, directed=False)[1]).long()[mesh.faces[:, 0]]
    areas = torch.zeros(int(labels.max()) + 1, dtype=torch.float64, device="cpu").index_add_(0, labels, mesh.areas)
    kept = areas >= COMPONENT_SHARE_MIN * areas.max()
    if n is not None:
        kept = torch.zeros_like(kept)
        kept[areas.argsort(descending=True, stable=True)[:n]] = True
    return mesh if bool(kept.all()) else mesh.select(kept[labels])


def decimate_mesh(vertices: Tensor, faces: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Returns vertices [V, 3] fp64 and faces [F, 3] of about `n` faces that have the least quadric error.

    Raises MissingExtraError if fast-simplification, which does this, is not installed.
    """
    check_size("faces", n)
    if len(faces) <= n:
        return vertices, faces
    require("fast_simplification")
    from fast_simplification import simplify

    # In single precision: relative to the center.
    center = vertices.mean(0)
    points, triangles = simplify((vertices - center).float().numpy(), faces.int().numpy(), target_count=n)
    return torch.from_numpy(points).double() + center, torch.from_numpy(triangles).long()
