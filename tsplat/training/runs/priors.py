"""Priors of a run: maps of depth and normals that other programs made of its photographs."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, FileError, MissingExtraError
from ...scene.capture.views import Capture, View
from ...support.extras import require
from ..configuration import RunConfig

KINDS = {"depth_prior": 1, "normal_prior": 3}
"""Option and field of a view -> number of channels."""


def read_priors(capture: Capture, config: RunConfig) -> Capture:
    """Returns the capture with the priors of its training views.

    The prior of a view has its name with the ending ``.npy`` or ``.png``, and is resized to the view. Normals are made
    unit vectors. A note tells how many views have none. Raises ArgumentError for a weight of 0, and FileError if no
    view has a prior, or a file is damaged or of another shape.
    """
    for name, weight in (("depth_prior", "depth_weight"), ("normal_prior", "normal_weight")):
        folder = getattr(config, name)
        if not folder:
            continue
        if not getattr(config, weight):
            raise ArgumentError(f"{name}: has no effect, as {weight} is 0; set {weight}, for example to 0.05")
        paths = ([Path(folder, view.name).with_suffix(suffix) for suffix in (".npy", ".png")] for view in capture.train)
        found = [next(filter(Path.is_file, files), None) for files in paths]
        n_missing = found.count(None)
        if n_missing == len(found):
            raise FileError(f"{folder}: has no file for any training view, such as {capture.train[0].name!r} with .npy")
        notes = [f"{n_missing} of {len(found)} training views have no {name}"] if n_missing else []
        views = [view if path is None else _with_prior(view, name, path) for view, path in zip(capture.train, found)]
        capture = dataclasses.replace(capture, train=tuple(views), notes=(*capture.notes, *notes))
    return capture


def _with_prior(view: View, name: str, path: Path) -> View:
    values = _read(path, KINDS[name])
    height, width = values.shape[-2:]
    if abs(width * view.height / (height * view.width) - 1) * min(view.width, view.height) > 2:
        raise FileError(
            f"{path}: expected the aspect ratio of the image, {view.width}×{view.height}, found {width}×{height}; make "
            "priors of the images that are trained on, undistorted ones unless --camera is native"
        )
    size = (view.height, view.width)
    values = torch.nn.functional.interpolate(values[None], size, mode="bilinear", antialias=True)[0]
    if name == "depth_prior":
        prior = values[0]
    else:
        prior = torch.nn.functional.normalize(values.movedim(0, -1), dim=-1).nan_to_num(0.0)
    prior = prior.to(view.camera.viewmat.device)
    return view.replaced(**{name: prior}, files=(*view.files, path))


def _read(path: Path, n_channels: int) -> Tensor:
    """Reads a map, [channels, H, W] fp32. Values of PNGs are from 0 to 1, or, of three channels, from -1 to 1."""
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        else:
            require("PIL")
            from PIL import Image

            with Image.open(path) as image:
                array = np.array(image)
            largest = np.iinfo(array.dtype).max if array.dtype != np.int32 else 65535  # Pillow's 16 bits
            array = array / largest if n_channels == 1 else 2 * (array / largest) - 1
    except MissingExtraError:
        raise
    except (OSError, EOFError, ValueError, TypeError, SyntaxError) as error:
        raise FileError(f"{path}: cannot be read as a map ({str(error)[:200]})") from error
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[-1] != n_channels or array.dtype.kind not in "fiu" or not array.size:
        expected = "[H, W]" if n_channels == 1 else "[H, W, 3]"
        raise FileError(f"{path}: expected numbers {expected}, found {array.dtype} {list(array.shape)}")
    return torch.from_numpy(np.moveaxis(array, -1, 0).astype(np.float32))
