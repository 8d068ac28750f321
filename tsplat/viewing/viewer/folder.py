"""The folder that pages may write to and read from."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import ArgumentError

NAME_MAX = 200
"""Length of file names."""

TRANSFER_MAX = 1 << 30
"""Size in bytes of a file that is offered for download, and of what a page uploads at the same time."""


class NameTakenError(ArgumentError):
    """A page would replace a file, and has not been asked for it."""


class Folder:
    """Confines what pages write to new files of one folder, and what they read to it and the `readable` paths."""

    def __init__(self, path: str | os.PathLike[str], readable: Sequence[Path] = ()) -> None:
        self.path = Path(path).absolute()
        self._readable = [self.path, *(Path(other).absolute() for other in readable)]
        self._lock, self._busy = threading.Lock(), set[Path]()

    @contextlib.contextmanager
    def writing(self, name: str, *, replace: bool = False) -> Iterator[Path]:
        """Returns the path of a file or folder to write; nobody else writes it inside the block.

        A file may be replaced if `replace` is set, folders and links never. Raises NameTakenError if there is a file of
        this name, and ArgumentError as :func:`check_name`, or if there is a folder or a link of this name.
        """
        check_name(name)
        path = self.path / name
        with self._lock:
            if path in self._busy:
                raise ArgumentError(f"{name}: it is being written")
            if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
                raise ArgumentError(f"{name}: there is a folder or a link of this name; choose another one")
            if os.path.lexists(path) and not replace:
                raise NameTakenError(f"{name} exists")
            self._busy.add(path)
        try:
            yield path
        finally:
            with self._lock:
                self._busy.discard(path)

    def readable(self, name: str) -> Path:
        """Returns the path of what a page may read, without telling whether there is anything elsewhere."""
        # Without following links first: what is elsewhere is not looked at.
        path = Path(os.path.normpath(self.path / name)) if name and name.isprintable() else Path("/")
        if any(path.is_relative_to(root) for root in self._readable):
            with contextlib.suppress(OSError, RuntimeError):
                if any(path.resolve().is_relative_to(root.resolve()) for root in self._readable):
                    return path
        raise ArgumentError(f"expected a path in {self.path}, found {name[:80]!r}")


def check_name(name: str) -> None:
    """Raises ArgumentError unless a page gives the name of a file, without a folder."""
    if not name.isprintable() or set(name) & set("/\\:") or name.startswith(".") or not 0 < len(name) <= NAME_MAX:
        raise ArgumentError(f"expected the name of a file, without a folder or a leading dot, found {name[:80]!r}")
