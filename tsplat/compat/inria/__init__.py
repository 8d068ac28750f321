"""Drop-in replacement for what Inria's 3D Gaussian Splatting imports: change the imports, or only call :func:`install`.

| imported as | here |
| --- | --- |
| ``diff_gaussian_rasterization`` | this package |
| ``simple_knn._C`` | :mod:`tsplat.compat.inria.simple_knn._C` |
| ``fused_ssim`` | :mod:`tsplat.compat.inria.fused_ssim` |

``python -m tsplat.compat.inria SCRIPT`` runs a script in which these three names are imported from tsplat.
"""

from .installation import AlreadyImportedError, install
from .optimizer import SparseGaussianAdam
from .rasterizer import GaussianRasterizationSettings, GaussianRasterizer, rasterize_gaussians

__all__ = [
    "AlreadyImportedError",
    "GaussianRasterizationSettings",
    "GaussianRasterizer",
    "SparseGaussianAdam",
    "install",
    "rasterize_gaussians",
]
