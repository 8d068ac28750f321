"""Images of dots at projected points, and points in front of a camera."""

import pytest
import torch

from tsplat.scene import Camera, View


def dots(pixels, width, height, sigma=1.5):
    """Renders white blobs on black at pixels [P, 2], [H, W, 3] uint8."""
    x, y = torch.arange(width) + 0.5, torch.arange(height) + 0.5
    image = torch.zeros(height, width)
    for px, py in pixels.tolist():
        blob = torch.exp(-(((x - px)[None] / sigma) ** 2 + ((y - py)[:, None] / sigma) ** 2) / 2)
        image = image.maximum(blob)
    return (255 * image).round().to(torch.uint8)[..., None].expand(-1, -1, 3).contiguous()


def centroid(image, x, y, reach=5):
    """Returns the centroid of brightness around a pixel."""
    left, top = int(x) - reach, int(y) - reach
    part = image[top : top + 2 * reach + 1, left : left + 2 * reach + 1, 0].double()
    ys, xs = torch.arange(part.shape[0]) + top + 0.5, torch.arange(part.shape[1]) + left + 0.5
    return float((part.sum(0) * xs).sum() / part.sum()), float((part.sum(1) * ys).sum() / part.sum())


def grid_points():
    """Returns twelve points in front of the camera that project into the image."""
    x, y = torch.meshgrid(torch.linspace(-0.36, 0.38, 4), torch.linspace(-0.26, 0.24, 3), indexing="xy")
    depths = torch.linspace(2, 5, 12).double()
    return torch.stack([x.flatten(), y.flatten(), torch.ones(12)], -1).double() * depths[:, None]


def two_views(image):
    return [
        View(image, Camera(torch.eye(4), torch.eye(3), image.shape[1], image.shape[0], name=f"{i}.png"))
        for i in range(2)
    ]


def assert_dots_at_sparse(view, count):
    assert len(view.sparse) == count
    for x, y, _ in view.sparse.tolist():
        assert centroid(view.image, x, y) == pytest.approx((x, y), abs=0.2)


def fisheye_points(spread=1.0):
    """Returns twelve points at up to 32 degrees times `spread` from the axis of a camera, one of them almost on it."""
    angles = spread * torch.tensor([1e-9, *torch.linspace(0.18, 0.55, 11)]).double()
    around = 2.4 * torch.arange(12).double()
    directions = torch.stack([angles.sin() * around.cos(), angles.sin() * around.sin(), angles.cos()], -1)
    return directions * torch.linspace(2, 5, 12).double()[:, None]
