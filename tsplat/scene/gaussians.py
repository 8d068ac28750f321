"""Gaussians: the parameters of a scene before activation."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..arguments import check_devices, check_tensor
from ..config import QUAT_NORM_MIN, SH_DEGREE_MAX
from ..errors import ArgumentError, FileError, ShapeError
from ..support.extras import require
from .sh_colors import colors_to_sh0

PARAMETERS = ("means", "log_scales", "quats", "opacity_logits", "sh0", "shN")
"""Names of the tensors of :class:`Gaussians`."""

GSPLAT_NAMES = dict(zip(PARAMETERS, ("means", "scales", "quats", "opacities", "sh0", "shN"), strict=True))
"""Parameter -> its name in gsplat; strategies and checkpoints use these names."""

INITIAL_OPACITY = 0.1
NEIGHBORS = 3

DUPLICATE_RATIO = 0.01
"""Points closer than this fraction of the mean spacing that N points have on a surface count as one position."""

CELLS_MAX = 1 << 20
"""Half the number of grid cells along an axis; points beyond the grid fall into the outermost cells."""

SPACING_RATIO_MAX, SPACING_SAMPLE = 10.0, 4096
"""Upper limit of spacings relative to their 90 % quantile, and the number of points from which the quantile is
estimated."""

FLAT = math.log(1e-6)
"""Third log scale of surfels. tsplat does not read it; other programs that draw surfels as 3D Gaussians do."""

ACTIVATED_SCALE_MAX = 0.5
"""If nearly all ``log_scales`` are in (0, ACTIVATED_SCALE_MAX], they are probably scales and not logarithms."""

ACTIVATED_COUNT_MIN = 16
"""Minimum number of Gaussians for this conclusion."""


class AlreadyActivatedError(FileError):
    """Stored parameters look as if exp or sigmoid had already been applied to them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussians:
    """Parameters of N Gaussians before activation, as they are optimized and stored.

    Attributes:
        means: [N, 3] centers, world frame.
        log_scales: [N, 3] logarithms of the standard deviations along the rotated axes, world units.
        quats: [N, 4] rotations wxyz, of any nonzero norm.
        opacity_logits: [N] opacities before the sigmoid.
        sh0: [N, 1, 3] spherical harmonics coefficients of degree 0, RGB. The color is 0.5 plus the weighted sum of all
            coefficients.
        shN: [N, K - 1, 3] coefficients of the higher degrees, K = (degree + 1)^2. K = 1 means no view dependence.
        antialiased: Whether the model was trained with ``rasterize_mode="antialiased"``, and should be rendered in this
            mode.
        surfels: Whether these are 2D Gaussians for :func:`tsplat.rasterization_2dgs`: discs in the plane of the first
            two rotated axes. Their third log scale is :data:`FLAT` and is not read.

    Raises:
        ArgumentError: The shapes do not match, a tensor has an integer dtype, or the tensors are on several devices.

    Example::

        import torch
        from tsplat.scene import Gaussians

        gaussians = Gaussians.from_points(torch.rand(1000, 3), torch.rand(1000, 3), sh_degree=1)
        opaque = gaussians.opacities > 0.05
        gaussians = gaussians.map(lambda values: values[opaque])
    """

    means: Tensor
    log_scales: Tensor
    quats: Tensor
    opacity_logits: Tensor
    sh0: Tensor
    shN: Tensor  # noqa: N815 - the usual name
    antialiased: bool = False
    surfels: bool = False
    draw: ClassVar["Callable[[Gaussians], bytes | None] | None"] = None
    """Renders Gaussians to the PNG file that notebooks show; set by :mod:`tsplat.viewing`."""

    def __post_init__(self) -> None:
        check_tensor("means", self.means, [None, 3], "[N, 3]")
        n = self.means.shape[0]
        check_tensor("log_scales", self.log_scales, [n, 3], "[N, 3] as means")
        check_tensor("quats", self.quats, [n, 4], "[N, 4] as means")
        check_tensor("opacity_logits", self.opacity_logits, [n], "[N] as means")
        check_tensor("sh0", self.sh0, [n, 1, 3], "[N, 1, 3] as means")
        check_tensor("shN", self.shN, [n, None, 3], "[N, K - 1, 3] as means")
        check_devices(dict(self.tensors()))
        sizes = [(degree + 1) ** 2 - 1 for degree in range(SH_DEGREE_MAX + 1)]
        if self.shN.shape[1] not in sizes:
            raise ShapeError(f"shN: expected [N, K - 1, 3] with K - 1 in {sizes}, found {list(self.shN.shape)}")

    def __len__(self) -> int:
        return self.means.shape[0]

    def __repr__(self) -> str:
        flags = [name for name in ("antialiased", "surfels") if getattr(self, name)]
        parts = [f"{len(self):,}", f"SH degree {self.sh_degree}", *flags, str(self.means.device)]
        return f"Gaussians({', '.join(parts)})"

    def _repr_png_(self) -> bytes | None:
        draw = type(self).draw
        return None if draw is None else draw(self)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the parameters by name."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def map(self, function: Callable[[Tensor], Tensor]) -> "Gaussians":
        """Returns a copy with `function` applied to every tensor."""
        mapped: dict[str, Any] = {name: function(tensor) for name, tensor in self.tensors().items()}
        return dataclasses.replace(self, **mapped)

    def select(self, rows: Tensor | slice) -> "Gaussians":
        """Returns the Gaussians selected by a mask [N], ids [M] or a slice."""
        return self.map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> "Gaussians":
        """Returns a copy on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def as_surfels(self) -> "Gaussians":
        """Returns the Gaussians as 2D Gaussians, without their extent along the third axis."""
        flat = torch.full_like(self.log_scales[:, :1], FLAT)
        log_scales = torch.cat([self.log_scales[:, :2], flat], 1)
        return dataclasses.replace(self, log_scales=log_scales, antialiased=False, surfels=True)

    def as_surfels_if_flat(self, log_scale: float) -> "Gaussians":
        """Returns the Gaussians as 2D Gaussians if they look flat; otherwise unchanged.

        They look flat if all third log scales, but not all first or second ones, equal `log_scale`, the value that a
        format without a mark for 2D Gaussians stores. Antialiased models are never 2D Gaussians.
        """
        flat = ((self.log_scales - log_scale).abs() < 1e-4).all(0).tolist()
        return self.as_surfels() if flat == [False, False, True] and not self.antialiased else self

    @property
    def n_scales(self) -> int:
        """Number of scales that are read: 3, or 2 for 2D Gaussians."""
        return 2 if self.surfels else 3

    @property
    def scales(self) -> Tensor:
        """[N, 3] standard deviations along the rotated axes, world units."""
        return self.log_scales.exp()

    @property
    def opacities(self) -> Tensor:
        """[N] opacities in [0, 1]."""
        return self.opacity_logits.sigmoid()

    @property
    def sh_degree(self) -> int:
        """Degree of the spherical harmonics."""
        return math.isqrt(self.shN.shape[1] + 1) - 1

    def sh_coeffs(self, degree: int) -> Tensor:
        """Returns the coefficients up to a degree, [N, (degree + 1)^2, 3]."""
        return torch.cat([self.sh0, self.shN[:, : (degree + 1) ** 2 - 1]], 1)

    def rasterization_arguments(self, sh_degree: int) -> dict[str, Any]:
        """Returns the arguments of :func:`tsplat.rasterization` that describe the Gaussians, after activation."""
        tensors = {name: getattr(self, name) for name in ("means", "quats", "scales", "opacities")}
        # For degree 0, the empty shN is concatenated so that it gets a gradient, which loss scalers require.
        coeffs = {"colors": self.sh0, "shN": self.shN} if self.sh_degree else {"colors": self.sh_coeffs(0)}
        return {**tensors, **coeffs, "sh_degree": sh_degree}

    @property
    def valid(self) -> Tensor:
        """[N] bool: True for Gaussians that can be rendered: those that are :attr:`finite` and have a nonzero
        quaternion."""
        return self.finite & self.has_rotation

    @property
    def finite(self) -> Tensor:
        """[N] bool: True for Gaussians with finite parameters. Opacity logits and log scales may also be infinite."""
        return (
            _finite_rows(self.means)
            & _finite_rows(self.quats)
            & ~self.log_scales.isnan().any(-1)
            & ~self.opacity_logits.isnan()
            & _finite_rows(self.sh0)
            & _finite_rows(self.shN)
        )

    @property
    def has_rotation(self) -> Tensor:
        """[N] bool: False for Gaussians with a zero quaternion, which have no rotation and are not rendered."""
        return ~(self.quats.float().square().sum(-1) < QUAT_NORM_MIN**2)

    def check_not_activated(self, where: str) -> None:
        """Raises an error if the values look as if exp or sigmoid had already been applied to them.

        They look activated if all log scales are positive, and either all opacity logits are in [0, 1], or there are
        many Gaussians and nearly all log scales are small.

        Args:
            where: The file or folder that the error message names.

        Raises:
            AlreadyActivatedError: The values look activated.
        """
        positive = bool((self.log_scales > 0).all())
        in_unit_range = bool(((self.opacity_logits >= 0) & (self.opacity_logits <= 1)).all())
        small = float((self.log_scales < ACTIVATED_SCALE_MAX).float().mean()) > 0.95
        if len(self) and positive and (in_unit_range or (small and len(self) >= ACTIVATED_COUNT_MIN)):
            raise AlreadyActivatedError(
                f"{where}: expected log scales and opacity logits, found scales all above 0"
                f"{' and opacities all in [0, 1]' if in_unit_range else ''}, as if after exp"
                f"{' and sigmoid' if in_unit_range else ''}; save the values before activation, or read them as they "
                "are with force=True (--force)"
            )

    @classmethod
    def from_points(
        cls,
        points: Tensor,
        colors: Tensor,
        sh_degree: int = 3,
        *,
        opacity: float = INITIAL_OPACITY,
        scale: float = 1.0,
        rows: slice = slice(None),
    ) -> "Gaussians":
        """Creates isotropic Gaussians at points; their scale is the mean distance to the three nearest positions.

        Points at the same position count once. Scales are limited to ten times their 90 % quantile, which matters for
        isolated points.

        Args:
            points: [N, 3] world frame, N >= 2.
            colors: [N, 3] RGB in [0, 1], converted to the coefficients of degree 0.
            sh_degree: Degree of the spherical harmonics, 0 to 4. Coefficients above degree 0 are zero.
            opacity: Opacity of every Gaussian, between 0 and 1.
            scale: Factor applied to the scales.
            rows: Points to create Gaussians for; the others only count as neighbors.

        Raises:
            ArgumentError: A shape does not match, there are fewer than two points, a number is out of range, or points
                or colors are not finite.
            MissingExtraError: SciPy is not installed.
        """
        check_tensor("points", points, [None, 3], "[N, 3]")
        n = points.shape[0]
        check_tensor("colors", colors, [n, 3], "[N, 3] as points")
        if n < 2:
            raise ShapeError(f"points: expected at least two, to estimate their spacing, found {n}")
        if not 0 <= sh_degree <= SH_DEGREE_MAX:
            raise ArgumentError(f"sh_degree: expected an int from 0 to {SH_DEGREE_MAX}, found {sh_degree!r}")
        if not 0 < opacity < 1:
            raise ArgumentError(f"opacity: expected a number between 0 and 1, found {opacity}")
        if not 0 < scale < math.inf:
            raise ArgumentError(f"scale: expected a positive number, found {scale}")
        for name, tensor in (("points", points), ("colors", colors)):
            if not tensor.isfinite().all():
                raise ArgumentError(f"{name}: expected finite values, found NaN or infinity; remove those points")
        means = points.float()
        spacing = point_spacing(means, rows).to(means)
        means, colors = means[rows], colors[rows]
        n = len(means)
        quats = means.new_zeros(n, 4)
        quats[:, 0] = 1
        return cls(
            means=means.clone(),
            log_scales=(scale * spacing).log()[:, None].repeat(1, 3),
            quats=quats,
            opacity_logits=means.new_full((n,), opacity).logit(),
            sh0=colors_to_sh0(colors.float())[:, None],
            shN=means.new_zeros(n, (sh_degree + 1) ** 2 - 1, 3),
        )


def _finite_rows(tensor: Tensor) -> Tensor:
    """Returns a mask [N] of the rows whose values are all finite. Tests two values per row instead of all."""
    values = tensor.detach().flatten(1)
    if not values.shape[1]:
        return values.new_ones(len(values), dtype=torch.bool)
    return values.amin(1).isfinite() & values.amax(1).isfinite()


def concatenate(parts: Sequence[Gaussians]) -> Gaussians:
    """Concatenates one or more models; dtypes and device are those of the first."""
    first = parts[0]
    tensors: dict[str, Any] = {
        name: torch.cat([getattr(part, name).to(tensor) for part in parts]) for name, tensor in first.tensors().items()
    }
    return dataclasses.replace(first, **tensors)


def neighbor_distances(points: Tensor) -> Tensor:
    """Returns the distances of points [N, 3] to their three nearest neighbors, [N, min(3, N - 1)] fp64 on the CPU."""
    require("scipy")
    from scipy.spatial import cKDTree

    array = points.detach().double().cpu().numpy()
    distances, _ = cKDTree(array).query(array, k=min(NEIGHBORS + 1, len(array)))
    return torch.from_numpy(distances[:, 1:])


def point_spacing(points: Tensor, rows: slice = slice(None)) -> Tensor:
    """Returns the mean distance of points [N, 3] to the three nearest other positions, [N] fp64 on the CPU, positive.

    Points that are much closer than average count as one position. For isolated points, spacings are limited to
    :data:`SPACING_RATIO_MAX` times their 90 % quantile. `rows` selects the points whose spacings are returned.
    """
    require("scipy")
    from scipy.spatial import cKDTree

    array = points.detach().double().cpu().numpy()
    n = len(array)
    low, high = np.quantile(array, (0.05, 0.95), axis=0)
    extent = float((high - low).max()) or float(np.ptp(array, axis=0).max())
    if extent == 0:  # All points coincide, so there is no length scale.
        spacing = DUPLICATE_RATIO * (float(abs(array).max()) or 1.0)
        return torch.full((len(array[rows]),), spacing, dtype=torch.float64, device="cpu")
    smallest = DUPLICATE_RATIO * extent / math.sqrt(n)
    cells = np.clip(np.rint((array - low) / smallest), -CELLS_MAX, CELLS_MAX - 1).astype(np.int64) + CELLS_MAX
    keys = (cells[:, 0] * 2 * CELLS_MAX + cells[:, 1]) * 2 * CELLS_MAX + cells[:, 2]
    positions = array[np.sort(np.unique(keys, return_index=True)[1])]
    tree = cKDTree(positions)

    def neighbor_spacing(queries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the mean distances to the nearest other positions; adjacent cells may contain duplicates of one
        position."""
        means = np.zeros(len(queries))
        unfinished = np.arange(len(queries))
        for k in (NEIGHBORS + 1, NEIGHBORS + 8):
            distances, _ = tree.query(queries[unfinished], k=range(1, min(k, len(positions)) + 1))
            distances = np.where(distances < smallest, np.inf, distances)
            distances[:, 0] = np.inf
            distances = np.sort(distances, 1)[:, :NEIGHBORS]
            counts = np.isfinite(distances).sum(1)
            means[unfinished] = np.where(np.isfinite(distances), distances, 0).sum(1) / np.maximum(counts, 1)
            unfinished = unfinished[counts < min(NEIGHBORS, len(positions) - 1)]
        return means

    sample = np.sort(neighbor_spacing(array[:: 1 + n // SPACING_SAMPLE]))
    largest = SPACING_RATIO_MAX * float(sample[9 * (len(sample) - 1) // 10]) if len(positions) > 1 else smallest
    spacings = neighbor_spacing(array[rows]) if len(positions) > 1 else np.full(len(array[rows]), smallest)
    return torch.from_numpy(spacings.clip(smallest, max(largest, smallest)))


def drop_invalid(gaussians: Gaussians, warn: Callable[[str], object]) -> Gaussians:
    """Returns the valid Gaussians; calls `warn` with a note if others are left out."""
    valid = gaussians.valid
    if bool(valid.all()):
        return gaussians
    warn(f"left out {int((~valid).sum()):,} of {len(gaussians):,} Gaussians that have invalid values")
    return gaussians.select(valid)
