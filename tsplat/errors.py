"""Typed errors. A message names the argument, the expected and the actual value, and suggests a fix."""


class ArgumentError(ValueError, RuntimeError):
    """An argument is invalid. Also a RuntimeError, as in gsplat 1.6, whose operators check their arguments."""


class ShapeError(ArgumentError):
    """A tensor has the wrong shape."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type."""


class DtypeError(ArgumentTypeError):
    """A tensor has the wrong dtype."""


class DeviceError(ArgumentError):
    """Tensors are on different devices, or on a device that cannot be used."""


class InvalidValueError(ArgumentError):
    """Gaussians or cameras have values that cannot be rendered (``validate="error"``).

    The message names the tensor, the number of invalid rows, the first invalid row, and the likely cause.
    """


class DisagreementError(ArgumentError):
    """The ranks of a distributed call passed different settings. Raised on every rank."""


class FileError(ArgumentError):
    """A file or folder cannot be read or written. The message names its path."""


class MissingExtraError(ArgumentError, ImportError):
    """An optional dependency is not installed. The message gives the pip command."""


class UnsupportedError(NotImplementedError):
    """A known option that is not implemented. The message says what to use instead."""


class BackendError(RuntimeError):
    """The requested backend cannot run here."""


class MemoryBudgetError(RuntimeError):
    """The images, or the intersections of a single row of tiles, do not fit into the free or allowed memory."""


class CapacityError(RuntimeError):
    """A call needed more intersections than its ``capacity``. Its image shows the background only."""


class PeerError(RuntimeError):
    """Another rank rejected its arguments, exceeded its budget or exited, so the call of this rank cannot continue."""
