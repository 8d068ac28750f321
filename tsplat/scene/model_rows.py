"""Models as rows that are read range by range, so that they need not fit into memory.

A row is a Gaussian. :class:`MemoryRows` reads :class:`Gaussians`, :class:`~tsplat.scene.formats.ply.PlyRows` a PLY, and
:class:`StoredRows` temporary files, one per parameter. The temporary files have no names, so that they disappear
however the process ends. Results do not depend on :data:`CHUNK`.
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import FileError
from .gaussians import PARAMETERS, Gaussians, concatenate
from .morton import morton_codes

CHUNK = 1 << 17
"""Number of rows that are read at a time."""

SORTED_ROWS = 1 << 18
"""Number of rows that are sorted at a time."""

MeanRounding = Callable[[NDArray[np.float32]], NDArray[Any]]
"""Rounds means [N, 3] as a format stores them; the function is monotonic along each axis. Files are sorted by rounded
means, so that reading and writing a file again keeps its order."""


@dataclasses.dataclass(frozen=True)
class ModelProperties:
    """Properties of a whole model, named like the attributes of :class:`Gaussians`."""

    sh_degree: int
    antialiased: bool = False
    surfels: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter -> its shape per Gaussian."""
        n_coeffs = (self.sh_degree + 1) ** 2 - 1
        return dict(zip(PARAMETERS, [(3,), (3,), (4,), (), (1, 3), (n_coeffs, 3)], strict=True))


class PassProgress:
    """Reports the progress of passes over rows: calls `show` with "pass 3", the number of finished rows, and the
    total."""

    def __init__(self, show: Callable[[str, int, int], object]) -> None:
        self._show = show
        self._count = 0

    def track(self, ranges: Iterable[tuple[int, int]], total: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges of a new pass."""
        self._count += 1
        label = f"pass {self._count}"
        for start, stop in ranges:
            yield start, stop
            self._show(label, stop, total)


class Rows:
    """A model whose Gaussians are read by ranges, in float32 on the CPU; a context manager that closes its files.

    Attributes:
        count: Number of rows.
        properties: Properties of the whole model.
        passes: Reports the progress of passes over these rows and rows derived from them; None for no reports.
    """

    def __init__(self, count: int, properties: ModelProperties, passes: PassProgress | None = None) -> None:
        self.count = count
        self.properties = properties
        self.passes = passes

    def __len__(self) -> int:
        return self.count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        """Returns the named parameters of a range of rows."""
        raise NotImplementedError

    def read(self, start: int, stop: int) -> Gaussians:
        """Returns the Gaussians of a range of rows."""
        tensors: dict[str, Any] = self.columns(PARAMETERS, start, stop)
        return Gaussians(**tensors, antialiased=self.properties.antialiased, surfels=self.properties.surfels)

    def ranges(self, size: int | None = None) -> Iterator[tuple[int, int]]:
        """Yields (start, stop) of consecutive ranges of `size` or :data:`CHUNK` rows."""
        size = size or CHUNK
        ranges = ((start, min(start + size, len(self))) for start in range(0, len(self), size))
        yield from ranges if self.passes is None else self.passes.track(ranges, len(self))

    def chunks(self) -> Iterator[Gaussians]:
        """Yields all Gaussians, range by range."""
        return (self.read(start, stop) for start, stop in self.ranges())

    def map(self, function: Callable[[Gaussians], Gaussians]) -> "Rows":
        """Returns the rows with a function applied to each range; it must not change their number or the properties."""
        return _MappedRows(self, function)

    def sample(self, n: int) -> Gaussians:
        """Returns every k-th row, with the smallest k that gives at most `n` rows; k does not depend on
        :data:`CHUNK`."""
        step = max(1, -(-self.count // n))
        if step == 1:
            return self.read(0, self.count)
        parts = []
        for start, stop in self.ranges():
            parts.append(self.read(start, stop).select(slice(-start % step, None, step)).map(torch.clone))
        return concatenate(parts)

    def ordered(self, order: NDArray[np.int64], folder: str | os.PathLike[str]) -> "Rows":
        """Returns the rows with the distinct ids `order` [M] in this order, in temporary files in a folder.

        The rows are read once sequentially, and written to the part of the files where they belong. Then each part is
        sorted. This takes 8 bytes of memory per row.
        """
        ranks: NDArray[Any] = np.full(self.count, -1, np.int64 if self.count >= 1 << 31 else np.int32)
        ranks[order] = np.arange(len(order), dtype=ranks.dtype)
        stored = StoredRows(self.properties, folder, len(order), self.passes)
        try:
            ends = np.arange(0, len(order), SORTED_ROWS)
            for start, stop in self.ranges():
                rows = np.flatnonzero(ranks[start:stop] >= 0)
                parts = ranks[start:stop][rows] // SORTED_ROWS
                by_part = np.argsort(parts, kind="stable")
                numbers, firsts = np.unique(parts[by_part], return_index=True)
                bounds = [*firsts.tolist(), len(rows)]
                ids = torch.from_numpy(rows[by_part])
                values = {name: tensor[ids] for name, tensor in self.columns(PARAMETERS, start, stop).items()}
                for part, first, last in zip(numbers.tolist(), bounds, bounds[1:]):
                    stored.write(int(ends[part]), {name: tensor[first:last] for name, tensor in values.items()})
                    ends[part] += last - first
            for first in range(0, len(order), SORTED_ROWS):
                ids = torch.from_numpy(np.ascontiguousarray(order[first : first + SORTED_ROWS]))
                within = torch.searchsorted(ids.sort().values, ids)
                values = stored.columns(PARAMETERS, first, first + len(ids))
                stored.write(first, {name: tensor[within] for name, tensor in values.items()})
        except BaseException:
            stored.close()
            raise
        return stored


class MemoryRows(Rows):
    """The rows of Gaussians in memory."""

    def __init__(self, gaussians: Gaussians) -> None:
        super().__init__(len(gaussians), ModelProperties(gaussians.sh_degree, gaussians.antialiased, gaussians.surfels))
        self.gaussians = gaussians.map(lambda tensor: tensor.detach())

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        return {name: getattr(self.gaussians, name)[start:stop].float().cpu() for name in names}

    def ordered(self, order: NDArray[np.int64], folder: str | os.PathLike[str]) -> Rows:
        ids = torch.from_numpy(order).to(self.gaussians.means.device)
        return MemoryRows(self.gaussians.select(ids))


class StoredRows(Rows):
    """Rows in temporary files, to which more can be appended.

    Args:
        folder: Folder of the temporary files. They use its disk, but are not visible in it.
        count: Number of rows to allocate; more can be appended.

    Raises:
        FileError: The disk has too little free space for `count` rows.
    """

    def __init__(
        self,
        properties: ModelProperties,
        folder: str | os.PathLike[str],
        count: int = 0,
        passes: PassProgress | None = None,
    ) -> None:
        super().__init__(count, properties, passes)
        self._sizes = {name: 4 * int(np.prod(shape, dtype=np.int64)) for name, shape in properties.shapes.items()}
        needed, free = count * sum(self._sizes.values()), shutil.disk_usage(folder).free
        if needed > free:
            raise FileError(
                f"{folder}: needs {needed / 1e9:.2f} GB of disk for temporary files, {free / 1e9:.2f} GB are free; "
                "write to another disk"
            )
        self._files = {name: tempfile.TemporaryFile(dir=folder, buffering=0) for name in PARAMETERS}  # noqa: SIM115

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        tensors = {}
        for name in names:
            values = np.empty((max(stop - start, 0), *self.properties.shapes[name]), np.float32)
            view = values.reshape(-1).view(np.uint8).data
            self._files[name].seek(start * self._sizes[name])
            while len(view) and (n := self._files[name].readinto(view)):
                view = view[n:]
            tensors[name] = torch.from_numpy(values)
        return tensors

    def write(self, start: int, tensors: dict[str, Tensor]) -> None:
        """Writes rows beginning at index `start`."""
        for name, tensor in tensors.items():
            view = tensor.contiguous().numpy().reshape(-1).view(np.uint8).data
            self._files[name].seek(start * self._sizes[name])
            while len(view):
                view = view[self._files[name].write(view) :]

    def append(self, gaussians: Gaussians) -> None:
        """Writes Gaussians after the last row."""
        self.write(self.count, {name: tensor.float() for name, tensor in gaussians.tensors().items()})
        self.count += len(gaussians)


class RangeOfRows(Rows):
    """A range of consecutive rows."""

    def __init__(self, rows: Rows, start: int, stop: int) -> None:
        super().__init__(stop - start, rows.properties)
        self._rows, self._start = rows, start

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        return self._rows.columns(names, self._start + start, self._start + stop)


class _MappedRows(Rows):
    def __init__(self, rows: Rows, function: Callable[[Gaussians], Gaussians]) -> None:
        super().__init__(rows.count, rows.properties, rows.passes)
        self._rows, self._function = rows, function

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        mapped = self._function(self._rows.read(start, stop))
        return {name: getattr(mapped, name) for name in names}


def as_rows(model: Gaussians | Rows) -> Rows:
    """Converts Gaussians to rows; returns rows unchanged."""
    return model if isinstance(model, Rows) else MemoryRows(model)


def gather(parts: Iterable[Gaussians], like: Rows, folder: str | os.PathLike[str]) -> Rows:
    """Collects parts of a model as rows: in memory if `like` is, otherwise in temporary files in a folder."""
    if isinstance(like, MemoryRows):
        return MemoryRows(concatenate([*parts] or [like.read(0, 0)]))
    stored: StoredRows | None = None
    try:
        for part in parts:
            if stored is None:
                stored = StoredRows(MemoryRows(part).properties, folder, 0, like.passes)
            stored.append(part)
    except BaseException:
        if stored is not None:
            stored.close()
        raise
    return StoredRows(like.properties, folder) if stored is None else stored


def codes_of(rows: Rows, round_means: MeanRounding, bounds: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns the Morton codes [N] of the rows.

    Args:
        round_means: Rounds means as the format's writer does.
        bounds: Bounds of the means, [2, 3].
    """
    codes = np.empty(rows.count, np.int64)
    ends = torch.from_numpy(round_means(bounds))
    for start, stop in rows.ranges():
        means = rows.columns(("means",), start, stop)["means"].numpy()
        codes[start:stop] = morton_codes(torch.from_numpy(round_means(means)), ends).numpy()
    return codes


def morton_sorted(
    rows: Rows, round_means: MeanRounding, bounds: NDArray[np.float32], folder: str | os.PathLike[str]
) -> Rows:
    """Returns the rows sorted by :func:`codes_of`; `folder` is for temporary files."""
    return rows.ordered(np.argsort(codes_of(rows, round_means, bounds), kind="stable"), folder)
