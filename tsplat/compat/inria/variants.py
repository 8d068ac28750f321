"""Rasterizers of forks with separate modules, such as ``diff_gaussian_rasterization_abs``."""

from types import ModuleType
from typing import Any, ClassVar

from .forks import refuse_name
from .rasterizer import GaussianRasterizer
from .returns import OF_BATCHED_MATRICES, Names
from .settings import GaussianRasterizationSettings
from .surfels import SurfelRasterizer


class AbsRasterizer(GaussianRasterizer):
    """The rasterizer of AbsGS, which takes `means2D` [N, 4] and returns ``(color, radii, weights)``."""

    own_returns: ClassVar[Names | None] = ("color", "radii", "weights")


class WeightsRasterizer(GaussianRasterizer):
    """The rasterizer of Mini-Splatting, which returns ``(color, radii, weights, count, max_count)``."""

    own_returns: ClassVar[Names | None] = ("color", "radii", "weights", "count", "max_count")


class MaskRasterizer(GaussianRasterizer):
    """The rasterizer of SegAnyGAussians for masks, which returns ``(color, features, depth, radii)``."""

    own_returns: ClassVar[Names | None] = ("color", "features", "depth", "radii")


class MedianRasterizer(GaussianRasterizer):
    """The rasterizer of Spacetime Gaussians, which returns ``(color, radii, median_depth)``."""

    own_returns: ClassVar[Names | None] = OF_BATCHED_MATRICES


class PlaneSettings(GaussianRasterizationSettings):
    """The settings of PGSR. Planes are rendered if the rasterizer gets `all_map`, which PGSR passes with
    `render_geo`."""

    __slots__ = ()

    def __new__(cls, *args: Any, render_geo: bool = True, **kwargs: Any) -> "PlaneSettings":
        del render_geo
        return super().__new__(cls, *args, **kwargs)  # type: ignore[return-value]


class PlaneRasterizer(GaussianRasterizer):
    """The rasterizer of PGSR, which returns ``(color, radii, observed, features, plane_depth)``."""

    own_returns: ClassVar[Names | None] = ("color", "radii", "observed", "features", "plane_depth")
    features = frozenset({"all_map"})
    others = frozenset({"all_map", "means2D_abs"})


CLASSES: dict[str, tuple[type, type]] = {
    "diff_gaussian_rasterization_abs": (GaussianRasterizationSettings, AbsRasterizer),
    "diff_gaussian_rasterization_ch3": (GaussianRasterizationSettings, MedianRasterizer),
    "diff_gaussian_rasterization_ch9": (GaussianRasterizationSettings, MedianRasterizer),
    "diff_gaussian_rasterization_contrastive_f": (GaussianRasterizationSettings, GaussianRasterizer),
    "diff_gaussian_rasterization_depth": (GaussianRasterizationSettings, MaskRasterizer),
    "diff_gaussian_rasterization_ms": (GaussianRasterizationSettings, WeightsRasterizer),
    "diff_plane_rasterization": (PlaneSettings, PlaneRasterizer),
    "diff_surfel_rasterization": (GaussianRasterizationSettings, SurfelRasterizer),
}
"""Module -> ``GaussianRasterizationSettings`` and ``GaussianRasterizer``."""


class _Variant(ModuleType):
    """A module of a fork."""

    def __init__(self, name: str, settings: type, rasterizer: type) -> None:
        super().__init__(name, rasterizer.__doc__)
        self.GaussianRasterizationSettings, self.GaussianRasterizer = settings, rasterizer

    def __getattr__(self, name: str) -> Any:
        refuse_name(name, self.__name__)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


MODULES: dict[str, ModuleType] = {name: _Variant(name, *classes) for name, classes in CLASSES.items()}
"""Name -> module."""
