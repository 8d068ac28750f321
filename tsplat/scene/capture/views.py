"""Views and captures: images with their cameras, and initial points for training."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import ArgumentError, MissingExtraError, ShapeError
from ..cameras import Camera
from ..images import downscale, encode_png
from ..option_types import Color
from ..rotation import similarity
from .image_cache import CachedPixels
from .local_frame import LocalFrame

SHEET, SHEET_HEIGHT = 8, 90
"""Maximum number of photographs that notebooks show for a capture, and their height in pixels."""


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """An image and its camera.

    Attributes:
        image: [H, W, 3] uint8 RGB.
        camera: Camera with the size of ``image`` and the name of the view; its model is ``"pinhole"``, ``"fisheye"`` or
            ``"equirectangular"``.
        mask: [H, W] bool, True for pixels to train on and evaluate; None for all.
        sparse: [P, 3] sparse points observed in the image: x and y in pixels, and depth z in the camera frame, or the
            distance for a panorama.
        sparse_ids: [P] int64 ids of these points; a point has the same id in all views. None if they are unknown.
        camera_id: Index of the physical camera. Images of one camera share lens and exposure.
        files: Files that the view was read from: the image and, if there are any, the mask and priors.
        depth_prior: [H, W] inverse depth of each pixel: up to scale and shift, up to scale, or in 1 / world units,
            according to `depth_kind` of :class:`tsplat.training.Config`; NaN where it is unknown.
        depth_confidence: [H, W] weights of `depth_prior`, from 0 to 1; None for weights of 1.
        normal_prior: [H, W, 3] unit normals in the camera frame, towards the camera; 0 where they are unknown.

    Raises:
        ArgumentError: A shape or dtype does not match, a value is not finite, or a focal length is not positive.
    """

    image: Tensor
    camera: Camera
    mask: Tensor | None = None
    sparse: Tensor | None = None
    camera_id: int = 0
    files: tuple[Path, ...] = ()
    depth_prior: Tensor | None = None
    normal_prior: Tensor | None = None
    depth_confidence: Tensor | None = None
    sparse_ids: Tensor | None = None

    def __post_init__(self) -> None:
        if self.image.dtype != torch.uint8 or self.image.dim() != 3 or self.image.shape[-1] != 3:
            found = f"{self.image.dtype} {list(self.image.shape)}"
            raise ShapeError(f"image: expected torch.uint8 [H, W, 3], found {found} in view {self.name!r}")
        if (self.height, self.width) != self.image.shape[:2]:
            found = f"{list(self.image.shape[:2])} in view {self.name!r}"
            raise ShapeError(f"image: expected [{self.height}, {self.width}], the size of its camera, found {found}")
        if self.mask is not None and (self.mask.dtype != torch.bool or self.mask.shape != self.image.shape[:2]):
            found = f"{self.mask.dtype} {list(self.mask.shape)}"
            raise ShapeError(
                f"mask: expected torch.bool {list(self.image.shape[:2])} as image, found {found} in view {self.name!r}"
            )
        self._check_camera()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.camera.description})"

    def masked(self, image: Tensor) -> Tensor:
        """Replaces the pixels of a rendered image [H, W, 3] at which the mask is False by pixels of the photograph."""
        return image if self.mask is None else torch.where(self.mask[..., None], image, self.pixels)

    def _repr_png_(self) -> bytes:
        return encode_png(self.image)

    def _check_camera(self) -> None:
        """Checks everything but the image and the mask."""
        coefficients = [[4], [8]] if self.camera.model == "pinhole" else [[4]]
        for name, shapes in (("viewmat", [[4, 4]]), ("K", [[3, 3]]), ("distortion", coefficients)):
            tensor = getattr(self.camera, name)
            if tensor is None:
                continue
            if list(tensor.shape) not in shapes:
                expected = " or ".join(map(str, shapes))
                raise ShapeError(f"{name}: expected {expected}, found {list(tensor.shape)} in view {self.name!r}")
            if not tensor.isfinite().all():
                raise ArgumentError(
                    f"{name}: expected finite values, found NaN or infinity in view {self.name!r}; check its camera"
                )
        focal_lengths = self.camera.K.diagonal()[:2].tolist()
        if not min(focal_lengths) > 0:
            raise ArgumentError(f"K: expected positive focal lengths, found {focal_lengths} in view {self.name!r}")
        if self.sparse is not None and (self.sparse.dim() != 2 or self.sparse.shape[1] != 3):
            raise ShapeError(f"sparse: expected [P, 3], found {list(self.sparse.shape)} in view {self.name!r}")
        if self.sparse_ids is not None and (self.sparse is None or self.sparse_ids.shape != self.sparse.shape[:1]):
            shape = list(self.sparse_ids.shape)
            raise ShapeError(f"sparse_ids: expected an id of each point of sparse, found {shape} in view {self.name!r}")
        size = [self.height, self.width]
        for name, shape in (("depth_prior", size), ("depth_confidence", size), ("normal_prior", [*size, 3])):
            tensor = getattr(self, name)
            if tensor is not None and list(tensor.shape) != shape:
                raise ShapeError(f"{name}: expected {shape}, found {list(tensor.shape)} in view {self.name!r}")
        if self.camera.model not in ("pinhole", "fisheye", "equirectangular"):
            found = f"{self.camera.model!r} in view {self.name!r}"
            raise ArgumentError(f"camera: expected the model 'pinhole', 'fisheye' or 'equirectangular', found {found}")
        if self.camera_id < 0:
            raise ArgumentError(f"camera_id: expected a nonnegative int, found {self.camera_id} in view {self.name!r}")

    @property
    def name(self) -> str:
        return self.camera.name

    @property
    def width(self) -> int:
        return self.camera.width

    @property
    def height(self) -> int:
        return self.camera.height

    @property
    def pixels(self) -> Tensor:
        """The image as [H, W, 3] fp32 in [0, 1]."""
        return self.image.float() / 255

    def replaced(self, **changes: Any) -> "View":
        """Returns a copy with changed attributes."""
        return dataclasses.replace(self, **changes)

    def to(self, device: torch.device | str) -> "View":
        """Returns a copy on another device."""
        kinds = Tensor | Camera | CachedPixels
        return self.replaced(
            **{name: value.to(device) for name, value in vars(self).items() if isinstance(value, kinds)}
        )


class StoredView(View):
    """A view whose image and mask are read on demand and kept in a bounded cache.

    Args:
        source: Reads the image and the mask through the cache.
        camera, sparse, camera_id, files, depth_prior, normal_prior, depth_confidence, sparse_ids: As for :class:`View`.

    Raises:
        ArgumentError: As :class:`View`.
    """

    source: CachedPixels

    def __init__(self, source: CachedPixels, camera: Camera, **values: Any) -> None:
        names = ("sparse", "depth_prior", "normal_prior", "depth_confidence", "sparse_ids")
        defaults = dict(camera_id=0, files=(), **dict.fromkeys(names))
        vars(self).update(defaults | values, source=source, camera=camera)
        self._check_camera()

    @property
    def image(self) -> Tensor:
        return self.source.get()[0]

    @property
    def mask(self) -> Tensor | None:
        return self.source.get()[1]

    def replaced(self, **changes: Any) -> "StoredView":
        return StoredView(**vars(self) | changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Capture:
    """Training views, test views and initial points of a scene.

    Attributes:
        train: Training views.
        test: Held-out views.
        points: [P, 3] initial points, world frame.
        colors: [P, 3] colors of the points, RGB in [0, 1].
        background: Background color, RGB in [0, 1].
        world: [4, 4] fp64 on the CPU, similarity transform from the frame of the files to the frame of the capture. Its
            inverse maps a trained model back to the frame of the files.
        frame: Relation between the frame of the capture and the frame of a run's model; they are equal unless
            :func:`tsplat.scene.read_capture` was called with a local frame.
        notes: Notes for the user about reading the files, such as skipped images, one sentence each.
        random_points: Whether ``points`` were drawn at random and do not lie on surfaces.
        left_out: Names of photographs that were left out because their cameras are outliers that do not show the scene.

    Raises:
        ShapeError: ``world`` is not [4, 4].
    """

    train: tuple[View, ...]
    test: tuple[View, ...]
    points: Tensor
    colors: Tensor
    background: Color = (0.0, 0.0, 0.0)
    world: Tensor = dataclasses.field(default_factory=similarity)
    notes: tuple[str, ...] = ()
    random_points: bool = False
    frame: LocalFrame = dataclasses.field(default_factory=LocalFrame)
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.world.shape != (4, 4):
            raise ShapeError(f"world: expected [4, 4], found {list(self.world.shape)}")

    def __repr__(self) -> str:
        return f"Capture({len(self.train)} training and {len(self.test)} test views, {len(self.points):,} points)"

    def _repr_png_(self) -> bytes | None:
        """Returns a PNG of up to eight evenly spaced photographs in two rows; None without photographs or Pillow."""
        views = self.train or self.test
        shown = [views[i * len(views) // SHEET] for i in range(SHEET)] if len(views) > SHEET else views
        if not shown:
            return None
        thumbnails = [_thumbnail(view) for view in shown]
        columns = SHEET // 2
        rows = [torch.cat(thumbnails[i : i + columns], 1) for i in range(0, len(thumbnails), columns)]
        width = max(row.shape[1] for row in rows)
        sheet = torch.cat([pad(row, (0, 0, 0, width - row.shape[1]), value=255) for row in rows])
        try:
            return encode_png(sheet)
        except MissingExtraError:
            return None

    def to(self, device: torch.device | str) -> "Capture":
        """Returns a copy on another device; ``world`` stays on the CPU."""
        return dataclasses.replace(
            self,
            train=tuple(view.to(device) for view in self.train),
            test=tuple(view.to(device) for view in self.test),
            points=self.points.to(device),
            colors=self.colors.to(device),
        )


def _thumbnail(view: View) -> Tensor:
    """Returns a photograph scaled to :data:`SHEET_HEIGHT`, with a white margin to its right and below it, [H, W, 3]
    uint8 on the CPU."""
    width = max(1, round(view.width * SHEET_HEIGHT / view.height))
    image = view.image.cpu()
    if view.height > SHEET_HEIGHT:
        image = downscale(image, width, SHEET_HEIGHT)
    return pad(image, (0, 0, 0, 4, 0, SHEET_HEIGHT + 4 - image.shape[0]), value=255)
