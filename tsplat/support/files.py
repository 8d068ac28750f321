"""Atomic writes and output folders."""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import FileError
from .output import FULL
from .process_identity import id_space, is_running
from .reading import is_special, raise_if_read

ZIP = b"PK\x03\x04"
"""The first four bytes of a ZIP archive."""

DESCRIPTORS = re.compile(r"/proc/[^/]+(/task/[^/]+)?/fd|/dev/fd")
"""Folders whose entries are the open files of a process."""

LINKS_MAX = 40
"""Maximum number of symbolic links that are followed, as in Linux."""


def describe_os_error(error: OSError) -> str:
    """Returns the path and the reason of an error, without its number."""
    path = error.filename2 or error.filename
    return f"{path}: {error.strerror}" if path and error.strerror else str(error)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Context manager that opens a binary file for an atomic write: it replaces `path` when the block succeeds.

    If the block raises, `path` is unchanged and no temporary file remains. A symbolic link stays, and its target is
    replaced. Temporary files that killed processes left in the folder are deleted, if the processes are known to have
    ended.

    Raises:
        OSError: The file cannot be written, or `path` is a folder, a device, a pipe or an open file, such as
            ``/dev/stdout``. The message names `path` and, if the disk is full, the size.
        FileError: The file has been read inside of :func:`~tsplat.support.reading.protect_inputs`.
    """
    path = Path(path)
    raise_if_not_replaceable(path)
    raise_if_read(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    target = Path(os.path.realpath(path))
    temporary = _temporary(target)
    writer: _Writer | None = None
    try:
        with _Writer(io.FileIO(temporary, "x")) as writer:
            yield writer
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(temporary, target)
    except OSError as error:
        _remove(temporary)
        concerns_temporary = error.filename is None or Path(error.filename) == temporary
        if error.errno in FULL and concerns_temporary:
            raise disk_full(error, path, writer.size if writer is not None else 0) from error
        if error.errno is not None and concerns_temporary:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        _remove(temporary)
        raise


def _temporary(target: Path) -> Path:
    """Returns the path of a temporary file for a target. Its name identifies the process, if the platform allows it."""
    space = id_space()
    process = "" if space is None else f"{space}-{os.getpid()}-"
    if space is not None and target.parent not in _cleaned:
        _cleaned.add(target.parent)
        _delete_stale(target.parent, space)
    # It is in the same folder, because a rename is atomic only within one file system. Long names are truncated.
    return target.with_name(f".{target.name[:50]}.{process}{secrets.token_hex(4)}")


_cleaned: set[Path] = set()
"""Folders in which this process has already deleted the temporary files of killed processes."""


def _delete_stale(folder: Path, space: str) -> None:
    """Deletes the temporary files in a folder whose processes had ids of the same `space` and have ended."""
    name = re.compile(rf"\..+\.{space}-([0-9]+)-[0-9a-f]{{8}}", re.DOTALL)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = name.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False) and not is_running({"pid": int(match[1])}):
                _remove(Path(entry.path))


def delete_temporaries(folder: Path, names: Iterable[str]) -> None:
    """Deletes the temporary files that :func:`atomic_write` leaves in a folder if its process is killed.

    Args:
        folder: A folder in which no other process is writing these files. It may be missing.
        names: Names of the files that were written. Other files are kept: a user may have ``.notes.20261128``.
    """
    written = "|".join(re.escape(name[:50]) for name in names)
    temporary = re.compile(rf"\.({written})\.([0-9a-f]{{8}}-[0-9]+-)?[0-9a-f]{{8}}")
    for path in folder.iterdir() if folder.is_dir() else ():
        if temporary.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the caller reports an earlier error
        path.unlink()


def raise_if_special(path: str | os.PathLike[str]) -> None:
    """Raises OSError if a path is a device, a pipe or a socket."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if is_special(mode):
        raise OSError(errno.EINVAL, "is a device, a pipe or a socket; expected a file", str(path))


def raise_if_not_replaceable(path: str | os.PathLike[str]) -> None:
    """Raises OSError if a path is a device, a pipe, a socket, or an open file of a process, such as ``/dev/stdout``.

    Replacing an open file would discard, for example, a log that standard output is appended to.
    """
    if _names_descriptor(path):
        raise OSError(errno.EINVAL, "is an open file of a process, such as standard output; expected a file", str(path))
    raise_if_special(path)


def _names_descriptor(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is, or links to, an open file of a process, such as ``/dev/stdout``."""
    path = os.fspath(path)
    for _ in range(LINKS_MAX):
        folder = os.path.realpath(os.path.dirname(path))
        if DESCRIPTORS.fullmatch(folder):
            return True
        path = os.path.join(folder, os.path.basename(path))
        if not os.path.islink(path):
            return False
        path = os.path.join(folder, os.readlink(path))
    return False


def disk_full(error: OSError, path: Path, size: int) -> OSError:
    """Returns an error for a full disk that states the path, the minimum size of the file, and the free space."""
    free = ""
    with contextlib.suppress(OSError):
        free = f", and {shutil.disk_usage(path.parent).free:,} are free"
    needed = f"at least {size:,} bytes are needed{free}" if size else "free some space"
    return OSError(error.errno, f"{error.strerror}; {needed}", str(path))


class _Writer(io.BufferedWriter):
    """A binary file that records the size in bytes that it would have if all writes succeeded."""

    size = 0

    def write(self, data: Any, /) -> int:
        self.size = max(self.size, self.tell() + memoryview(data).nbytes)
        return super().write(data)


def size_and_hash(file: io.BufferedIOBase) -> dict[str, Any]:
    """Returns the size and the SHA-256 of an open file as JSON values, ``bytes`` and ``sha256``."""
    return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes strict JSON in UTF-8 atomically.

    Raises:
        ValueError: The value contains NaN or infinity, which JSON cannot represent.
        OSError: The file cannot be written.
    """
    text = json.dumps(value, indent=2, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


@contextlib.contextmanager
def output_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Context manager that creates a folder, if it does not exist, and checks that it is writable.

    If the block raises, the folders that were created are removed again, unless they contain files.

    Raises:
        FileError: The folder cannot be created or is not writable.
    """
    path = Path(path)
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise FileError(f"{path}: cannot write there ({error.strerror}); choose another folder") from error
        yield path
    except BaseException:
        for folder in created:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def staged_folder(
    path: str | os.PathLike[str], stale: Callable[[Path, frozenset[str]], Iterable[str]], last: str | None = None
) -> Iterator[Path]:
    """Context manager that replaces several files of a folder together. Yields an empty folder for the new files.

    When the block succeeds, the new files replace those of the same names. If one cannot be replaced, all are restored.
    The folder is created if it does not exist, and its other files stay. If restoring fails, too, the old files stay in
    a hidden folder that the error names.

    Args:
        path: The folder.
        stale: Returns the names of other files in the folder to remove, given the folder and the names of the new
            files.
        last: Name of the file without which readers ignore the others. It is removed first, and written last.

    Raises:
        FileError: The folder is not writable, or old files could not be restored.
        OSError: A file cannot be replaced.
    """
    with output_folder(path) as folder:
        staged = folder / f".{secrets.token_hex(4)}"
        discard = True
        try:
            staged.mkdir()
            yield staged
            names = sorted(os.listdir(staged), key=lambda name: (name == last, name))
            _replace_together(folder, staged, names, set(stale(folder, frozenset(names))) - {*names})
        except RollbackError:
            discard = False
            raise
        except OSError as error:
            if (name := _outside(error, staged, folder)) is None:
                raise
            raise OSError(error.errno, error.strerror, str(name)) from error
        finally:
            if discard:
                shutil.rmtree(staged, ignore_errors=True)


def _outside(error: OSError, staged: Path, folder: Path) -> Path | None:
    """Returns the path in `folder` of a file that an error names in the folder `staged`; None for other errors."""
    name = error.filename2 or error.filename
    if not isinstance(name, (str, os.PathLike)) or not Path(name).is_relative_to(staged):
        return None
    return folder.joinpath(*(part for part in Path(name).relative_to(staged).parts if not part.startswith(".")))


class RollbackError(FileError):
    """Replaced files of a folder could not be restored, and are in a hidden folder."""


def _replace_together(folder: Path, staged: Path, names: list[str], stale: set[str]) -> None:
    """Moves files into a folder; if one cannot be moved, all moves are undone."""
    aside = staged / f".{secrets.token_hex(4)}"
    aside.mkdir()
    moves = [(folder / name, aside / name) for name in [*names[::-1], *sorted(stale)] if os.path.lexists(folder / name)]
    moves += [(staged / name, folder / name) for name in names]
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            raise_if_read(source if source.parent == folder else target)
            done.append((source, target))
            os.rename(source, target)
    except BaseException as error:
        lost = []
        if done and not os.path.lexists(done[-1][1]):
            done.pop()  # this move failed
        for source, target in reversed(done):
            try:
                os.rename(target, source)
            except OSError:
                lost += [source.name] if target.parent == aside else []
        if lost:
            reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
            raise RollbackError(
                f"{folder}: its files could not be replaced ({reason}), and the old ones could not be restored; move "
                f"{', '.join(sorted(lost))} from {aside} back to it, or write it again"
            ) from error
        raise


@contextlib.contextmanager
def utf8_path(folder: Path) -> Iterator[Path]:
    """Context manager that yields a UTF-8 path of a folder, for libraries that cannot open other paths."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            yield Path(f"/proc/self/fd/{descriptor}")  # only Linux has names that are not UTF-8
        finally:
            os.close(descriptor)
    else:
        yield folder
