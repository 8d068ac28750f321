"""Plots the cameras and sparse points of a COLMAP model, from above and from the side."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...support.files import atomic_write
from ..rotation import rotation_matrix, similarity
from .colmap import PANORAMA, PINHOLE_MODELS
from .colmap_model import ColmapCamera, ColmapImage, ColmapModel

Array = npt.NDArray[np.float64]

POINTS_MAX = 20_000
FRUSTUM_DEPTH = 0.06
"""Depth of the drawn cameras as a fraction of the extent of the camera centers and most points."""


def draw_cameras(path: Path, model: ColmapModel, n_photographs: int) -> None:
    """Writes a PNG of the cameras and points of a model.

    Up is the mean up direction of the photographs; cameras are spread most along the axis to the right. Camera colors
    follow the order of names, from dark to light. Up to a hundredth of the points may lie beyond each border of the
    plot.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    images = sorted(model.images, key=lambda image: image.name)
    step = 1 + len(model.points) // POINTS_MAX
    points, colors = model.points[::step], model.colors[::step] / 255
    poses = np.array([_pose(image) for image in images])
    axes = view_axes(poses)
    centers, points = poses[:, :, 3] @ axes.T, points @ axes.T
    limits = np.quantile(points, (0.01, 0.99), axis=0) if len(points) else np.zeros((2, 3))
    shown = np.concatenate([centers, np.clip(points, *limits)])
    low, high = shown.min(0), shown.max(0)
    extent = float((high - low).max())
    size = FRUSTUM_DEPTH * extent
    reach = 0.52 * extent + size
    ends = np.array([-reach, reach])[:, None] + (low + high) / 2  # both plots are squares of the same scale
    corners = np.array([_corners(model.cameras[image.camera_id]) for image in images])  # [C, 4, 3] camera frame
    corners = (corners @ poses[:, :, :3].transpose(0, 2, 1)) @ axes.T * size + centers[:, None]

    figure = Figure(figsize=(12, 6.4), layout="constrained")
    for plot, (x, y), title in zip(
        figure.subplots(1, 2), ((0, 1), (0, 2)), ("from above", "from the side"), strict=True
    ):
        plot.scatter(points[:, x], points[:, y], s=2, c=colors, linewidths=0, rasterized=True)
        rim = np.stack([corners, np.roll(corners, 1, axis=1)], 2)
        edges = np.stack([np.broadcast_to(centers[:, None], corners.shape), corners], 2)
        lines = np.concatenate([edges, rim], 1)[..., [x, y]].reshape(-1, 2, 2)
        order = np.repeat(np.linspace(0, 1, len(images)), 8)
        plot.add_collection(LineCollection(list(lines), array=order, cmap="viridis", linewidths=0.9))
        plot.set(xlim=ends[:, x], ylim=ends[:, y], aspect="equal", title=title, xticks=[], yticks=[])
    figure.suptitle(f"{len(images)} of {n_photographs:,} photographs registered, {len(model.points):,} points")
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=100)


def view_axes(poses: Array) -> Array:
    """Returns the axes of the plot in the world frame, [3, 3]: right, depth as seen from above, and up, as rows.

    `poses` [C, 3, 4] are camera to world; cameras look along z, and their y axis points down.
    """
    up = -poses[:, :, 1].mean(0)
    norm = np.linalg.norm(up)
    # Photographs in opposite orientations have no mean up direction.
    up = up / norm if norm > 1e-3 else np.array([0.0, -1.0, 0.0])
    level = poses[:, :, 3] - poses[:, :, 3].mean(0)
    level = level - np.outer(level @ up, up)
    right = np.linalg.svd(level)[2][0]
    right = right - (right @ up) * up
    if np.linalg.norm(right) < 1e-6:  # all cameras are on one vertical line
        right = np.linalg.svd(up[None])[2][1]
    right = right / np.linalg.norm(right)
    axes: Array = np.stack([right, np.cross(up, right), up])
    return axes


def _pose(image: ColmapImage) -> Array:
    """Returns the camera-to-world matrix of an image, [3, 4]."""
    pose: Array = similarity(rotation_matrix(image.quat), image.translation).double().inverse()[:3].numpy()
    return pose


def _corners(camera: ColmapCamera) -> Array:
    """Returns the points at depth 1 of the image corners, [4, 3] in the camera frame; distortion is ignored.

    Panoramas have no such corners and get those of a square.
    """
    if camera.model == PANORAMA:
        return np.array([[-0.5, -0.5, 1], [0.5, -0.5, 1], [0.5, 0.5, 1], [-0.5, 0.5, 1]])
    fx, fy, cx, cy = (camera.params[i] for i in PINHOLE_MODELS[camera.model][:4])
    x, y = np.array([0.0, camera.width]), np.array([0.0, camera.height])
    (left, right), (top, bottom) = (x - cx) / fx, (y - cy) / fy
    return np.array([[left, top, 1], [right, top, 1], [right, bottom, 1], [left, bottom, 1]])
