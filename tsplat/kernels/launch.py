"""Launches kernels on any device: keys of compiled kernels, grids, and helpers of launchers."""

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..errors import UnsupportedError
from ..triton_cpu import flat_arguments, untraced
from .prepare import COMPILER_OPTIONS, Run, Values, Vendor, prepare

GRID_MAX = 2**31 - 1

HIP_THREADS_MAX = 2**32 - 1
"""Maximum number of threads of a launch on AMD GPUs."""

AMD_PROGRAMS = HIP_THREADS_MAX // 1024
"""Number of programs up to which the number of threads need not be checked: a program has at most 1,024 threads."""

SMALL_STORAGE = 2**31 - 1
"""Bytes up to which Triton's AMD backend specializes on the size of a tensor's storage."""

CPU_BLOCK = 16
"""Elements of a program on a CPU. Larger blocks do not fit into registers and take longer to compile."""

CPU_LONG_BLOCK = 64
"""Elements of a program on a CPU if each reads a long row, whose cache lines are then reused, or if they share a
binary search."""

CPU_PREFETCH_DISTANCE = 8
"""Number of list entries by which a CPU prefetches ahead."""

UNREAD_MAX = 2**16
"""Sizes with an upper bound of at most this are not read from the device: memory is allocated for the bound."""

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether Triton interprets kernels (TRITON_INTERPRET=1 when it was first imported)."""


class Int(int):
    """Annotates integer arguments of kernels. Kernels are not recompiled for other values within 32 bits."""


def kernel(function: Callable[..., None] | None = None, *, strided: tuple[str, ...] = ()) -> Any:
    """Decorates a Triton kernel, and adds two methods that launch it on the device of its tensors.

    ``launch(n_programs, **arguments)`` takes the arguments of the kernel and compiler options. Contraction to fma is on
    unless ``enable_fp_fusion=False``. ``launch_elementwise(n, block, cpu_block=CPU_BLOCK, **arguments)`` launches it
    over n elements. The kernel's argument BLOCK, the elements per program, is then ``cpu_block`` if it is compiled for
    the CPU, otherwise ``block``. Both raise a ValueError for tensors that are not contiguous, unless `strided`.

    An argument can be a *bundle*: a NamedTuple of tensors, None, integers and bundles, whose fields the kernel reads by
    name. It is annotated with the name of its type. Numbers that are neither constants nor in a bundle are annotated
    with ``"Int"`` (quoted, as Triton would resolve the name) or ``tl.float64``. Kernels do not specialize on the values
    of numbers. docs/decisions/0054 lists what bundles must not contain.

    Args:
        strided: Names of tensors that need not be contiguous, because the kernel gets their strides. A tensor in a
            bundle is named "bundle.field".
    """
    if function is None:
        return lambda decorated: kernel(decorated, strided=strided)
    parameters = inspect.signature(function).parameters.values()
    scalars = [parameter.name for parameter in parameters if parameter.annotation in ("Int", tl.float64)]
    jitted = triton.jit(do_not_specialize=scalars)(function)
    jitted.strided, jitted.number = frozenset(strided), next(_numbers)
    jitted.launch = functools.partial(launch, jitted)
    jitted.launch_elementwise = functools.partial(launch_elementwise, jitted)
    return jitted


_numbers = itertools.count()

compiled: dict[Any, Run] = {}
"""Key of a launch -> the function that launches the compiled kernel. Keys begin with the numbers of the kernel and of
the GPU (None for a CPU)."""

observer: Callable[[Any, int, dict[str, Any]], None] | None = None
"""Called for each launch with the kernel, the number of programs and the arguments. For tests and benchmarks."""

launch_hook: Callable[[Run, int, Values], bool] | None = None
"""Called for each launch with the compiled kernel, the number of programs and the values, while launches are traced.
Returns whether to launch."""

slots_hook: Callable[[Tensor, Tensor], None] | None = None
"""Called with the slots of compositing and the number of used ones, [] int64, while calls on a GPU are traced."""


def launch(kernel: Any, n_programs: int, /, **arguments: Any) -> None:
    """Launches a kernel with a number of programs; see :func:`kernel`."""
    if n_programs:
        run = _launch_untraced if torch.compiler.is_dynamo_compiling() else launch_on_device
        run(kernel, n_programs, arguments)


def launch_elementwise(kernel: Any, n: int, block: int, cpu_block: int = CPU_BLOCK, /, **arguments: Any) -> None:
    """Launches a kernel over n elements; see :func:`kernel`."""
    block = block_size(_first_tensor(arguments), block, cpu_block)
    launch(kernel, programs(n, block), BLOCK=block, **arguments)


def launch_on_device(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> None:
    """Launches a kernel on the device of its tensors. Compiles it if no earlier launch has the same key."""
    # Drop compiler options that have their default values, for compilers, observers and keys.
    arguments = {
        name: value
        for name, value in arguments.items()
        if name not in COMPILER_OPTIONS or value != COMPILER_OPTIONS[name]
    }
    tensor = _first_tensor(arguments)
    vendor_name, gpu = vendor(tensor), None
    if vendor_name != "none" and (gpu := current_gpu(tensor)) is None:
        with torch.cuda.device(tensor.device):  # kernels are launched on the current device
            launch_on_device(kernel, n_programs, arguments)
        return
    if vendor_name == "amd" and n_programs > AMD_PROGRAMS:
        check_threads(tensor, n_programs, arguments.get("num_warps", COMPILER_OPTIONS["num_warps"]))
    observe, hook = observer, launch_hook  # another thread may change them
    if observe is not None:
        observe(kernel, n_programs, arguments)
    if INTERPRETED:
        for name, argument in arguments.items():
            _check_contiguous(kernel, name, argument)
        kernel[(n_programs,)](**arguments)
        return
    key, values = _key_and_values(kernel, vendor_name, gpu, arguments)
    run = compiled.get(key)
    if run is None:
        if unknown := arguments.keys() - kernel.arg_names - COMPILER_OPTIONS.keys():
            raise TypeError(f"{kernel.__name__}: unknown arguments {sorted(unknown)}")
        run = compiled[key] = prepare(kernel, gpu, arguments)
    if hook is None or hook(run, n_programs, values):
        run(n_programs, values)


_launch_untraced = untraced(launch_on_device)


def named_arguments(name: str, argument: Any) -> list[tuple[str, Any]]:
    """Returns the ``flat_arguments`` of an argument with their names. Takes several times as long as without."""
    if not isinstance(argument, tuple):
        return [(name, argument)]
    names = getattr(argument, "_fields", range(len(argument)))
    return [leaf for field, value in zip(names, argument) for leaf in named_arguments(f"{name}.{field}", value)]


def _first_tensor(arguments: dict[str, Any]) -> Tensor:
    return next(
        leaf for argument in arguments.values() for leaf in flat_arguments(argument) if isinstance(leaf, Tensor)
    )


def _key_and_values(
    kernel: Any, vendor_name: Vendor, gpu: int | None, arguments: dict[str, Any]
) -> tuple[tuple[Any, ...], Values]:
    """Returns the key of the compiled code, and the values that are passed to it.

    The key contains the dtypes of tensors, whether integers fit into 32 bits, and constants with their types. On GPUs,
    it also contains what Triton specializes on: compiler options, whether addresses are aligned, and on AMD whether
    storages are small.
    """
    key, values = [kernel.number, gpu], []
    for parameter in kernel.params:
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            key += value, value.__class__
            continue
        is_bundle = isinstance(value, tuple)
        if is_bundle:
            key.append(value.__class__)
        for leaf in flat_arguments(value) if is_bundle else (value,):
            if isinstance(leaf, Tensor):
                if not leaf.is_contiguous():
                    _check_contiguous(kernel, parameter.name, value)
                address = leaf.data_ptr()
                key.append(leaf.dtype)
                if gpu is not None:
                    key.append(not address % 16)
                if vendor_name == "amd":
                    key.append(leaf.untyped_storage().nbytes() <= SMALL_STORAGE)
                values.append(address)
            elif leaf is None:
                key.append(None)
                values.append(b"")  # takes no space among the arguments of compiled code
            else:
                is_float64 = bool(parameter.annotation_type)  # Triton assigns no type to the annotation "Int"
                key.append(is_float64 or -(2**31) <= leaf < 2**31)
                values.append(leaf)
    if gpu is not None:
        key += [arguments.get(name, default) for name, default in COMPILER_OPTIONS.items()]
    return tuple(key), tuple(values)


def _check_contiguous(kernel: Any, name: str, argument: Any) -> None:
    """Raises a ValueError if a tensor of an argument is not contiguous and not `strided`."""
    for path, leaf in named_arguments(name, argument):
        if isinstance(leaf, Tensor) and not leaf.is_contiguous() and path not in kernel.strided:
            raise ValueError(f"{kernel.__name__}: {path} {tuple(leaf.shape)} has strides {leaf.stride()}")


def current_gpu(tensor: Tensor) -> int | None:
    """Returns the number of the current GPU, or None if the tensor is on another GPU."""
    number: int = tensor.get_device()
    return number if number == torch.cuda.current_device() else None


def programs(n: int, block: int) -> int:
    """Returns the number of programs of a one-dimensional grid that process ``block`` elements each."""
    n_programs = -(-n // block)
    if n_programs > GRID_MAX:
        raise ValueError(
            f"{n} elements in blocks of {block} need {n_programs} programs; a launch can have at most {GRID_MAX}"
        )
    return n_programs


def check_threads(tensor: Tensor, n_programs: int, num_warps: int) -> None:
    """Raises UnsupportedError for more threads than HIP can launch on the tensor's GPU."""
    threads = num_warps * torch.cuda.get_device_properties(tensor.device).warp_size
    if n_programs * threads > HIP_THREADS_MAX:
        raise UnsupportedError(
            f"width: {n_programs:,} programs of {threads} threads are more than HIP launches on an AMD GPU (2^32 "
            "threads); render smaller images, fewer cameras at a time, or with a larger tile_size"
        )


def indices_of(flags: Tensor) -> Tensor:
    """Returns the indices [m] int64 of nonzero flags [n], integers. Waits for the device."""
    if is_compiled_for_cpu(flags):
        array = flags.numpy()  # takes a seventh of the time of PyTorch's nonzero
        return torch.from_numpy((array.view(np.bool_) if array.itemsize == 1 else array).nonzero()[0])
    return flags.nonzero().squeeze(1)


def to_device(values: Tensor, like: Tensor) -> Tensor:
    """Copies a tensor from the CPU to the device of another tensor, asynchronously."""
    return values.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else values


def vendor(tensor: Tensor) -> Vendor:
    """Returns the vendor of the tensor's device, or "none" for CPU tensors."""
    if not tensor.is_cuda:
        return "none"
    return "nvidia" if torch.version.hip is None else "amd"


def is_compiled_for_cpu(tensor: Tensor) -> bool:
    """Returns whether kernels on this tensor are compiled for the CPU: neither run on a GPU nor interpreted."""
    return vendor(tensor) == "none" and not INTERPRETED


def block_size(tensor: Tensor, gpu: int, cpu: int = CPU_BLOCK) -> int:
    """Returns the number of elements per program: ``gpu`` on GPUs and in the interpreter, ``cpu`` on CPUs."""
    return cpu if is_compiled_for_cpu(tensor) else gpu


def has_ptx(tensor: Tensor) -> bool:
    """Returns whether kernels on this tensor may contain PTX instructions."""
    return vendor(tensor) == "nvidia"


def is_amd(tensor: Tensor) -> bool:
    """Returns whether kernels on this tensor are compiled for AMD GPUs."""
    return vendor(tensor) == "amd"


def has_fast_fp32(tensor: Tensor) -> bool:
    """Returns whether kernels on this tensor compute in fp32 on an NVIDIA GPU.

    Their constant ``FAST`` then selects PTX, 16-byte loads and approximate instructions.
    """
    return has_ptx(tensor) and tensor.dtype == torch.float32


def prefetch_distance(tensor: Tensor) -> int:
    """Returns the number of list entries by which a walk prefetches ahead. It is 0 on GPUs, where warps hide misses."""
    return CPU_PREFETCH_DISTANCE if is_compiled_for_cpu(tensor) else 0
