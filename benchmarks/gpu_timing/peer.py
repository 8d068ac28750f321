"""Comparison of tsplat with a peer, whose kernels the same emulator executes: the option `--peer`."""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from tsplat.config import ALPHA_MIN

from . import gsplat_kernels
from .scenes import Run, TsplatRun

PEERS = ("gsplat",)
DIFFERENCE_MAX = 1e-3
"""Maximum relative difference of images and gradients; see `differences`."""
UNDECIDED = 1e-5
"""Fraction of an image's values at which a Gaussian's alpha may equal the threshold up to rounding."""
UNAVAILABLE = 3
"""Exit status if the peer's kernels cannot be obtained or compiled."""


class DifferentError(Exception):
    """A peer's images or gradients differ from tsplat's."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses a peer."""
    help = (
        f"also execute the kernels of {gsplat_kernels.NAME} and print ratios; requires nvcc, and downloads gsplat once"
    )
    parser.add_argument("--peer", choices=PEERS, help=help)


def prepare(peer: str | None) -> Path | None:
    """Returns the wheel of a peer whose kernels can be compiled; None without a peer.

    Exits with status `UNAVAILABLE` and a message if they cannot.
    """
    if peer is None:
        return None
    try:
        wheel = gsplat_kernels.find_wheel(download=True)
        gsplat_kernels.load_kernel("fwd", 3, wheel)
    except gsplat_kernels.UnavailableError as error:
        print(f"--peer {peer}: nothing is compared, {error}", flush=True)
        raise SystemExit(UNAVAILABLE) from None
    return wheel


def execute(run: TsplatRun, wheel: Path, *, traced: bool) -> Run:
    """Executes gsplat's kernels on the inputs of a run's compositing, and prints the difference of the results."""
    peer, result = gsplat_kernels.execute(run.composited, wheel=wheel, traced=traced)
    found = differences(run.composited.results(), result)
    name, largest = max(found.items(), key=lambda item: item[1])
    label, lengths = gsplat_kernels.NAME, peer.list_lengths
    print(
        f"{label}: {sum(lengths):,} intersections, at most {max(lengths):,} per tile; images and gradients differ from "
        f"tsplat's by at most {largest:.1e} ({name}), relative to the largest value",
        flush=True,
    )
    if largest > DIFFERENCE_MAX:
        raise DifferentError(f"{name} differs from that of {label} by {largest:.1e}, more than {DIFFERENCE_MAX}")
    return peer


def differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest difference of each output, relative to the peer's largest value.

    For images, the largest differences are ignored, a fraction `UNDECIDED` of all values, unless they exceed the
    threshold of alpha.
    """
    assert ours.keys() == theirs.keys()

    def relative(name: str) -> float:
        a, b = ours[name], theirs[name]
        found = (a.reshape(b.shape) - b).abs().div(b.abs().max()).nan_to_num(torch.inf).flatten()
        left_out = 0 if name.startswith("v_") or found.max() > ALPHA_MIN else int(UNDECIDED * found.numel())
        return float(found.kthvalue(found.numel() - left_out).values)

    return {name: relative(name) for name in theirs}
