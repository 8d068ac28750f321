"""Argument checks. Each raises a typed error that names the argument, describes its value, and suggests a fix."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, SupportsFloat

import numpy as np
import torch
from torch import Tensor

from .config import PRESETS, SH_DEGREE_MAX, TILE_SIZES, CameraModel, Numerics, RollingShutterType
from .errors import ArgumentError, ArgumentTypeError, DeviceError, DtypeError, ShapeError, UnsupportedError
from .scalars import check_choice, check_size, describe, to_int

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
BOOLS = frozenset({torch.bool})
DTYPES = {
    FLOATS: ("a floating-point tensor of 16, 32 or 64 bits", "float"),
    INTEGERS: ("a tensor of integers", "int"),
    BOOLS: ("a bool tensor", "bool"),
}
"""Sets of dtypes -> a description for messages, and the tensor method that converts to one of the dtypes."""

TRANSFORMS = (
    "torch.func transforms (vmap, grad, jvp, ...) are not implemented; instead of vmap use leading batch dimensions, "
    "instead of grad use torch.autograd.grad"
)


def check_bool(name: str, value: object) -> bool:
    """Checks that a value is True, False, 1 or 0, of any type such as NumPy's. Returns it as a bool."""
    if value is True or value is False:
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, (int, np.bool_, np.integer)) and value in (0, 1):
        return bool(value)
    raise ArgumentError(f"{name}: expected True or False, found {describe(value)}")


def check_number(name: str, value: object, least: float = -math.inf, finite: bool = False) -> float:
    """Checks that a value is a number of any type, such as a tensor with one element. Returns it as a float.

    NaN is always refused.

    Args:
        least: The smallest allowed value.
        finite: Whether infinity is refused.
    """
    number = value if type(value) is float else math.nan
    if type(value) is not float and isinstance(value, SupportsFloat):  # checking a protocol is slow
        if isinstance(value, Tensor):
            check_no_grad(name, value)
        with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
            number = float(value)
    if math.isnan(number) or number < least or (finite and math.isinf(number)):
        kind = "a finite number" if finite else "a number"
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise ArgumentError(f"{name}: expected {kind}{bound}, found {describe(value)}")
    return number


def check_culling(
    near_plane: object, far_plane: object, radius_clip: object, eps2d: object, numerics: Numerics, model: CameraModel
) -> tuple[float, float, float, float]:
    """Checks the arguments of culling. Returns near_plane, far_plane, radius_clip and eps2d as floats."""
    near, far = check_number("near_plane", near_plane), check_number("far_plane", far_plane)
    if near > far:
        raise ArgumentError(f"far_plane: expected at least near_plane, {near:g}, found {far:g}; are they swapped?")
    if (nearest := numerics.nearest(near, model)) > far:
        raise ArgumentError(
            f"far_plane: expected at least {nearest:g}, the least depth of {model} cameras with "
            f"numerics={numerics.name!r}, found {far:g}"
        )
    clip = check_number("radius_clip", radius_clip, finite=True)
    return near, far, clip, check_number("eps2d", eps2d, 0.0, finite=True)


_plain_keys: set[int] = set()
"""Dispatch key sets of tensors that passed :func:`plain`: one int describes a type of tensor and is fast to look up."""


def plain(name: str, tensor: Tensor) -> Tensor:
    """Returns a tensor whose memory kernels can read: strided, with lazy negation and conjugation resolved.

    Raises:
        UnsupportedError: The tensor is sparse, nested, quantized, fake or wrapped.
        DeviceError: The tensor is on the meta device.
        ArgumentError: The memory of the tensor was freed, as by ``untyped_storage().resize_(0)``.
    """
    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    if keys in _plain_keys:
        if not tensor.data_ptr() and tensor.numel():
            raise ArgumentError(f"{name}: expected values, found a tensor {list(tensor.shape)} whose memory was freed")
        return tensor
    if tensor.is_meta:
        raise DeviceError(f"{name}: is on {tensor.device}, which holds no values; pass a tensor on the CPU or a GPU")
    problem = _unsupported_type(tensor)
    if problem:
        raise UnsupportedError(f"{name}: {problem}")
    if tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor():
        return converted_from(tensor.clone(), tensor)
    _plain_keys.add(keys)
    return plain(name, tensor)


def converted_from(tensor: Tensor, given: Tensor) -> Tensor:
    """Links a converted tensor to the tensor that was given, so that :func:`set_absgrad` reaches both. Returns it."""
    if tensor is not given:
        tensor.converted_from = given  # type: ignore[attr-defined]
    return tensor


def set_absgrad(centers: Tensor, absgrad: Tensor) -> None:
    """Sets ``.absgrad`` of projected centers and of the tensors that they were converted from, in each one's dtype."""
    tensor: Tensor | None = centers
    while tensor is not None:
        tensor.absgrad = absgrad.to(tensor.dtype)  # type: ignore[attr-defined]
        tensor = getattr(tensor, "converted_from", None)


def tensor_key(value: object) -> Any:
    """Returns a cache key of a tensor: shape, dtype, device and whether it requires a gradient.

    Returns None for a tensor of a type that has not passed :func:`plain`, and the type of a value that is no tensor.
    """
    if not isinstance(value, Tensor):
        return type(value)
    keys = torch._C._dispatch_keys(value).raw_repr()
    return (value.shape, value.dtype, value.device, value.requires_grad, keys) if keys in _plain_keys else None


def _unsupported_type(tensor: Tensor) -> str | None:
    """Says why kernels cannot read a tensor, and what to pass instead. Returns None if they can."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return TRANSFORMS
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        return "batched gradients (is_grads_batched, vectorize) are not implemented; compute one gradient at a time"
    cls = type(tensor)
    if cls.__name__ in ("FakeTensor", "FunctionalTensor") or torch._is_functional_tensor(tensor):
        return "fake tensors (FakeTensorMode, torch.export) are not implemented; pass real tensors"
    if cls.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"expected a plain tensor, found a {cls.__name__}, which is not implemented; convert it to a plain one"
    if tensor.is_nested:
        return "nested tensors are not implemented; pass one scene at a time"
    if tensor.is_quantized:
        return "quantized tensors are not implemented; pass tensor.dequantize()"
    if tensor.layout != torch.strided:
        return f"tensors of layout {tensor.layout} are not implemented; pass tensor.to_dense()"
    if not torch._C._has_storage(tensor):
        return "tensors without storage are not implemented; pass a plain tensor"
    return None


def check_tile_size(value: object) -> int:
    """Checks the side length of a tile in pixels, and returns it as an int."""
    tile_size = check_size("tile_size", value)
    if tile_size not in TILE_SIZES:
        raise UnsupportedError(
            f"tile_size: {tile_size} is not implemented; use one of {TILE_SIZES} (the image is the same)"
        )
    return tile_size


def check_tensor(
    name: str,
    value: object,
    shape: Sequence[Any],
    meaning: str,
    remedy: str = "",
    dtypes: frozenset[torch.dtype] = FLOATS,
) -> Tensor:
    """Checks that a value is a tensor of a shape, by default of floating-point numbers, and returns it.

    Args:
        shape: The expected sizes. None matches any size; a leading ``...`` matches any number of dimensions.
        meaning: Description of the shape for messages.
        remedy: Advice for messages if the shape differs; may be empty.
        dtypes: ``FLOATS``, ``INTEGERS`` or ``BOOLS``.
    """
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"{name}: expected a tensor {meaning}, found {type(value).__name__}")
    if not torch.compiler.is_compiling():
        value = plain(name, value)
    if value.dtype not in dtypes:
        wanted, method = DTYPES[dtypes]
        raise DtypeError(f"{name}: expected {wanted}, found {value.dtype}; convert it with .{method}()")
    sizes = tuple(value.shape)
    if len(shape) and shape[0] is ...:
        shape = [*sizes[: max(len(sizes) - len(shape) + 1, 0)], *shape[1:]]
    if len(sizes) != len(shape) or any(want is not None and have != want for have, want in zip(sizes, shape)):
        wanted = ", ".join("?" if size is None else str(size) for size in shape)
        advice = f"; {remedy}" if remedy else ""
        raise ShapeError(f"{name}: expected {meaning}, here [{wanted}], found {list(sizes)}{advice}")
    return value


def check_backgrounds(backgrounds: object, images: Sequence[int], channels: int | None, meaning: str) -> Tensor:
    """Checks backgrounds [*images, D], with any D if `channels` is None. Returns them; one image also accepts [D]."""
    if isinstance(backgrounds, Tensor) and backgrounds.dim() == 1 and math.prod(images) == 1:
        backgrounds = backgrounds.view(*images, -1)
    return check_tensor("backgrounds", backgrounds, [*images, channels], meaning)


def check_devices(tensors: dict[str, Tensor | None]) -> None:
    """Raises unless all tensors that are not None are on the device of the first."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(given))
    for name, tensor in given.items():
        if tensor.device != given[first].device:
            raise DeviceError(
                f"{name}: is on {tensor.device}, but {first} is on {given[first].device}; use {name}.to({first}.device)"
            )


def check_ids(name: str, ids: object, end: int, shape: Sequence[Any] = (...,), meaning: str = "[M]") -> None:
    """Raises unless a tensor of integers has a shape, and on the CPU, values from 0 to end - 1.

    Values on a GPU are not checked, as that would wait for the device.
    """
    ids = check_tensor(name, ids, shape, meaning, dtypes=INTEGERS)
    if ids.device.type != "cpu" or ids.numel() == 0:
        return
    first, last = (int(bound) for bound in ids.to(torch.int64).aminmax())
    if first < 0 or last >= end:
        allowed = f"integers from 0 to {end - 1}" if end else "no entries"
        raise ArgumentError(f"{name}: expected {allowed}, found {first} to {last}")


def check_tile_lists(name: str, offsets: Tensor, flatten_ids: Tensor, n_rows: int) -> None:
    """Raises unless offsets are ascending indices into flatten_ids, and these are rows. Checks values on the CPU only.

    Args:
        name: Name of the offsets in messages.
        offsets: Index of the first intersection of each tile.
        flatten_ids: [M] row of each intersection.
        n_rows: The number of rows.
    """
    check_ids("flatten_ids", flatten_ids, n_rows, [None])
    check_ids(name, offsets, flatten_ids.numel() + 1)
    if offsets.device.type == "cpu" and bool((offsets.flatten().to(torch.int64).diff() < 0).any()):
        raise ArgumentError(f"{name}: expected ascending offsets, found descending ones; pass offsets of sorted ids")


def check_sh_degree(value: object, n_bases: int, name: str = "sh_degree") -> int:
    """Checks that a degree is supported and has enough bases. Returns it as an int."""
    sh_degree = to_int(value)
    if sh_degree is None or not 0 <= sh_degree <= SH_DEGREE_MAX:
        raise ArgumentError(f"{name}: expected an int from 0 to {SH_DEGREE_MAX}, found {describe(value)}")
    if n_bases < (sh_degree + 1) ** 2:
        raise ShapeError(
            f"{name}: degree {sh_degree} needs {(sh_degree + 1) ** 2} bases, but the coefficients have {n_bases}; "
            f"lower {name} or pass more coefficients"
        )
    return sh_degree


def check_numerics(numerics: object) -> Numerics:
    """Returns the numerics preset with a name; raises if there is none."""
    check_choice("numerics", numerics, tuple(PRESETS))
    return PRESETS[str(numerics)]


def check_rolling_shutter(name: object) -> None:
    """Raises unless a value is the name of a :class:`RollingShutterType`."""
    check_choice("rolling_shutter", name, tuple(RollingShutterType.__members__))


def check_no_grad(name: str, tensor: Tensor) -> None:
    """Raises if a tensor that is not differentiable requires a gradient."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(f"{name}: its gradient is not implemented; pass {name}.detach()")


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Returns the dtype that all stages compute and accumulate in: fp64 if any tensor is fp64, otherwise fp32."""
    return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32


def is_per_camera(colors: Tensor, sh_degree: int | None, n_batch_dims: int) -> bool:
    """Returns whether colors, or SH coefficients if a degree is given, have a camera dimension."""
    return colors.dim() == n_batch_dims + (3 if sh_degree is None else 4)


def check_colors(
    colors: object,
    sh_degree: int | None,
    batch: torch.Size,
    n_cameras: int,
    n_gaussians: int,
    names: tuple[str, str] = ("colors", "sh_degree"),
    *,
    n_higher: int = 0,
) -> int:
    """Checks colors or SH coefficients, per Gaussian or per camera and Gaussian. Returns the number of channels.

    `n_higher` is the number of coefficients per Gaussian in a second tensor.
    """
    n_own_dims = 1 if sh_degree is None else 2
    meaning = (
        "[..., N, D] or [..., C, N, D]"
        if sh_degree is None
        else "[..., N, K, D] or [..., C, N, K, D], as " + names[1] + " is given"
    )
    per_camera = isinstance(colors, Tensor) and is_per_camera(colors, sh_degree, len(batch))
    leading = [*batch, n_cameras, n_gaussians] if per_camera else [*batch, n_gaussians]
    has_bases = isinstance(colors, Tensor) and colors.dim() > len(batch) + 2
    remedy = f"for SH coefficients pass {names[1]}" if sh_degree is None and has_bases else ""
    tensor = check_tensor(names[0], colors, leading + [None] * n_own_dims, meaning, remedy)
    if sh_degree is not None:
        check_sh_degree(sh_degree, tensor.shape[-2] + n_higher, names[1])
    if tensor.shape[-1] == 0:
        raise ShapeError(f"{names[0]}: expected at least one channel, found {list(tensor.shape)}")
    return tensor.shape[-1]
