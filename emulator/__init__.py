"""Executes the GPU code that Triton compiles on CPU tensors, with checks and exact counters.

    with emulated("cuda:80", code="ptx") as gpu:
        kernel[grid](x, y, n, BLOCK=128)
    print(gpu.counters)

| module | subject |
| --- | --- |
| `emulation` | the entry point |
| `library`, `driver_core/` | replacement of libcuda and libamdhip64: the functions that load and launch kernels |
| `driver` | emulated GPUs; a Triton driver, for kernels that Triton itself launches |
| `launch`, `storages`, `shadow` | kernel arguments; tensors by address; tracking of written bytes |
| `machine`, `program`, `counters` | execution of a launch with memory checks; parsed kernels; totals |
| `nvidia`, `amd` | front ends: PTX and SASS; AMD's assembly and code objects |
| `build`, `core/` | the C cores; `memory.h` models memory, races and counters for all of them |
| `package` | tsplat on the emulator |
| `timing` | predicts the time that a GPU takes for the executed instructions |

`tests/emulator` contains its tests, the pytest plugin and random scenes.

The emulator shows results, out-of-bounds accesses, reads of bytes never written, races, misalignment, and exact counts.
It does not model time, caches, memory ordering finer than barriers, or the last bits of approximate instructions: see
docs/emulation.md.
"""
