"""Drop-in replacement for the packages that Inria's 3D Gaussian Splatting imports: change the imports, or call
:func:`install`.

- ``diff_gaussian_rasterization`` is this package.
- ``simple_knn._C`` is :mod:`tsplat.compat.inria.simple_knn._C`.
- ``fused_ssim`` is :mod:`tsplat.compat.inria.fused_ssim`.

``python -m tsplat.compat.inria SCRIPT`` runs a script with these packages and the modules of forks from tsplat.
"""

from typing import Any

from . import rasterizer as _rasterizer
from .forks import ForkImportError, refuse_name
from .installation import AlreadyImportedError, install
from .optimizer import SparseGaussianAdam
from .rasterizer import GaussianRasterizer, rasterize_gaussians
from .settings import GaussianRasterizationSettings


def __getattr__(name: str) -> Any:
    """Returns ``compute_relocation``. Only 3dgs-mcmc imports it, so from then on the rasterizer returns three
    values."""
    if name != "compute_relocation":
        refuse_name(name, "diff_gaussian_rasterization")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    GaussianRasterizer.default_generation = "mcmc"
    return _rasterizer.compute_relocation


__all__ = [
    "AlreadyImportedError",
    "ForkImportError",
    "GaussianRasterizationSettings",
    "GaussianRasterizer",
    "SparseGaussianAdam",
    "install",
    "rasterize_gaussians",
]
