"""What there is to say about Gaussians in a few numbers."""

from __future__ import annotations

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
    """Gaussians in a few numbers.

    Attributes:
        count: How many there are.
        sh_degree: Of their spherical harmonics.
        antialiased: Whether they are marked so.
        unsound: How many have values that are not numbers; the figures below leave them out.
        lowest, highest: [3] bounds of the centers, world units; None if there are no sound Gaussians, as those below.
        opacities: After the sigmoid, at :data:`QUANTILES`.
        scales: Of all axes after exp, world units, at :data:`QUANTILES`.
    """

    count: int
    sh_degree: int
    antialiased: bool
    unsound: int
    lowest: Numbers | None
    highest: Numbers | None
    opacities: Numbers | None
    scales: Numbers | None

    def json(self) -> str:
        """For programs: the attributes and the quantiles' shares; numbers that are infinite become null."""

        def plain(value: object) -> object:
            if isinstance(value, list):
                return [plain(number) for number in value]
            return value if not isinstance(value, float) or math.isfinite(value) else None

        values = {**dataclasses.asdict(self), "quantiles": list(QUANTILES)}
        return json.dumps({name: plain(value) for name, value in values.items()}, allow_nan=False)

    def lines(self) -> list[str]:
        """For people."""

        def row(numbers: Numbers | None) -> str:
            return "none" if numbers is None else " ".join(f"{number:.4g}" for number in numbers)

        quantiles = ", ".join(f"{100 * q:g}%" for q in QUANTILES)
        return [
            f"Gaussians    {self.count}",
            f"SH degree    {self.sh_degree}",
            f"antialiased  {'yes' if self.antialiased else 'no'}",
            f"unsound      {self.unsound}",
            f"lowest       {row(self.lowest)}",
            f"highest      {row(self.highest)}",
            f"opacities    {row(self.opacities)}  ({quantiles})",
            f"scales       {row(self.scales)}  ({quantiles})",
        ]


def summarize(gaussians: Gaussians) -> Summary:
    """Counts and quantiles of Gaussians on any device."""
    sound = gaussians.sound
    kept = gaussians.map(lambda tensor: tensor.detach()[sound])
    some = len(kept) > 0
    return Summary(
        count=len(gaussians),
        sh_degree=gaussians.sh_degree,
        antialiased=gaussians.antialiased,
        unsound=len(gaussians) - len(kept),
        lowest=kept.means.amin(0).tolist() if some else None,
        highest=kept.means.amax(0).tolist() if some else None,
        opacities=_quantiles(kept.opacities) if some else None,
        scales=_quantiles(kept.scales) if some else None,
    )


def _quantiles(values: Tensor) -> Numbers:
    # Of values that are there, as between two infinite ones there is nothing; torch.quantile ends at 16 million.
    found = np.quantile(values.flatten().double().cpu().numpy(), QUANTILES, method="nearest")
    return [float(number) for number in found]
