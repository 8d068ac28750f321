"""Reads the needs of the launches of a kernel, from the metadata that Triton's own launcher reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from .library import DriverError

MAX_TENSOR_MEMORY = 512
"""Columns of tensor memory, as Triton checks them."""


def name_of(target: GPUTarget) -> str:
    """Returns the name of a target for messages, such as sm_90 or gfx942."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


@dataclasses.dataclass(frozen=True)
class Needs:
    """Holds what the launches of a kernel need, from the metadata that Triton's own launcher reads."""

    name: str
    target: str
    """In words, for messages."""
    threads: int
    """Of a program."""
    shared_bytes: int
    cluster: int
    """Programs of a cluster."""
    cooperative: bool
    overlaps: bool
    """Programmatic dependent launch: it may start before the launch in front of it has ended."""
    scratch: tuple[int, int]
    """Bytes for each program, and their alignment."""
    profile: tuple[int, int]
    """The same of a profiler."""

    @classmethod
    def of(cls, metadata: Any) -> Needs:
        """Reads Triton's metadata of a compiled kernel.

        Raises:
            DriverError: The kernel needs something that is not implemented here.
        """
        target, arch = metadata.target, name_of(metadata.target)
        name, get = metadata.name, metadata._asdict().get
        n_programs, dims = get("num_ctas") or 1, get("cluster_dims")  # the latter up to Triton 3.5
        refused = {
            f"clusters of {dims} programs": dims and tuple(dims) != (n_programs, 1, 1),
            "tensor descriptors as arguments": get("tensordesc_meta"),
            "the memory sanitizer GSan": "gsan" in (get("instrumentation_mode") or ""),
            f"{get('tmem_size')} columns of tensor memory": (get("tmem_size") or 0) > MAX_TENSOR_MEMORY,
        }
        for what, is_needed in refused.items():
            if is_needed:
                raise DriverError(f"{name}: Triton {triton.__version__} compiled it for {arch} with {what}, which "
                                  "cannot be launched; turn it off, or use another backend")  # fmt: skip
        return cls(
            name=name, target=arch, threads=metadata.num_warps * (get("warp_size") or target.warp_size),
            shared_bytes=metadata.shared, cluster=n_programs, cooperative=bool(get("launch_cooperative_grid")),
            overlaps=bool(get("launch_pdl")),
            scratch=(get("global_scratch_size") or 0, get("global_scratch_align") or 1),
            profile=(get("profile_scratch_size") or 0, get("profile_scratch_align") or 1),
        )  # fmt: skip
