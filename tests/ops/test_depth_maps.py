"""Depth maps: points against their projection, normals of a plane, gradients, invalid arguments."""

import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ArgumentError, depth_to_normals, depth_to_points


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cameras(*batch):
    camtoworlds = torch.eye(4, dtype=torch.float64).expand(*batch, 4, 4).clone()
    camtoworlds[..., :3, :3] = torch.linalg.qr(random(*batch, 3, 3)).Q
    camtoworlds[..., :3, 3] = random(*batch, 3, seed=1)
    Ks = torch.tensor([[12.0, 0, 4.5], [0, 10.0, 3.25], [0, 0, 1]], dtype=torch.float64).expand(*batch, 3, 3)
    return camtoworlds, Ks


@pytest.mark.parametrize("z_depth", [True, False])
@pytest.mark.parametrize("batch", [(), (2, 1)])
def test_points_project_to_their_pixels_and_depths(batch, z_depth):
    camtoworlds, Ks = cameras(*batch)
    depths = 1 + random(*batch, 6, 9, 1, seed=2).abs()
    points = depth_to_points(depths, camtoworlds, Ks, z_depth=z_depth)
    assert points.shape == (*batch, 6, 9, 3)
    view = torch.linalg.inv(camtoworlds)[..., None, None, :, :]
    camera = (view[..., :3, :3] @ points[..., None])[..., 0] + view[..., :3, 3]
    found = camera[..., 2] if z_depth else camera.norm(dim=-1)
    assert_exact("depths", found, depths[..., 0])
    clip = (Ks[..., None, None, :, :] @ camera[..., None])[..., 0]
    rows, columns = torch.meshgrid(torch.arange(6.0).double(), torch.arange(9.0).double(), indexing="ij")
    assert_exact(
        "pixels", clip[..., :2] / clip[..., 2:], (torch.stack([columns, rows], -1) + 0.5).expand(*batch, 6, 9, 2)
    )


@pytest.mark.parametrize("z_depth", [True, False])
def test_normals_of_a_plane(z_depth):
    (camtoworlds, Ks), normal, offset = cameras(1), torch.tensor([0.2, -0.3, -1.0], dtype=torch.float64), -3.0
    normal = normal / normal.norm()
    # In the camera frame, the plane is normal . p = offset.
    rays = depth_to_points(torch.ones(1, 6, 9, 1, dtype=torch.float64), torch.eye(4).double()[None], Ks, z_depth)
    depths = offset / (rays @ normal)[..., None]
    assert (depths > 0).all()
    normals = depth_to_normals(depths, camtoworlds, Ks, z_depth)
    expected = torch.zeros(1, 6, 9, 3, dtype=torch.float64)
    expected[:, 1:-1, 1:-1] = camtoworlds[0, :3, :3] @ normal * torch.linalg.det(camtoworlds[0, :3, :3]).sign()
    assert_exact("normals", normals, expected)


@pytest.mark.parametrize("function", [depth_to_points, depth_to_normals])
@pytest.mark.parametrize("z_depth", [True, False])
def test_depth_gradients(function, z_depth):
    camtoworlds, Ks = (tensor.clone().requires_grad_() for tensor in cameras(1))
    depths = (2 + 0.1 * random(1, 4, 5, 1, seed=2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: function(*tensors, z_depth), (depths, camtoworlds, Ks))


def test_arguments_are_checked():
    camtoworlds, Ks = cameras(2)
    with pytest.raises(ArgumentError, match="camtoworlds"):
        depth_to_points(torch.ones(3, 4, 5, 1).double(), camtoworlds, Ks)
    with pytest.raises(ArgumentError, match="depths"):
        depth_to_normals(torch.ones(4, 5).double(), camtoworlds[0], Ks[0])
    with pytest.raises(ArgumentError, match="z_depth"):
        depth_to_normals(torch.ones(2, 4, 5, 1).double(), camtoworlds, Ks, z_depth="yes")
