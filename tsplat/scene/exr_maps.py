"""Reads maps, such as depth and normals, from OpenEXR images with the package OpenEXR (extra ``exr``)."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FileError
from ..support.extras import require
from ..support.reading import check_memory, open_file

CHANNELS: dict[int, tuple[tuple[str, ...], ...]] = {
    1: (("Z",), ("depth",), ("Y",), ("V",), ("R",)),
    3: (("X", "Y", "Z"), ("R", "G", "B")),
}
"""Number of channels -> channel names without layers, in order of preference."""

BYTES = 16
"""Memory per pixel and channel, in bytes: the decoded value and its copies."""


def read_exr(path: Path, n_channels: int) -> NDArray[np.float32]:
    """Reads a map [H, W, channels] from an OpenEXR file of floats, halves or integers.

    With one channel, it reads ``Z``, ``depth``, ``Y``, ``V``, ``R`` or the only channel, whichever exists first; with
    three channels, ``X``, ``Y``, ``Z`` or ``R``, ``G``, ``B``. Layers may precede the names, as in
    ``ViewLayer.Depth.Z``. Only the first part of a multi-part file is read.

    Raises:
        FileError: The file is damaged or cropped, or the channels are missing or ambiguous.
        MissingExtraError: OpenEXR is not installed.
        OSError: The file cannot be read.
    """
    require("OpenEXR")
    import OpenEXR

    openexr: Any = OpenEXR  # not typed
    open_file(path).close()  # rejects pipes, and names unreadable files
    try:
        with openexr.File(str(path), header_only=True) as file:
            header = file.header()
            names = [channel.name for channel in header["channels"]]
            window, whole = ([corner.tolist() for corner in header[name]] for name in ("dataWindow", "displayWindow"))
        if window != whole:
            raise ValueError(f"expected values of the whole image {whole}, found those of {window}; save it uncropped")
        (left, top), (right, bottom) = window
        chosen = choose_channels(names, n_channels)
        if chosen is None:
            raise ValueError(f"expected {n_channels} channels of a map, found {', '.join(names)[:120] or 'none'}")
        size = math.prod((right - left + 1, bottom - top + 1, len(names)))
        check_memory(f"{path}: {size:,} values", BYTES * size, "make it smaller, or the file is damaged")
        with openexr.File(str(path), separate_channels=True) as file:
            channels = file.channels()
            arrays = [np.asarray(channels[name].pixels).astype(np.float32) for name in chosen]
        return np.stack(arrays, -1)
    except FileError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        raise FileError(f"{path}: cannot be read as a map ({str(error)[:200]})") from error


def choose_channels(names: list[str], n_channels: int) -> list[str] | None:
    """Returns the channel names of a map; None if no layer or several layers have them."""
    for wanted in CHANNELS[n_channels]:
        matches = [[name for name in names if name.rpartition(".")[2].lower() == last.lower()] for last in wanted]
        if all(len(candidates) == 1 for candidates in matches):
            return [candidates[0] for candidates in matches]
        if all(matches):
            return None
    return names if len(names) == n_channels == 1 else None
