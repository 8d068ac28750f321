"""Captures in whatever form a folder has them."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import FileError
from .captures import Capture, Color
from .colmap import TEST_EVERY, read_colmap
from .normalization import normalize_capture
from .shots import OnProgress
from .transforms import has_transforms, read_transforms


def read_capture(
    folder: str | os.PathLike[str],
    *,
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    background: Color | None = None,
    normalize: bool = False,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Capture:
    """Reads a folder by what is in it: ``sparse/0/`` by :func:`read_colmap`, else by :func:`read_transforms`.

    Args:
        folder: A folder in which, where it has both, COLMAP's model comes first; or a ``transforms.json`` itself.
        downscale, test_every, background, on_progress: As for both.
        normalize: Whether to apply :func:`normalize_capture`; ``world`` of the result leads from the files' frame.
        seed: Of the points that :func:`read_transforms` draws where there are none; COLMAP's are not drawn.

    Raises:
        FileError: There is nothing of that in the folder, or as both.
        UnsupportedError, ArgumentError, MissingExtraError: As both.
    """
    folder = Path(folder)
    if (folder / "sparse" / "0").is_dir():
        capture = read_colmap(folder, downscale, test_every, background=background, on_progress=on_progress)
    elif folder.suffix == ".json" or has_transforms(folder):
        capture = read_transforms(folder, downscale, test_every, background, seed=seed, on_progress=on_progress)
    elif not folder.exists():
        raise FileError(f"{folder}: no such folder")
    else:
        raise FileError(
            f"{folder}: no cameras found; looked for sparse/0/ beside images/ (COLMAP), transforms_train.json and "
            "transforms.json; from photographs alone, make them with: tsplat prepare PHOTOS --out SCENE"
        )
    return normalize_capture(capture)[0] if normalize else capture
