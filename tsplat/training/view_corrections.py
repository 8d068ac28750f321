"""Learned corrections of training views: small changes of poses and lenses, and of colors (exposure, gains)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from ..precision import differentiable, product
from ..runtime.process_group import RankGroup
from ..scene.cameras import Camera
from ..scene.capture.views import View
from .exposure_gains import gains_of_held_out

GAIN_RATE = 0.5
"""Maximum weight of the newest estimate in the moving average of a view's gains."""

GAIN_SPREAD = 0.07
"""Spread of the logarithms of gains below which gains are attenuated; see :class:`ViewGains`."""

GAIN_MAX = 4.0
"""Estimates of gains are limited to this and its inverse."""


def apply_motion(viewmat: Tensor, motion: Tensor) -> Tensor:
    """Applies a small rotation and translation to a world-to-camera matrix [4, 4], in the frame of the camera.

    `motion` [6] is a rotation vector in radians, then a translation in world units. Differentiable, also at zero, which
    is the identity.
    """
    rotation, translation = motion[:3], motion[3:]
    x, y, z = rotation.unbind()
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).view(3, 3)
    top = torch.cat([differentiable(torch.linalg.matrix_exp, cross), translation[:, None]], 1)
    bottom = top.new_tensor([[0.0, 0.0, 0.0, 1.0]])
    return product(torch.cat([top, bottom]), viewmat.to(motion))


def move_poses(camera: Camera, motions: Tensor) -> Camera:
    """Applies a motion of :func:`apply_motion` to each pose of a camera: [1, 6], or [2, 6] for a rolling shutter."""
    end = camera.viewmat_end
    if end is not None:
        end = apply_motion(end, motions[1])
    return dataclasses.replace(camera, viewmat=apply_motion(camera.viewmat, motions[0]), viewmat_end=end)


def identity_motions(n_views: int, like: Tensor, *, rolls: bool = False) -> Tensor:
    """Returns motions that leave the poses of n views unchanged, with the dtype and device of `like`.

    [n, 6], or [n, 12] if any view has a rolling shutter.
    """
    return like.new_zeros(n_views, 12 if rolls else 6)


class Lenses:
    """The distinct lenses of the training views: cameras of equal model, size, intrinsics and distortion share one."""

    def __init__(self, cameras: Sequence[Camera]) -> None:
        self._indices = {key: i for i, key in enumerate(dict.fromkeys(map(self._key, cameras)))}

    def __len__(self) -> int:
        return len(self._indices)

    def apply(self, camera: Camera, changes: Tensor) -> Camera:
        """Adds the learned change of a camera's lens, a row of `changes` [n, 4], to its distortion.

        A camera whose lens is not among the training views' is returned unchanged.
        """
        index = self._indices.get(self._key(camera))
        if index is None:
            return camera
        change = changes[index]
        if camera.distortion is not None:
            # Coefficients k3 to k6 of a rational model are not learned.
            n_fixed = len(camera.distortion) - len(change)
            change = camera.distortion.to(change) + torch.nn.functional.pad(change, (0, n_fixed))
        return dataclasses.replace(camera, distortion=change)

    def apply_to_views(self, views: Sequence[View], changes: Tensor) -> list[View]:
        """Returns views with the learned changes of their lenses."""
        return [view.replaced(camera=self.apply(view.camera, changes.detach())) for view in views]

    @staticmethod
    def _key(camera: Camera) -> tuple[object, ...]:
        distortion = () if camera.distortion is None else tuple(camera.distortion.tolist())
        return camera.model, camera.width, camera.height, *camera.K.flatten().tolist(), *distortion


def apply_exposure(image: Tensor, exposure: Tensor) -> Tensor:
    """Maps the colors of an image [H, W, 3] by a matrix [3, 4], whose last column is an offset. [H, W, 3]"""
    # Written out, because autocast would compute a matrix product in half precision.
    return (image[..., None, :] * exposure[:, :3]).sum(-1) + exposure[:, 3]


def identity_exposures(n_views: int, like: Tensor) -> Tensor:
    """Returns exposures that leave the colors of n views unchanged, with the dtype and device of `like`. [n, 3, 4]"""
    return torch.eye(3, 4, dtype=like.dtype, device=like.device).repeat(n_views, 1, 1)


class ViewGains:
    """The gain of each color channel of each training view, for photographs with varying exposure and white balance.

    Gains that are known before training are fixed. Otherwise, whenever a view is rendered, the gains that fit its
    photograph best, by least squares, enter a moving average. The geometric mean of the gains of all views is 1,
    because held-out views are rendered without a gain. Before gains are applied, their logarithms are multiplied by
    s^4 / (s^4 + GAIN_SPREAD^4), where s is their root mean square. `like` has the dtype and device. If views_per_step
    exceeds n_views, estimates of a view add up within a step, so each has less weight.

    Attributes:
        logs: [n_views, 3] logarithms of the gains, updated in place.
        known: Whether gains were known before training and are fixed.
    """

    def __init__(self, n_views: int, like: Tensor, views_per_step: int = 1) -> None:
        self._rate = min(GAIN_RATE, n_views / views_per_step)
        self.known = False
        self.logs = like.new_zeros(n_views, 3)
        self._changes = torch.zeros_like(self.logs)

    def set_known(self, logs: Tensor) -> None:
        """Sets the logarithms [n_views, 3] of gains that are known before training."""
        self.logs.copy_(logs)
        self.known = True

    def apply(self, index: int | Tensor, image: Tensor) -> Tensor:
        """Multiplies the rendered image [H, W, 3] of a view by its gains. The index may be a tensor [1] int64."""
        return image * self.applied(self.logs[index])

    def applied(self, logs: Tensor) -> Tensor:
        """Returns the gains to apply, given their logarithms [..., 3]."""
        squared = self.logs.square().mean() ** 2
        return (squared / (squared + GAIN_SPREAD**4) * logs).exp()

    def of_held_out(self, train: Sequence[View], held_out: Sequence[View]) -> Tensor | None:
        """Returns the gains of held-out views, [V, 3], from sparse points; None unless `known`."""
        logs = gains_of_held_out(train, held_out) if self.known and held_out else None
        return None if logs is None else self.applied(logs.to(self.logs))

    @torch.no_grad()
    def estimate(self, index: int | Tensor, image: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the change of the logarithms of a view's gains, [3].

        `image` is the rendering without gains, and `target` the photograph, [H, W, 3] each. The index may be a tensor
        [1] int64. With a mask [H, W] bool, only the pixels that it selects are used.
        """
        if mask is not None:
            image, target = image[mask], target[mask]
        image, target = image.reshape(-1, 3).to(self.logs), target.reshape(-1, 3).to(self.logs)
        gains = ((image * target).sum(0) / image.square().sum(0)).nan_to_num(1.0).clamp(1 / GAIN_MAX, GAIN_MAX)
        return self._rate * (gains.log() - self.logs[index].view(3))

    def add_change(self, index: int, change: Tensor) -> None:
        """Adds a change that :meth:`estimate` has returned, for the next update."""
        self._changes[index].add_(change)

    def discard(self) -> None:
        """Drops the changes since the last update."""
        self._changes.zero_()

    def update(self, ranks: RankGroup | None = None) -> None:
        """Applies the changes since the last update, of all ranks if there are several. A collective call."""
        if self.known:
            return
        self.logs += self._changes if ranks is None else ranks.all_reduce(self._changes)
        self.logs -= self.logs.mean(0)
        self.discard()
