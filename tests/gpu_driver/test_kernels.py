"""Launches of loaded kernels on emulated GPUs: arguments, what metadata asks for, threads, hooks, and errors."""

import ctypes
import sys
import threading

import pytest
import torch
import triton
from triton.runtime import _allocation

from emulator.emulation import emulated
from emulator.library import library
from tsplat.gpu_driver import DriverError
from tsplat.gpu_driver.cuda import CudaDriver
from tsplat.gpu_driver.kernels import SCRATCH_POINTERS

from .small_kernels import TARGETS, altered, arguments, loaded, recorded, transpose_kernel, values

each_target = pytest.mark.parametrize("target", TARGETS)
NVIDIA = next((target for target in TARGETS if target.startswith("sm")), None)
on_nvidia = pytest.mark.skipif(NVIDIA is None, reason="of NVIDIA GPUs")


def zeros(n=3):
    return torch.zeros(n, dtype=torch.float64)


@each_target
def test_arguments_arrive(target):
    out = zeros(6)
    given = arguments(out)
    with emulated(target):
        kernel = loaded(target, given)
        assert kernel.types == ["*fp64", "constexpr", "i32", "i64", "i32", "fp64"]
        kernel(2, values(given))
        assert out.tolist() == [3, 2**40, 1] * 2
        kernel(1, values(given | dict(small=-(2**31), large=-(2**63), x=-0.5)))
        assert out.tolist() == [-(2**31), -(2**63), -2, 3, 2**40, 1]


@each_target
def test_each_launch_has_its_own_grid(target):
    grids = [(3, 1, 1), (3, 4, 5), (3, 1, 1), (2, 1, 1), (2, 4, 1)]
    with recorded(target) as made:
        given = arguments(zeros())
        kernel = loaded(target, given)
        for x, *others in grids:
            kernel(x, values(given), tuple(others))
    assert [launch.grid for launch in made] == grids


def test_a_launch_of_no_programs_is_none():
    with recorded(TARGETS[0]) as made:
        given = arguments(zeros())
        loaded(TARGETS[0], given)(0, values(given))
    assert not made


@each_target
def test_more_shared_memory_than_the_default(target):
    x, y = torch.rand(128, 128), torch.zeros(128, 128)
    given = dict(x=x, y=y, N=128)
    with emulated(target):
        kernel = loaded(target, given, transpose_kernel)
        assert kernel.metadata.shared_bytes > 49_152
        kernel(1, values(given))
    assert torch.equal(y, x.T)


@each_target
def test_threads_launch_at_once(target):
    """None gets the arguments of another: Python changes threads between packing and launching."""
    n_threads, n_launches, kept = 4, 200, sys.getswitchinterval()
    given = arguments(zeros())
    with recorded(target) as made:
        kernel = loaded(target, given)

        def work(thread):
            for i in range(n_launches):
                kernel(thread * n_launches + i + 1, values(given | dict(small=thread * n_launches + i)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(kept)
        offset = kernel.offsets[1]
    assert len(made) == n_threads * n_launches
    for launch in made:
        assert launch.grid[0] == int.from_bytes(launch.arguments[offset : offset + 4], "little") + 1


@each_target
def test_launches_are_on_the_current_stream(target):
    given, streams = arguments(zeros()), [5, 7, 7, 2**40]
    with recorded(target) as made:
        kernel = loaded(target, given)
        for kernel.stream in (lambda stream=stream: stream for stream in streams):
            kernel(1, values(given))
        template, _, own, (word,) = kernel.template(1, values(given))
        memory = (ctypes.c_int64 * (len(template) // 8)).from_buffer_copy(template)
        for place, offset in own.items():
            memory[place] = ctypes.addressof(memory) + offset
        launch, _ = kernel.bind(1, memory, 0)
        for memory[word] in streams:
            launch()
    assert [launch.stream for launch in made] == 2 * streams


@each_target
def test_a_pass_fills_one_buffer_for_its_launches(target):
    out = zeros(9)
    with emulated(target):
        given = arguments(out)
        kernel = loaded(target, given)
        launches = [kernel.template(1, values(given | dict(small=i, out=out[3 * i :]))) for i in range(3)]
        size = len(launches[0][0])
        memory = (ctypes.c_int64 * (3 * size // 8)).from_buffer(bytearray(b"".join(each[0] for each in launches)))
        for i, (_, _, own, streams) in enumerate(launches):
            for word, offset in own.items():
                memory[i * size // 8 + word] = ctypes.addressof(memory) + i * size + offset
            assert [memory[i * size // 8 + word] for word in streams] == [0]
        assert [kernel.bind(1, memory, i * size)[0]() for i in range(3)] == [0, 0, 0]
    assert out[::3].tolist() == [0, 1, 2]


@on_nvidia
def test_what_metadata_asks_for_is_launched():
    given = arguments(zeros())
    with recorded(NVIDIA) as made:
        altered(NVIDIA, given, num_ctas=2, launch_pdl=True)(3, values(given))
        altered(NVIDIA, given, launch_cooperative_grid=True, num_ctas=16)(3, values(given))
        altered(NVIDIA, given, shared=100_000)(3, values(given), (4, 5))
        altered(NVIDIA, given)(3, values(given))
    clusters, wide, shared, plain = made
    assert (clusters.grid, clusters.cluster, clusters.overlaps, clusters.cooperative) == (
        (6, 1, 1),
        (2, 1, 1),
        True,
        False,
    )
    assert (wide.grid, wide.cluster, wide.overlaps, wide.cooperative) == ((48, 1, 1), (16, 1, 1), False, True)
    assert (shared.grid, shared.shared_bytes, shared.block) == ((3, 4, 5), 100_000, (128, 1, 1))
    assert (plain.grid, plain.cluster, plain.overlaps, plain.cooperative) == ((3, 1, 1), (1, 1, 1), False, False)


@each_target
def test_scratch_memory_is_that_of_tritons_allocators(target, monkeypatch):
    given, asked = arguments(zeros()), []

    def allocate(size, alignment, stream):
        asked.append((size, alignment, stream))
        return torch.zeros(size, dtype=torch.int8)

    with recorded(target) as made:
        kernel = altered(target, given, global_scratch_size=24, global_scratch_align=128, profile_scratch_size=8)
        with pytest.raises(DriverError, match=r"types_kernel: requires scratch memory: .*triton\.set_allocator"):
            kernel(5, values(given))
        before = _allocation._allocator.set(allocate)
        monkeypatch.setattr(_allocation, "_profile_allocator", type("Profiler", (), {"get": lambda self: allocate})())
        try:
            kernel(5, values(given))
            kernel(5, values(given))
        finally:
            _allocation._allocator.reset(before)
        plain = loaded(target, given)
        plain(5, values(given))
    assert asked == [(120, 128, 0), (40, 1, 0)] * 2
    size = 8 * SCRATCH_POINTERS
    pointers = [launch.arguments.rstrip(b"\0") for launch in made]
    assert len(made) == 3 and all(len(p) > len(pointers[-1]) for p in pointers[:2])
    assert int.from_bytes(made[-1].arguments[-size:], "little") == 0


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (dict(tensordesc_meta=[{"swizzle": 0}]), "with tensor descriptors as arguments, which is not supported"),
        (dict(instrumentation_mode="gsan"), "with the memory sanitizer GSan, which is not supported"),
        (dict(cluster_dims=(1, 2, 1)), r"with clusters of \(1, 2, 1\) programs, which is not supported"),
        (dict(tmem_size=1024), "with 1024 columns of tensor memory"),
        (dict(shared=300_000), r"requires 300,000 bytes of shared memory per program; the GPU \(\w+\) has [\d,]+"),
        (dict(num_warps=64), r"requires [\d,]+ threads per program; the GPU \(\w+\) allows 1,024"),
    ],
)
@each_target
def test_what_cannot_be_launched_is_named(target, metadata, words):
    with emulated(target), pytest.raises(DriverError, match=words):
        altered(target, arguments(zeros()), **metadata)


@on_nvidia
def test_more_shared_memory_than_is_launched_is_named(monkeypatch):
    monkeypatch.setattr(CudaDriver, "max_shared_bytes", lambda *_: 400_000)
    with emulated(NVIDIA), pytest.raises(DriverError, match=r"launches with more than 233,472 are not implemented"):
        altered(NVIDIA, arguments(zeros()), shared=300_000)


@pytest.mark.parametrize("metadata", [dict(num_ctas=2), dict(launch_pdl=True)])
def test_what_amd_gpus_do_not_have_is_named(metadata):
    with emulated("gfx942"), pytest.raises(DriverError, match=r"types_kernel: .*(num_ctas|launch_pdl)"):
        altered("gfx942", arguments(zeros()), **metadata)


@each_target
def test_a_thread_without_a_context_gets_one(target):
    given, failed = arguments(zeros()), []
    with emulated(target):
        kernel = loaded(target, given)

        def work():
            try:
                kernel(1, values(given))
            except DriverError as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert not failed and given["out"].tolist() == [3, 2**40, 1]


@each_target
def test_failures_of_launches_are_said(target):
    given = arguments(zeros())
    with emulated(target):
        kernel = loaded(target, given)

        def fail(*_):
            raise ZeroDivisionError("in the emulator")

        library().execute = fail
        with pytest.raises(
            DriverError, match=r"launching 7 programs failed: ERROR_LAUNCH_FAILED: Zero.* in the emulator"
        ):
            kernel(7, values(given))
        with pytest.raises(DriverError, match=r"types_kernel: launching 3 programs failed: ERROR_INVALID_VALUE"):
            kernel(3, values(given), (1, 70_000))


def test_binaries_that_the_driver_refuses_are_said():
    given = arguments(zeros())
    with emulated(TARGETS[0]):
        kernel = loaded(TARGETS[0], given)
        with pytest.raises(
            DriverError, match=r"cannot load the binary that Triton compiled for \w+: ERROR_INVALID_IMAGE.*; update"
        ):
            kernel.device.driver.load(b"no binary at all", kernel.metadata, 0)


@each_target
def test_hooks_of_profilers_are_called(target):
    given, seen = arguments(zeros()), []
    runtime = triton.knobs.runtime
    hooks = {
        "launch_enter_hook": lambda launched: seen.append(("enter", launched.get()["name"])),
        "launch_exit_hook": lambda launched: seen.append(("exit", launched.get()["stream"])),
        "kernel_load_start_hook": lambda _module, _function, name, _group, _hash: seen.append(("load", name)),
        "kernel_load_end_hook": lambda _module, function, *_: seen.append(("loaded", function)),
    }
    with emulated(target):
        for name, hook in hooks.items():
            getattr(runtime, name).add(hook)
        try:
            kernel = loaded(target, given)
            kernel(1, values(given))
        finally:
            for name, hook in hooks.items():
                getattr(runtime, name).remove(hook)
        kernel(1, values(given))
    assert seen == [("load", "types_kernel"), ("loaded", kernel.function), ("enter", "types_kernel"), ("exit", 0)]
