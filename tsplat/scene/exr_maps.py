"""Reading OpenEXR images as maps of numbers, by the package OpenEXR (extra ``exr``)."""

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
"""Number of channels -> the last parts of their names, in the order in which they are looked for."""

BYTES = 16
"""Bytes of memory for a pixel of a channel: what is decoded, and copies of it."""


def read_exr(path: Path, n_channels: int) -> NDArray[np.float32]:
    """Returns a map [H, W, channels] of an OpenEXR file of floats, halves or integers.

    A map of one channel is the channel ``Z``, else ``depth``, ``Y``, ``V``, ``R`` or the only one; one of three, ``X``,
    ``Y`` and ``Z``, or ``R``, ``G`` and ``B``. Names may have layers before them, as in ``ViewLayer.Depth.Z``. Only
    the first part of a file is read.

    Raises:
        FileError: The file is damaged, cropped, or has no or several such channels.
        MissingExtraError: OpenEXR is not installed.
        OSError: The file cannot be read.
    """
    require("OpenEXR")
    import OpenEXR

    openexr: Any = OpenEXR  # not typed
    open_file(path).close()  # refuses pipes, and names what cannot be read
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
    """Returns the names of the channels of a map; None if there are none, or several layers have them."""
    for wanted in CHANNELS[n_channels]:
        matches = [[name for name in names if name.rpartition(".")[2].lower() == last.lower()] for last in wanted]
        if all(len(candidates) == 1 for candidates in matches):
            return [candidates[0] for candidates in matches]
        if all(matches):
            return None
    return names if len(names) == n_channels == 1 else None
