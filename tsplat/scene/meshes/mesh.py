"""Triangle meshes: normals, connected components and decimation."""

import dataclasses

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...scalars import check_size
from ...support.extras import require

COMPONENT_SHARE_MIN = 0.01
"""By default, components with less than this share of the largest component's area are removed."""


@dataclasses.dataclass(frozen=True, eq=False)
class Mesh:
    """A triangle mesh.

    Attributes:
        vertices: [V, 3] fp64, world frame.
        faces: [F, 3] int64 indices of vertices, counterclockwise as seen from outside.
        colors: [V, 3] fp32 RGB in [0, 1].
        voxel: Edge length of the voxels from which the mesh was extracted, world units.
    """

    vertices: Tensor
    faces: Tensor
    colors: Tensor
    voxel: float = 0.0

    @property
    def areas(self) -> Tensor:
        """Areas of the faces, [F] fp64."""
        areas: Tensor = self._crosses().norm(dim=-1) / 2
        return areas

    @property
    def normals(self) -> Tensor:
        """Unit normals of the vertices, [V, 3] fp64: the area-weighted means of their faces' normals."""
        crosses = self._crosses()
        sums = torch.zeros_like(self.vertices)
        for corner in self.faces.unbind(-1):
            sums.index_add_(0, corner, crosses)
        return normalize(sums, dim=-1)

    def _crosses(self) -> Tensor:
        """Returns the cross product of two edges of each face, [F, 3]."""
        a, b, c = (self.vertices[corner] for corner in self.faces.unbind(-1))
        return (b - a).cross(c - a, dim=-1)

    def select(self, faces: Tensor) -> "Mesh":
        """Returns the mesh of the faces selected by a mask [F]."""
        kept = self.faces[faces]
        used, indices = torch.unique(kept, return_inverse=True)
        return dataclasses.replace(self, vertices=self.vertices[used], faces=indices, colors=self.colors[used])


def keep_components(mesh: Mesh, n: int | None = None) -> Mesh:
    """Keeps the `n` connected components with the largest areas; None keeps all with at least 1 % of the largest
    area."""
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
    """Decimates a mesh to about `n` faces, minimizing the quadric error; returns vertices [V, 3] fp64 and faces [F, 3].

    Raises MissingExtraError if fast-simplification is not installed.
    """
    check_size("faces", n)
    if len(faces) <= n:
        return vertices, faces
    require("fast_simplification")
    from fast_simplification import simplify

    # fast-simplification uses single precision, so pass coordinates relative to the center.
    center = vertices.mean(0)
    points, triangles = simplify((vertices - center).float().numpy(), faces.int().numpy(), target_count=n)
    return torch.from_numpy(points).double() + center, torch.from_numpy(triangles).long()
