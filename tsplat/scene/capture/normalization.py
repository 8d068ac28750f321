"""Captures in a frame of their own: upright, around the origin, of size one."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...errors import ArgumentError
from ..cameras import UP, centers
from .captures import Capture, View

EVEN = 1e-6
"""Below this share of a unit the cameras' upward directions cancel each other out."""


def normalize_capture(capture: Capture) -> tuple[Capture, Tensor]:
    """Moves the cameras' mean to the origin, turns the mean of what is up in their pictures to -y, scales to size one.

    Every camera is then at most 1 away from the origin, the farthest exactly so. Pictures, K and where points fall in
    pictures stay; depths are scaled. Where the cameras have no common upward direction nothing is turned.

    Returns:
        The new capture, whose ``world`` includes the change; and the change itself [4, 4] fp64, from the frame before
        to the one after.

    Raises:
        ArgumentError: All cameras are in one place.
    """
    views = (*capture.train, *capture.test)
    viewmats = torch.stack([view.viewmat for view in views]).double().cpu()
    rotations = viewmats[:, :3, :3]
    places = centers(viewmats)
    middle = places.mean(0)
    farthest = float((places - middle).norm(dim=-1).max())
    if not farthest > 1e-9 * max(1.0, float(middle.norm())):
        raise ArgumentError(f"capture: all {len(views)} cameras are in one place, so it has no size to normalize")
    scale = 1 / farthest
    # The second row of a rotation is the picture's downward direction.
    rotation = _turn(-rotations[:, 1].mean(0), torch.tensor(UP, dtype=torch.float64))
    change = torch.eye(4, dtype=torch.float64)
    change[:3, :3] = scale * rotation
    change[:3, 3] = -scale * rotation @ middle

    def moved(view: View) -> View:
        old = view.viewmat.double().cpu()
        new = torch.eye(4, dtype=torch.float64)
        new[:3, :3] = old[:3, :3] @ rotation.T
        new[:3, 3] = scale * (old[:3, :3] @ middle + old[:3, 3])
        sparse = view.sparse
        if sparse is not None:
            sparse = sparse * sparse.new_tensor([1.0, 1.0, scale])
        return dataclasses.replace(view, viewmat=new.to(view.viewmat), sparse=sparse)

    points = capture.points.double().cpu() @ change[:3, :3].T + change[:3, 3]
    result = dataclasses.replace(
        capture,
        train=tuple(moved(view) for view in capture.train),
        test=tuple(moved(view) for view in capture.test),
        points=points.to(capture.points),
        world=change @ capture.world,
    )
    return result, change


def _turn(start: Tensor, end: Tensor) -> Tensor:
    """The rotation [3, 3] by the shortest way from one direction to another [3] (Rodrigues)."""
    if start.norm() < EVEN:
        return torch.eye(3, dtype=torch.float64)
    a, b = normalize(start, dim=0), normalize(end, dim=0)
    if float(a @ b) < -1 + 1e-12:
        # Half a turn about any axis across.
        axis = normalize(torch.linalg.cross(a, torch.eye(3, dtype=torch.float64)[a.abs().argmin()]), dim=0)
        return 2 * torch.outer(axis, axis) - torch.eye(3, dtype=torch.float64)
    x, y, z = torch.linalg.cross(a, b).tolist()
    skew = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    return torch.eye(3, dtype=torch.float64) + skew + skew @ skew / (1 + a @ b)
