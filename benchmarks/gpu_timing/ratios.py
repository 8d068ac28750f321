"""Ratios of two implementations' counts on the same scene."""

from typing import Any

RATIOS = {
    "ratio_instructions": ("warp instructions", ("warp_instructions",)),
    "ratio_load_sectors": ("sectors loaded", ("load_sectors",)),
    "ratio_store_sectors": ("sectors stored or updated", ("store_sectors", "atomic_sectors")),
    "ratio_predicted": ("predicted time", ("predicted_us",)),
}
"""Ratios of tsplat's figures to the peer's: what each compares, and the fields of records that it sums."""


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Returns tsplat's figures divided by a peer's, for two records of one pass; of times only if they have any."""
    return {
        ratio: sum(ours[field] for field in fields) / sum(theirs[field] for field in fields)
        for ratio, (_, fields) in RATIOS.items()
        if fields[0] in ours
    }


def line(record: dict[str, Any]) -> str:
    """Returns the ratios of a record as text."""
    shown = [f"{what} {record[ratio]:.3f}" for ratio, (what, _) in RATIOS.items() if ratio in record]
    return f"tsplat / {record['peer']}: {', '.join(shown)}"
