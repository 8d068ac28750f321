"""The folder that pages may write to and read from."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import ArgumentError

NAME_MAX = 200
"""Maximum length of file names."""

TRANSFER_MAX = 1 << 30
"""Maximum size in bytes of a file that is offered for download, and of all files that a page uploads at a time."""


class NameTakenError(ArgumentError):
    """Writing would replace a file, which the user has not confirmed."""


class Folder:
    """Restricts pages to writing new files in one folder, and to reading from this folder and the `readable` paths."""

    def __init__(self, path: str | os.PathLike[str], readable: Sequence[Path] = ()) -> None:
        self.path = Path(path).absolute()
        self._readable = [self.path, *(Path(other).absolute() for other in readable)]
        self._lock, self._busy = threading.Lock(), set[Path]()

    @contextlib.contextmanager
    def writing(self, name: str, *, replace: bool = False) -> Iterator[Path]:
        """Context manager that yields the path of a file or folder to write, and keeps other pages from writing it.

        An existing file is only replaced if `replace` is set; folders and links never are. Raises NameTakenError if a
        file of this name exists, and ArgumentError as :func:`check_name`, or if a folder or a link of this name exists.
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
        """Returns a path that a page may read. Errors for other paths do not reveal whether they exist."""
        # The path is checked before links are followed, so that other folders are not accessed.
        path = Path(os.path.normpath(self.path / name)) if name and name.isprintable() else Path("/")
        if any(path.is_relative_to(root) for root in self._readable):
            with contextlib.suppress(OSError, RuntimeError):
                if any(path.resolve().is_relative_to(root.resolve()) for root in self._readable):
                    return path
        raise ArgumentError(f"expected a path in {self.path}, found {name[:80]!r}")


def check_name(name: str) -> None:
    """Raises ArgumentError unless `name` is a valid file name, without a folder."""
    if not name.isprintable() or set(name) & set("/\\:") or name.startswith(".") or not 0 < len(name) <= NAME_MAX:
        raise ArgumentError(f"expected the name of a file, without a folder or a leading dot, found {name[:80]!r}")
