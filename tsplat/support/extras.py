"""Optional dependencies: checked where they are needed, never imported by ``import tsplat``."""

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator

from ..errors import MissingExtraError

PACKAGES = {"PIL": "pillow", "imageio_ffmpeg": "imageio-ffmpeg", "pxr": "usd-core"}
"""Module name -> package name on PyPI, where the two differ."""

EXTRAS = {
    "imageio_ffmpeg": "video",
    "zstandard": "io",
    "pxr": "usd",
    "torchmetrics": "lpips",
    "torchvision": "lpips",
    "viser": "viewer",
    "wandb": "wandb",
}
"""Module name -> extra of tsplat that installs it; ``train`` for all others."""


def require(*modules: str) -> None:
    """Checks that optional dependencies can be imported.

    Args:
        modules: Module names, such as ``"PIL"``.

    Raises:
        MissingExtraError: Names all packages that cannot be imported, and the extras that install them.
    """
    problems: list[str] = []
    extras: list[str] = []
    first: ImportError | None = None
    for module in modules:
        try:
            with _unchanged_sigterm():
                importlib.import_module(module)
        except ImportError as error:
            missing = getattr(error, "name", None) == module
            problem = "is not installed" if missing else f"cannot be imported ({error})"
            problems.append(f"the package {PACKAGES.get(module, module)} {problem}")
            extras.append(EXTRAS.get(module, "train"))
            first = first or error
    if problems:
        chosen = ",".join(dict.fromkeys(extras))
        raise MissingExtraError(f"{', '.join(problems)}; run: pip install 'tsplat[{chosen}]'") from first


def require_ffmpeg(what: str) -> None:
    """Raises MissingExtraError unless ffmpeg can read and write `what`, in the plural, such as ".mp4 videos"."""
    require("imageio_ffmpeg")
    import imageio_ffmpeg

    try:
        imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise MissingExtraError(f"{what} need ffmpeg, which imageio-ffmpeg does not find") from error


@contextlib.contextmanager
def _unchanged_sigterm() -> Iterator[None]:
    """Installs the handler of SIGTERM again after an import: that of pycolmap prints a stack trace of C++ functions."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
