"""Surfaces of known shape made of Gaussians, and measures of meshes."""

import math

import numpy as np
import torch

from tsplat.scene import Camera, Gaussians, intrinsics, look_at
from tsplat.scene.rotation import positive_quaternions


def fibonacci_sphere(n):
    """Returns `n` evenly spaced points [n, 3] on the unit sphere."""
    i = torch.arange(n, dtype=torch.float64)
    height, azimuth = 1 - (2 * i + 1) / n, i * math.pi * (3 - math.sqrt(5))
    side = (1 - height**2).sqrt()
    return torch.stack([side * azimuth.cos(), height, side * azimuth.sin()], 1)


def sphere_of_gaussians(n=3000, *, surfels=False, opacity=0.95, center=(0.0, 0.0, 0.0)):
    """Returns discs tangent to a unit sphere with RGB (n + 1) / 2 for normals n."""
    normals = fibonacci_sphere(n)
    other = torch.where(normals[:, :1].abs() < 0.9, torch.eye(3)[0].double(), torch.eye(3)[1].double())
    x = torch.nn.functional.normalize(normals.cross(other, dim=1), dim=1)
    axes = torch.stack([x, normals.cross(x, dim=1), normals], 2)
    size = 0.55 * math.sqrt(4 * math.pi / n)
    gaussians = Gaussians(
        means=(normals + torch.tensor(center, dtype=torch.float64)).float(),
        log_scales=torch.tensor([size, size, size / 20]).log().expand(n, 3).clone(),
        quats=positive_quaternions(axes).float(),
        opacity_logits=torch.full((n,), opacity).logit(),
        sh0=(normals / 2 / 0.28209479177387814).float()[:, None],
        shN=torch.zeros(n, 0, 3),
    )
    return gaussians.as_surfels() if surfels else gaussians


def cameras_on_sphere(n, size, *, distance=3.0, fov=50.0, center=(0.0, 0.0, 0.0)):
    """Returns `n` cameras of `size` pixels around a center, looking at it."""
    K, middle = intrinsics(size, size, fov), torch.tensor(center, dtype=torch.float64)
    eyes = middle + distance * fibonacci_sphere(n)
    return [Camera(look_at(eye.tolist(), center), K, size, size) for eye in eyes]


def edge_counts(mesh):
    """Returns the number of faces of each edge; it is always 2 for a closed mesh."""
    faces = mesh.faces.numpy()
    edges = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    return np.unique(edges, axis=0, return_counts=True)[1]


def signed_volume(mesh):
    """Returns the volume of a closed mesh; negative if its faces are oriented inwards."""
    a, b, c = (mesh.vertices[corner] for corner in mesh.faces.unbind(1))
    return float((a * b.cross(c, dim=1)).sum() / 6)
