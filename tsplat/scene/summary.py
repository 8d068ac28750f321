"""Model summaries: counts, bounds and quantiles."""

import dataclasses
import json
import math

import numpy as np
from torch import Tensor

from .gaussians import Gaussians

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

Numbers = list[float]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Statistics of a model.

    Attributes:
        count: Number of Gaussians.
        sh_degree: Degree of the spherical harmonics.
        antialiased: Whether the model is marked as antialiased.
        surfels: Whether they are 2D Gaussians.
        n_invalid: Number of Gaussians with invalid values; the statistics below exclude them.
        lowest, highest: [3] bounds of the means, world units. These and those below are None without valid Gaussians.
        opacities: Opacities (after the sigmoid) at :data:`QUANTILES`.
        scales: Scales of all axes, two of 2D Gaussians, (after exp) at :data:`QUANTILES`, world units.
    """

    count: int
    sh_degree: int
    antialiased: bool
    surfels: bool
    n_invalid: int
    lowest: Numbers | None
    highest: Numbers | None
    opacities: Numbers | None
    scales: Numbers | None

    def json(self) -> str:
        """Returns the attributes and :data:`QUANTILES` as a JSON object; infinite numbers become null."""

        def finite(value: object) -> object:
            if isinstance(value, list):
                return [finite(number) for number in value]
            return value if not isinstance(value, float) or math.isfinite(value) else None

        values = {**dataclasses.asdict(self), "quantiles": list(QUANTILES)}
        return json.dumps({name: finite(value) for name, value in values.items()}, allow_nan=False)

    def lines(self) -> list[str]:
        """Returns the summary as lines of text."""

        def text(numbers: Numbers | None) -> str:
            return "none" if numbers is None else " ".join(f"{number:.4g}" for number in numbers)

        quantiles = ", ".join(f"{100 * q:g}%" for q in QUANTILES)
        return [
            f"Gaussians    {self.count}{' (2D)' if self.surfels else ''}",
            f"SH degree    {self.sh_degree}",
            f"antialiased  {'yes' if self.antialiased else 'no'}",
            f"invalid      {self.n_invalid}",
            f"lowest       {text(self.lowest)}",
            f"highest      {text(self.highest)}",
            f"opacities    {text(self.opacities)}  ({quantiles})",
            f"scales       {text(self.scales)}  ({quantiles})",
        ]


def summarize(gaussians: Gaussians) -> Summary:
    """Computes the statistics of a model on any device."""
    valid_mask = gaussians.valid
    valid = gaussians.map(lambda tensor: tensor.detach()[valid_mask])
    has_valid = len(valid) > 0
    return Summary(
        count=len(gaussians),
        sh_degree=gaussians.sh_degree,
        antialiased=gaussians.antialiased,
        surfels=gaussians.surfels,
        n_invalid=len(gaussians) - len(valid),
        lowest=valid.means.amin(0).tolist() if has_valid else None,
        highest=valid.means.amax(0).tolist() if has_valid else None,
        opacities=_quantiles(valid.opacities) if has_valid else None,
        scales=_quantiles(valid.scales[:, : valid.n_scales]) if has_valid else None,
    )


def _quantiles(values: Tensor) -> Numbers:
    # NumPy, because torch.quantile is limited to 16 million values; "nearest" avoids interpolating infinities.
    found = np.quantile(values.flatten().double().cpu().numpy(), QUANTILES, method="nearest")
    return [float(number) for number in found]
