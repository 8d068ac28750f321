"""Optional dependencies: checked where they are needed, never imported by ``import tsplat``."""

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
"""Module name -> package name on PyPI, if the two differ."""

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
"""Module name -> extra of tsplat that installs it; ``train`` for all others."""


def require(*modules: str) -> None:
    """Checks that optional dependencies can be imported.

    Args:
        modules: Module names, such as ``"PIL"``.

    Raises:
        MissingExtraError: Names all packages that cannot be imported, and the extras that install them.
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
    """Checks that an optional dependency is installed, which another process imports; raises as :func:`require`."""
    if importlib.util.find_spec(module) is None:
        raise _missing({module: "is not installed"})


def _missing(problems: dict[str, str]) -> MissingExtraError:
    """Returns the error of modules and what is wrong with each."""
    extras = dict.fromkeys(EXTRAS.get(module, "train") for module in problems)
    described = ", ".join(
        f"the package {PACKAGES.get(module, module)} {problem}" for module, problem in problems.items()
    )
    return MissingExtraError(f"{described}; run: pip install 'tsplat[{','.join(extras)}]'")


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
