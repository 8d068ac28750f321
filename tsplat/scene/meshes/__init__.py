"""Extracts meshes from models: :func:`extract_mesh` fuses rendered depth, :func:`write_mesh` writes PLY, OBJ and
GLB."""

from .extraction import extract_mesh
from .mesh import Mesh
from .mesh_files import write_mesh

__all__ = ["Mesh", "extract_mesh", "write_mesh"]
