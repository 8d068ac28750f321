"""Hand-written PTX kernels on the emulator, for tests that need one exact instruction."""

import struct

import numpy as np
import torch

from emulator.emulation import Emulator
from emulator.machine import Machine, MachineOptions
from emulator.nvidia import ptx
from emulator.program import Launch, Memory
from emulator.shadow import Shadow

HEADER = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 data) {
    .reg .pred %p<8>;
    .reg .b32 %r<32>;
    .reg .b64 %d<8>;
    .reg .f32 %f<8>;
    .shared .align 16 .b8 scratch[4096];
    ld.param.u64 %d0, [data];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d1, %r0, 4;
    add.u64 %d1, %d0, %d1;
"""
"""Leaves the thread's index in %r0, the tensor's address in %d0, and that of the thread's element in %d1."""


def run_ptx(
    body: str,
    data: torch.Tensor,
    *,
    threads: int = 32,
    programs: int = 1,
    block: tuple[int, int, int] | None = None,
    shadow: Shadow | None = None,
    **options: object,
) -> Emulator:
    """Runs instructions after `HEADER` on a tensor.

    Args:
        body: PTX statements; `ret` is added.
        block: Threads of a program along x, y and z; None for `threads` along x.
        shadow: Knows which bytes of the tensor were written.
        options: See :class:`MachineOptions`.
    """
    program = ptx.translate(HEADER + body + "\n    ret;\n}\n", "kernel")
    storage = data.untyped_storage()
    arguments = np.frombuffer(struct.pack("<Q", data.data_ptr()) + bytes(64), np.uint8)
    written = shadow.of(data) if shadow else None
    memory = Memory(storage.data_ptr(), storage.nbytes(), data.element_size(), written)
    machine = Machine(MachineOptions(**options))  # type: ignore[arg-type]
    shared = program.static_shared_bytes
    machine.run(program, Launch((programs, 1, 1), threads, arguments, [memory], shared, "kernel", block=block))
    return Emulator(machine)
