"""Launch metadata of compiled kernels."""

from __future__ import annotations

import dataclasses
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from .library import DriverError

MAX_TENSOR_MEMORY = 512
"""Maximum columns of tensor memory, the limit that Triton checks."""


def name_of(target: GPUTarget) -> str:
    """Returns the name of a target for messages, such as sm_90 or gfx942."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


@dataclasses.dataclass(frozen=True)
class LaunchMetadata:
    """The metadata of a compiled kernel that its launches use.

    Attributes:
        name: Name of the kernel.
        target: Name of the target, for messages.
        threads: Threads per program.
        shared_bytes: Bytes of shared memory per program.
        cluster: Programs per cluster.
        cooperative: Whether launches are cooperative.
        overlaps: Whether launches are programmatic dependent launches, which may start before the previous one ends.
        scratch: Bytes of scratch memory per program, and their alignment.
        profile: Bytes of the profiler's scratch memory per program, and their alignment.
    """

    name: str
    target: str
    threads: int
    shared_bytes: int
    cluster: int
    cooperative: bool
    overlaps: bool
    scratch: tuple[int, int]
    profile: tuple[int, int]

    @classmethod
    def of(cls, metadata: Any) -> LaunchMetadata:
        """Reads Triton's metadata of a compiled kernel.

        Raises:
            DriverError: The kernel uses a feature that is not implemented.
        """
        target, arch = metadata.target, name_of(metadata.target)
        name, get = metadata.name, metadata._asdict().get
        n_programs, dims = get("num_ctas") or 1, get("cluster_dims")  # the latter up to Triton 3.5
        unsupported = {
            f"clusters of {dims} programs": dims and tuple(dims) != (n_programs, 1, 1),
            "tensor descriptors as arguments": get("tensordesc_meta"),
            "the memory sanitizer GSan": "gsan" in (get("instrumentation_mode") or ""),
            f"{get('tmem_size')} columns of tensor memory": (get("tmem_size") or 0) > MAX_TENSOR_MEMORY,
        }
        for feature, is_used in unsupported.items():
            if is_used:
                raise DriverError(f"{name}: Triton {triton.__version__} compiled it for {arch} with {feature}, which "
                                  "is not supported; turn it off, or use another backend")  # fmt: skip
        return cls(
            name=name, target=arch, threads=metadata.num_warps * (get("warp_size") or target.warp_size),
            shared_bytes=metadata.shared, cluster=n_programs, cooperative=bool(get("launch_cooperative_grid")),
            overlaps=bool(get("launch_pdl")),
            scratch=(get("global_scratch_size") or 0, get("global_scratch_align") or 1),
            profile=(get("profile_scratch_size") or 0, get("profile_scratch_align") or 1),
        )  # fmt: skip
