"""Optional dependencies, which are checked where they are used and never imported by ``import tsplat``."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import signal
import threading
from collections.abc import Iterator

from ..errors import MissingExtraError

PACKAGES = {
    "PIL": "pillow",
    "fast_simplification": "fast-simplification",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "pxr": "usd-core",
    "skimage": "scikit-image",
}
"""Package name on PyPI of each module whose name differs from it."""

EXTRAS = {
    "OpenEXR": "exr",
    "huggingface_hub": "hub",
    "imageio_ffmpeg": "video",
    "laspy": "points",
    "lazrs": "points",
    "pye57": "points",
    "zstandard": "io",
    "pxr": "usd",
    "skimage": "mesh",
    "fast_simplification": "mesh",
    "torchmetrics": "lpips",
    "torchvision": "lpips",
    "trackio": "trackio",
    "viser": "viewer",
    "wandb": "wandb",
}
"""Extra of tsplat that installs each module; ``train`` for all others."""


def require(*modules: str) -> None:
    """Checks that optional dependencies can be imported.

    Args:
        modules: Module names, such as ``"PIL"``.

    Raises:
        MissingExtraError: A module cannot be imported. The message names all such packages, and the extras that install
            them.
    """
    problems: dict[str, str] = {}
    first: ImportError | None = None
    for module in modules:
        try:
            with _unchanged_sigterm():
                importlib.import_module(module)
        except ImportError as error:
            missing = getattr(error, "name", None) == module
            problems[module] = "is not installed" if missing else f"cannot be imported ({error})"
            first = first or error
    if problems:
        raise _missing(problems) from first


def installed_version(package: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def require_installed(module: str) -> None:
    """Checks that an optional dependency is installed, without importing it; raises as :func:`require`."""
    if importlib.util.find_spec(module) is None:
        raise _missing({module: "is not installed"})


def _missing(problems: dict[str, str]) -> MissingExtraError:
    """Returns the error for modules, given the problem of each."""
    extras = dict.fromkeys(EXTRAS.get(module, "train") for module in problems)
    described = ", ".join(
        f"the package {PACKAGES.get(module, module)} {problem}" for module, problem in problems.items()
    )
    return MissingExtraError(f"{described}; run: pip install 'tsplat[{','.join(extras)}]'")


def require_ffmpeg(what: str) -> None:
    """Raises MissingExtraError unless ffmpeg is available; `what` requires it, in the plural, such as ".mp4 videos"."""
    require("imageio_ffmpeg")
    import imageio_ffmpeg

    try:
        imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise MissingExtraError(f"{what} need ffmpeg, which imageio-ffmpeg does not find") from error


@contextlib.contextmanager
def _unchanged_sigterm() -> Iterator[None]:
    """Restores the handler of SIGTERM after an import, as pycolmap installs one that prints a C++ stack trace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
