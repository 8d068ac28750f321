"""Memory layouts and lazy views of tensors, which must not change the bits of a result."""

from collections.abc import Callable

import torch
from torch import Tensor

VIEWS = {
    "negative": lambda t: torch._neg_view(-t),
    "imaginary part of a conjugate": lambda t: torch.complex(torch.zeros_like(t), -t).conj().imag,
    "real part of a conjugate": lambda t: torch.complex(t, torch.ones_like(t)).conj().real,
    "negative, every other": lambda t: torch._neg_view(with_layout(-t, "every other")),
    "zero": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
}
"""Views of floating-point tensors; all except "zero" have the values of the tensor."""
LAYOUTS = ("contiguous", "every other", "transposed", "offset", "expanded", *VIEWS)


def with_layout(tensor: Tensor, layout: str) -> Tensor:
    """Returns a tensor with equal values in another memory layout; memory between the values has other values."""
    if layout in VIEWS:
        return VIEWS[layout](tensor) if tensor.dtype in (torch.float32, torch.float64) else tensor
    if layout == "contiguous" or tensor.dim() == 0:
        return tensor
    if layout == "expanded":
        return tensor[:1].expand(tensor.shape)
    if layout == "transposed":
        axes = list(reversed(range(tensor.dim())))
        return tensor.permute(axes).contiguous().permute(axes)
    sizes = [2 * size + 1 for size in tensor.shape]
    filler = torch.ones(sizes, dtype=tensor.dtype) if tensor.dtype != torch.bool else torch.rand(sizes) < 0.5
    step = 2 if layout == "every other" else 1
    part = filler[tuple(slice(1, 1 + step * size, step) for size in tensor.shape)]
    part.copy_(tensor)
    return part


def _behind(n: int) -> Callable[[Tensor], Tensor]:
    """Returns a layout in C order that starts n elements into its memory, and so is not aligned to 16 bytes."""
    return lambda t: torch.cat([t.new_full((n,), 7.0), t.flatten(), t.new_full((5,), 7.0)])[n:-5].view(t.shape)


def _odd_strides(t: Tensor) -> Tensor:
    """Returns a view of a tensor whose leading axis of size 1 has an unusual stride."""
    return t.flatten().as_strided((1, *t.shape), (12345, *t.contiguous().stride()))[0]


def _windows(t: Tensor) -> Tensor:
    """Returns values that overlap in memory: rows start one element apart."""
    return t.flatten().as_strided(t.shape, (1,) * t.dim())


MORE: dict[str, Callable[[Tensor], Tensor]] = {
    "columns of a table": lambda t: torch.cat([t, t, t], -1)[..., t.shape[-1] : 2 * t.shape[-1]],
    "every other row": lambda t: torch.stack([t, -t], 1).flatten(0, 1)[::2],
    "every third value": lambda t: torch.stack([t, -t, 2 * t], -1)[..., 0],
    "channels first": lambda t: t.movedim(-1, 0).contiguous().movedim(0, -1),
    "last axes swapped": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "first axes swapped": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t,
    "behind one value": _behind(1),
    "behind two values": _behind(2),
    "behind three values": _behind(3),
    "behind four values": _behind(4),
    "odd strides of size 1": _odd_strides,
    "overlapping": _windows,
    "one value": lambda t: (
        t.flatten()[:1].expand(t.numel()).view(t.shape) if t.dim() < 2 else t[:1, :1].expand(t.shape)
    ),
    "last axis of one value": lambda t: t[..., :1].expand(t.shape),
    "integers as floats": lambda t: t.contiguous().view(torch.int32).clone().view(torch.float32),
    "real and imaginary parts": lambda t: torch.view_as_real(torch.complex(t, -t))[..., 0],
    "shared memory": lambda t: t.clone().share_memory_(),
    "of NumPy": lambda t: torch.from_numpy(t.detach().numpy().copy()),
    "of NumPy, columns first": lambda t: torch.from_numpy(t.detach().numpy().copy(order="F")),
    "negative columns": lambda t: torch._neg_view(MORE["columns of a table"](-t)),
    "negative, transposed": lambda t: torch._neg_view(with_layout(-t, "transposed")),
    "negative, behind one value": lambda t: torch._neg_view(_behind(1)(-t)),
    "negative of one value": lambda t: torch._neg_view(-t[:1]).expand(t.shape),
}
"""More layouts. The values are those of the tensor, except for layouts that overlap or repeat one value."""


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """Applies any layout of both lists; see :func:`with_layout`."""
    return MORE[layout](tensor) if layout in MORE else with_layout(tensor, layout)
