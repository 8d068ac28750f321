"""Model summaries: counts, bounds and quantiles."""

import dataclasses
import json
import math

import numpy as np
from numpy.typing import NDArray

from .gaussians import Gaussians
from .model_rows import Rows, as_rows

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

Numbers = list[float]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Statistics of a model.

    Attributes:
        count: Number of Gaussians.
        sh_degree: Degree of the spherical harmonics.
        antialiased: Whether the model is marked as antialiased.
        surfels: Whether the model has 2D Gaussians.
        n_invalid: Number of Gaussians with invalid values; the statistics below exclude them.
        lowest, highest: [3] bounds of the means, world units. These and the following attributes are None if no
            Gaussian is valid.
        opacities: Quantiles of opacities (after the sigmoid) at :data:`QUANTILES`.
        scales: Quantiles of scales (after exp) at :data:`QUANTILES`, over all axes, or two axes for 2D Gaussians; world
            units.
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

    def to_json(self) -> dict[str, object]:
        """Returns the attributes and :data:`QUANTILES` as JSON values; infinite numbers become None."""

        def finite(value: object) -> object:
            if isinstance(value, list):
                return [finite(number) for number in value]
            return value if not isinstance(value, float) or math.isfinite(value) else None

        values = {**dataclasses.asdict(self), "quantiles": list(QUANTILES)}
        return {name: finite(value) for name, value in values.items()}

    def json(self) -> str:
        """Returns :meth:`to_json` as a JSON object."""
        return json.dumps(self.to_json(), allow_nan=False)

    def lines(self) -> list[str]:
        """Returns the summary as lines of text."""

        def text(numbers: Numbers | None) -> str:
            return "none" if numbers is None else " ".join(f"{number:.4g}" for number in numbers)

        quantiles = ", ".join(f"{100 * q:g}%" for q in QUANTILES)
        return [
            f"Gaussians    {self.count:,}{' (2D)' if self.surfels else ''}",
            f"SH degree    {self.sh_degree}",
            f"antialiased  {'yes' if self.antialiased else 'no'}",
            f"invalid      {self.n_invalid:,}",
            f"minimum xyz  {text(self.lowest)}",
            f"maximum xyz  {text(self.highest)}",
            f"opacities    {text(self.opacities)}  (quantiles {quantiles})",
            f"scales       {text(self.scales)}  (quantiles {quantiles})",
        ]


def summarize(model: Gaussians | Rows) -> Summary:
    """Computes the statistics of a model on any device, or of rows, which takes 16 bytes of memory per row."""
    rows = as_rows(model)
    n_scales = 2 if rows.properties.surfels else 3
    opacities, scales = np.empty(len(rows), np.float32), np.empty((len(rows), n_scales), np.float32)
    low, high, n = np.full(3, np.inf, np.float32), np.full(3, -np.inf, np.float32), 0
    for chunk in rows.chunks():
        valid = chunk.select(chunk.valid)
        if len(valid):
            rows_of_chunk = slice(n, n + len(valid))
            opacities[rows_of_chunk] = valid.opacities.numpy()
            scales[rows_of_chunk] = valid.scales[:, :n_scales].numpy()
            low = np.minimum(low, valid.means.amin(0).numpy())
            high = np.maximum(high, valid.means.amax(0).numpy())
            n += len(valid)
    return Summary(
        count=len(rows),
        sh_degree=rows.properties.sh_degree,
        antialiased=rows.properties.antialiased,
        surfels=rows.properties.surfels,
        n_invalid=len(rows) - n,
        lowest=low.tolist() if n else None,
        highest=high.tolist() if n else None,
        opacities=_quantiles(opacities[:n]) if n else None,
        scales=_quantiles(scales[:n].reshape(-1)) if n else None,
    )


def _quantiles(values: NDArray[np.float32]) -> Numbers:
    """Returns the values nearest to the quantiles, without interpolating infinities. Reorders the values in place."""
    ranks = np.around((len(values) - 1) * np.array(QUANTILES)).astype(np.intp)
    values.partition(np.unique(ranks))
    return [float(number) for number in values[ranks]]
