"""The parameters of a scene, before their activations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import check_devices, check_tensor
from ..config import SH_DEGREE_MAX, SH_NORMS
from ..errors import ArgumentError, FileError, ShapeError
from ..support.extras import require

PARAMETERS = ("means", "log_scales", "quats", "opacity_logits", "sh0", "shN")
"""The fields of :class:`Gaussians` that are tensors."""

START_OPACITY = 0.1
NEIGHBOURS = 3
ALIKE = 0.5
"""Standard deviations have larger logarithms than this, or negative ones, if there are many of them."""
MANY = 16


class ActivatedError(FileError):
    """Parameters look as if they had been through exp or the sigmoid, which would be taken a second time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussians:
    """N Gaussians as they are optimized and stored, every value before its activation.

    Attributes:
        means: [N, 3] centers, world frame.
        log_scales: [N, 3] logarithms of the standard deviations along the rotated axes, world units.
        quats: [N, 4] rotations wxyz, any norm but zero.
        opacity_logits: [N] opacities before the sigmoid.
        sh0: [N, 1, 3] spherical harmonics coefficients of degree 0, RGB; the color is 0.5 plus the sum.
        shN: [N, K - 1, 3] those of the degrees above, K = (degree + 1)^2; K = 1 for no view dependence.
        antialiased: Whether they were trained with ``rasterize_mode="antialiased"``, and want to be rendered so.

    Raises:
        ArgumentError: Shapes that do not go together, integer tensors, or several devices.
    """

    means: Tensor
    log_scales: Tensor
    quats: Tensor
    opacity_logits: Tensor
    sh0: Tensor
    shN: Tensor  # noqa: N815 - the field's name
    antialiased: bool = False

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

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def map(self, function: Callable[[Tensor], Tensor]) -> Gaussians:
        """The same with a function applied to every parameter, such as a move or a choice of rows."""
        moved = {name: function(tensor) for name, tensor in self.tensors().items()}
        return Gaussians(**moved, antialiased=self.antialiased)

    def to(self, device: torch.device | str) -> Gaussians:
        return self.map(lambda tensor: tensor.to(device))

    @property
    def scales(self) -> Tensor:
        """[N, 3] standard deviations."""
        return self.log_scales.exp()

    @property
    def opacities(self) -> Tensor:
        """[N] in [0, 1]."""
        return self.opacity_logits.sigmoid()

    @property
    def sh_degree(self) -> int:
        """The highest degree that there are coefficients for."""
        return math.isqrt(self.shN.shape[1] + 1) - 1

    def sh_coeffs(self, degree: int) -> Tensor:
        """[N, (degree + 1)^2, 3] coefficients up to a degree."""
        return torch.cat([self.sh0, self.shN[:, : (degree + 1) ** 2 - 1]], 1)

    @property
    def sound(self) -> Tensor:
        """[N] bool: where every parameter is a number; infinite logits and log scales have a meaning."""
        return (
            self.means.isfinite().all(-1)
            & self.quats.isfinite().all(-1)
            & ~self.log_scales.isnan().any(-1)
            & ~self.opacity_logits.isnan()
            & self.sh0.isfinite().all(-1).all(-1)
            & self.shN.isfinite().all(-1).all(-1)
        )

    def check_raw(self, where: str) -> None:
        """Raises :class:`ActivatedError`, which begins with `where`, if values look as after their activation.

        That is if there are many Gaussians and all logarithms of scales lie above 0, nearly all of them close to it,
        or if all lie above 0 and all logits in [0, 1].
        """
        positive = bool((self.log_scales > 0).all())
        likely = bool(((self.opacity_logits >= 0) & (self.opacity_logits <= 1)).all())
        close = float((self.log_scales < ALIKE).float().mean()) > 0.95 and len(self) >= MANY
        if len(self) and positive and (likely or close):
            raise ActivatedError(
                f"{where}: its scales are all above 0{' and its opacities all in [0, 1]' if likely else ''}, as after "
                f"exp{' and sigmoid' if likely else ''}, which would be taken a second time; save what they were "
                "before, or take them as they are with force=True (--force)"
            )

    @classmethod
    def from_points(
        cls,
        points: Tensor,
        colors: Tensor,
        sh_degree: int = 3,
        *,
        opacity: float = START_OPACITY,
        scale: float = 1.0,
    ) -> Gaussians:
        """Round Gaussians at points, each as wide as the mean distance to its three nearest neighbors.

        Args:
            points: [N, 3] world frame, N >= 2.
            colors: [N, 3] RGB in [0, 1]; they become the coefficients of degree 0.
            sh_degree: Highest degree of spherical harmonics to have coefficients for, 0 to 4.
            opacity: Of each, between 0 and 1.
            scale: How many times as wide they are.

        Raises:
            ArgumentError: Shapes, fewer than two points, a degree out of range, or values that are not numbers.
            MissingExtraError: SciPy is not installed.
        """
        check_tensor("points", points, [None, 3], "[N, 3]")
        n = points.shape[0]
        check_tensor("colors", colors, [n, 3], "[N, 3] as points")
        if n < 2:
            raise ShapeError(f"points: expected at least two to tell their spacing, found {n}")
        if not 0 <= sh_degree <= SH_DEGREE_MAX:
            raise ArgumentError(f"sh_degree: expected an int from 0 to {SH_DEGREE_MAX}, found {sh_degree!r}")
        if not 0 < opacity < 1:
            raise ArgumentError(f"opacity: expected a number between 0 and 1, found {opacity}")
        if not 0 < scale < math.inf:
            raise ArgumentError(f"scale: expected a positive number, found {scale}")
        for name, tensor in (("points", points), ("colors", colors)):
            if not tensor.isfinite().all():
                raise ArgumentError(f"{name}: found values that are not finite; remove those points")
        means = points.float()
        spacing = _neighbor_distances(means)
        # Points in one place have no spacing; a millionth of the cloud keeps the logarithm finite.
        spacing = spacing.clamp_min(1e-6 * max(float((means.amax(0) - means.amin(0)).max()), 1e-6))
        quats = means.new_zeros(n, 4)
        quats[:, 0] = 1
        return cls(
            means=means.clone(),
            log_scales=(scale * spacing).log()[:, None].repeat(1, 3),
            quats=quats,
            opacity_logits=means.new_full((n,), opacity).logit(),
            sh0=((colors.float() - 0.5) / SH_NORMS[0][0])[:, None],
            shN=means.new_zeros(n, (sh_degree + 1) ** 2 - 1, 3),
        )


def _neighbor_distances(points: Tensor) -> Tensor:
    """Mean distance of each point to its nearest three others. [N]"""
    require("scipy")
    from scipy.spatial import cKDTree

    array = points.detach().double().cpu().numpy()
    distances, _ = cKDTree(array).query(array, k=min(NEIGHBOURS + 1, len(array)))
    return torch.from_numpy(distances[:, 1:].mean(-1)).to(points)
