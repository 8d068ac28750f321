"""Bundles of tensors: flattened by the names of their fields, and restored."""

import re
from typing import NamedTuple

import torch

from tests.support.paths import ROOT
from tsplat.runtime.bundles import flatten, restore, structure


class Inner(NamedTuple):
    count: int
    first: torch.Tensor
    second: torch.Tensor | None = None


class Outer(NamedTuple):
    inner: Inner
    other: Inner | None
    name: str
    last: torch.Tensor


def test_restored_bundle_has_the_same_values():
    a, b, c = torch.arange(3)
    bundle = Outer(Inner(4, a), None, "x", b), (c, None)
    flat = flatten(bundle)
    assert [None if t is None else int(t) for t in flat] == [0, None, None, 1, 2, None]
    found = restore(structure(bundle), flat)
    assert found == bundle
    assert type(found[0].inner) is Inner
    # Values of other types, such as whether a gradient is needed, come back by the same names.
    needs, _ = restore(structure(bundle), [True, False, False, False, True, False])
    assert (needs.inner.first, needs.last, needs.name) == (True, False, "x")


def test_structure_holds_no_tensor():
    assert flatten(structure(Outer(Inner(4, torch.ones(1)), None, "x", torch.ones(1)))) == [None] * 4


def test_bundles_are_not_sliced_by_position():
    """Fields have names; a slice from the end, or after the first fields, breaks when one is added."""
    slices = re.compile(
        r"\b(saved|projected|tensors|lists|parts|gaussians|cameras|v|received)\[(-?\d+)?:(-?\d+)?\]|\bN_LISTS\b|\bN_LOCAL\b"
    )
    found = [
        f"{path.name}: {match[0]}"
        for folder in ("runtime", "stages", "functional", "kernels", "kernels_torch")
        for path in (ROOT / "tsplat" / folder).rglob("*.py")
        for match in slices.finditer(path.read_text())
    ]
    assert not found
