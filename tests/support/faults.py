"""Simulates disk faults: the k-th file operation in a block fails, or all operations from then on."""

import builtins
import contextlib
import io
import os
from unittest import mock

CALLS = (
    "chmod", "fsync", "link", "listdir", "lstat", "mkdir", "open", "readlink", "remove", "rename", "replace", "rmdir",
    "scandir", "stat", "symlink", "unlink",
)  # fmt: skip


@contextlib.contextmanager
def fault(k, number, on=lambda path: True, *, lasts=False):
    """Makes the k-th operation, counted from 0, on paths for which `on` is true fail with an error number.

    With `lasts`, all later operations fail, too. Yields a list with the name of each operation.
    """
    names = []

    def count(name, path):
        if isinstance(path, str | bytes | os.PathLike) and not on(os.fsdecode(path)):
            return
        names.append(name)
        if len(names) == k + 1 or (lasts and len(names) > k):
            raise OSError(number, os.strerror(number), None if isinstance(path, int) else path)

    def wrapped(name, function):
        def call(*args, **kwargs):
            count(name, args[0] if args else None)
            return function(*args, **kwargs)

        return call

    class File(io.FileIO):
        def __init__(self, name, *args, **kwargs):
            count("open", name)
            super().__init__(name, *args, **kwargs)

        def write(self, data, /):
            count("write", self.name)
            return super().write(data)

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(os, name, wrapped(name, getattr(os, name))))
        stack.enter_context(mock.patch.object(io, "FileIO", File))
        stack.enter_context(mock.patch.object(io, "open", wrapped("open", io.open)))
        stack.enter_context(mock.patch.object(builtins, "open", wrapped("open", builtins.open)))
        yield names
