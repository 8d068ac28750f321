"""Executes the GPU code that Triton compiles, on CPU tensors, with checks and exact counters.

    with emulated("cuda:80", code="ptx") as gpu:
        kernel[grid](x, y, n, BLOCK=128)
    print(gpu.counters)

| module | subject |
| --- | --- |
| `emulation` | the entry point |
| `library`, `driver_core/` | stands in for libcuda and libamdhip64: the functions that load and launch kernels |
| `driver` | an emulated GPU; a driver of Triton, for kernels that Triton launches itself |
| `launch`, `storages`, `shadow` | arguments; which tensors lie at an address; which of their bytes were written |
| `machine`, `program`, `counters` | one launch on the model of memory; parsed kernels; totals |
| `nvidia`, `amd` | front ends: PTX and SASS; AMD's assembly and code objects |
| `build`, `core/` | the C cores: `memory.h` is the one model of memory, races and counters |
| `package` | tsplat on the emulator |
| `timing` | predicts how long a GPU takes for what was executed |

`tests/emulator` has its tests, the pytest plugin and random scenes.

It shows results, out-of-bounds accesses, reads of bytes never written, races, misalignment, and exact counts. It does
not show time, caches, memory ordering finer than barriers, or approximate instructions to the last bit: see
docs/emulation.md.
"""
