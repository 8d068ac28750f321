"""A rendering call, traced while the stages run it: its passes, and where these leave what the caller sees."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ..config import Capacities
from ..data import N_NEEDED
from ..errors import UnsupportedError
from ..output_maps import IN_META
from ..precision import full_precision
from ..runtime.tracing import Memory, Step, Trace, storage_of
from ..stages.capacity import deferred
from ..stages.intersection import BandedIntersections
from ..stages.meta import Rendered
from .arenas import (
    SPECIALIZED_ALIGNMENT,
    Bases,
    Life,
    Output,
    Slots,
    View,
    add_arena,
    add_arena_with_end,
    add_output,
    arrange,
    leaves,
    lives_of,
    marked,
    tensors_of,
    used_steps,
)
from .replay import Pass, runs_on_gpu

ROWS = {"depths": "depths", "opacities": "opacities", "conics": "conics", "ray_transforms": "conics",
        "normals": "normals"}  # fmt: skip
"""Values of ``meta`` that have gradients of their own, and the fields of ``ProjectedGaussians`` that have them."""

ALWAYS = 2**62
"""The last step of a storage that is needed after its pass."""

ABSGRAD = -1
"""Stands for the number of an input in place of ``absgrad`` of centers."""


class BackwardPass(NamedTuple):
    """A backward pass.

    Attributes:
        steps: The pass.
        inputs: The numbers of the inputs whose gradients it completes; one more than those of tensors is that of
            ``gradient_2dgs``.
        gradients: The view of each gradient; None if images do not depend on the input.
        outputs: The bases that it allocates: of gradients, and of what the other pass reads.
        cleared: The base of these that begins with zeros, and their number; None if there are none.
        scratch: The base of the arena that does not leave it, and its size in bytes.
        slots: The slots of compositing, at the end of this arena, of which a call uses a part only; or None.
        saved: The bases of the forward pass that it reads, the first of those that its steps take.
        given: The bases of gradients that it is given, which follow.
    """

    steps: Pass
    inputs: list[int]
    gradients: list[View | None]
    outputs: list[Output]
    cleared: tuple[int, int] | None
    scratch: tuple[int, int]
    slots: Slots | None
    saved: list[int]
    given: list[int]

    @property
    def results(self) -> list[int]:
        """The bases that hold its results: its outputs, and others that gradients are in."""
        own = [output.base for output in self.outputs]
        return list(dict.fromkeys(own + [view.base for view in self.gradients if view is not None]))

    def clear(self, bases: dict[int, Tensor]) -> None:
        """Sets those elements of its outputs to zero."""
        if self.cleared is not None:
            base, n = self.cleared
            if torch.is_anomaly_enabled():  # which looks for values that are not finite
                bases[base].zero_()
            elif n:
                bases[base][:n].zero_()


class PackedRows(NamedTuple):
    """Tensors of packed rows, with room for all rows: which rows they are, [n] int64, and their centers, [n, 2]."""

    ids: Any
    centers: Any


class _Record(NamedTuple):
    """What happened in a traced call.

    Attributes:
        steps: Of the forward pass, then of the backward pass from images to centers, then of that to the inputs.
        n_forward, split: Where the second and the third of these begin.
        inputs: The tensors among the arguments.
        images: What the function returned but ``meta``, and behind that the images in ``meta``.
        n_images: The number of the former.
        in_meta: For each image in ``meta``, its number.
        values: The values of ``meta`` that are not computed when they are read.
        rendered, banded: What the others are computed from, with the intersections in place of their bands.
        needed: What lists needed.
        v_images: The gradients of images.
        gradients: For inputs, by number, and for ``ABSGRAD``: the gradient, or None.
        packed: The packed rows, or None.
        v_centers, v_rows: Gradients of centers, of packed ones if rows are packed; and of what else projection
            returned, by its name.
        zeros: Gradients, by name, of what images do not depend on; that of ``means2d`` has all rows.
        on_gpu: Whether kernels run on a GPU, or an emulated one.
        used_slots: By storage of slots: how many of the first are used, and the bytes of each.
    """

    steps: list[Step]
    n_forward: int
    split: int
    inputs: list[Tensor]
    images: list[Tensor | None]
    n_images: int
    in_meta: dict[str, int]
    values: dict[str, Any]
    rendered: Any
    banded: BandedIntersections
    needed: Tensor
    v_images: list[Tensor]
    gradients: dict[int, Tensor | None]
    packed: PackedRows | None
    v_centers: Tensor | None
    v_rows: dict[str, Tensor]
    zeros: dict[str, Tensor]
    on_gpu: bool
    used_slots: dict[int, tuple[Memory, int]]


def _record(
    function: Callable[..., Any], arguments: dict[str, Any], v_strides: Mapping[int, tuple[int, ...]], is_packed: bool
) -> _Record:
    """Traces a function, and the gradients of all its images."""
    inputs = [value for value in arguments.values() if isinstance(value, Tensor)]
    on_gpu = runs_on_gpu(inputs[0])
    trace = Trace(runs=False, counts_slots=on_gpu)
    with deferred() as calls:
        *images, meta = trace.record(functools.partial(function, **arguments))
    (call,) = calls
    values, rendered, n_images = dict(dict.items(meta)), meta.source, len(images)
    packed = _pack_rows(trace, values, call.needed) if is_packed else None
    n_forward = len(trace.steps)
    banded = rendered.intersections
    named = [output.meta for output in IN_META if output.meta in values]
    extra = {n: values[n] for n in named if values[n].shape[:-1] == images[0].shape[:-1]}  # or values of rows
    images += [image for image in extra.values() if all(image is not other for other in images)]
    in_meta = {name: next(i for i, other in enumerate(images) if other is image) for name, image in extra.items()}
    differentiable = {i: image for i, image in enumerate(images) if image is not None and image.requires_grad}
    roots = list(differentiable.values())
    v_images = [_zeros_like(root, v_strides.get(i)) for i, root in differentiable.items()]
    centers = values["means2d"]
    rows = {name: getattr(rendered.projected, name) for name in set(ROWS.values())} | {"means2d": centers}
    rows = {name: row for name, row in rows.items() if row is not None and row.requires_grad}
    targets: dict[Any, Tensor] = {
        i: t for i, t in enumerate([*inputs, values.get("gradient_2dgs")]) if t is not None and t.requires_grad
    }
    v_inputs: dict[Any, Tensor | None] = {}
    zeros: dict[str, Tensor] = {}
    marks: list[int] = []
    v_packed: list[Tensor] = []

    def leave(v_centers: Tensor) -> Tensor | None:
        """Ends the first backward pass with the gradient of centers, and begins the second one."""
        if packed is None:
            marks.append(len(trace.steps))
            return None
        v_packed.append(_gather_rows(packed, call.needed, v_centers, is_zero="means2d" in zeros))
        marks.append(len(trace.steps))
        return _scatter_rows(packed, call.needed, v_packed[0]).view_as(v_centers)

    if roots:
        with torch.autograd.set_multithreading_enabled(False):
            # What images do not depend on has a gradient of zeros, to which callers may add.
            reached = _edges_from(roots)
            zeros = {n: torch.zeros_like(row) for n, row in rows.items() if get_gradient_edge(row)[:2] not in reached}
            if "means2d" in rows:
                centers.register_hook(leave)
            targets |= {name: row for name, row in rows.items() if name not in zeros}
            given, v_given = [*roots, *[rows[name] for name in zeros]], [*v_images, *zeros.values()]
            sources = list(targets.values())
            gradients = trace.record(lambda: torch.autograd.grad(given, sources, v_given, allow_unused=True))
        v_inputs = dict(zip(targets, gradients, strict=True)) | zeros
        if any(v_inputs[name] is None for name in rows):
            raise UnsupportedError("a backward pass gives no gradient to what images depend on")
    if not trace.others.keys() <= {storage_of(tensor) for tensor in (*inputs, *v_images, *zeros.values())}:
        raise UnsupportedError("a tensor is neither an argument nor made by the call")
    v_centers = v_inputs.pop("means2d", None)
    if v_packed:
        (v_centers,) = v_packed
    v_rows = {name: v for name in rows if (v := v_inputs.pop(name, None)) is not None}
    if (absgrad := getattr(centers, "absgrad", None)) is not None:
        v_inputs[ABSGRAD] = absgrad
    rendered = rendered._replace(intersections=rendered.intersections.whole)
    wanted = leaves(
        (images, rendered, list(values.values()), call.needed, list(v_inputs.values()), v_centers, packed), Tensor
    )
    used = used_steps(
        trace.steps,
        {storage_of(t) for t in (*wanted, *v_rows.values())} | {n.storage for n, _ in trace.used_slots.values()},
    )
    split = min(marks, default=len(trace.steps))
    return _Record(
        list(itertools.compress(trace.steps, used)), sum(used[:n_forward]), sum(used[:split]), inputs, images,
        n_images, in_meta, values, rendered, banded, call.needed, v_images, v_inputs, packed, v_centers, v_rows, zeros,
        on_gpu, trace.used_slots,
    )  # fmt: skip


def _pack_rows(trace: Trace, values: Mapping[str, Any], needed: Tensor) -> PackedRows:
    """Adds steps that pack the rows of a call. They are counted before the device is waited for."""
    from ..kernels import packed_rows

    begin, radii = len(trace.steps), values["radii"].detach().view(-1, 2)
    ends = trace.record(lambda: packed_rows.packed_ends(radii, _n_packed(needed)))
    n_counting = len(trace.steps) - begin
    centers = values["means2d"].detach().view(-1, 2)
    packed = PackedRows(*trace.record(lambda: packed_rows.pack_rows(ends, centers)))
    counting = trace.steps[begin : begin + n_counting]
    del trace.steps[begin : begin + n_counting]
    place = _last_use(trace.steps, needed) + 1
    trace.steps[place:place] = counting
    return packed


def _gather_rows(packed: PackedRows, needed: Tensor, v: Tensor, *, is_zero: bool) -> Tensor:
    """Adds the step that packs gradients of centers. If these are zero, their memory only is needed."""
    from ..kernels.packed_rows import gather_rows

    if is_zero:
        return torch.empty_like(packed.centers)
    return gather_rows(packed.ids, _n_packed(needed), v.detach().contiguous().view(-1, 2))


def _scatter_rows(packed: PackedRows, needed: Tensor, v: Tensor) -> Tensor:
    from ..kernels.packed_rows import scatter_rows

    return scatter_rows(packed.ids, _n_packed(needed), v)


def _n_packed(needed: Tensor) -> Tensor:
    """Returns the element behind what lists needed, [1] int64, which counts packed rows."""
    return needed.as_strided((1,), (1,), needed.storage_offset() + N_NEEDED)


def _last_use(steps: Sequence[Step], tensor: Tensor) -> int:
    """Returns the number of the last step that uses a tensor."""
    storage = storage_of(tensor)
    return max(i for i, step in enumerate(steps) if any(used.storage == storage for used in tensors_of(step)))


def _zeros_like(tensor: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """Returns zeros of the shape and dtype of a tensor, with these strides, or in C order."""
    zeros = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    return zeros if strides is None else zeros.as_strided(zeros.shape, strides)


def _edges_from(roots: list[Tensor]) -> set[tuple[Any, int]]:
    """Returns the inputs of all nodes of autograd that gradients of roots reach, as nodes and numbers of outputs."""
    reached: set[tuple[Any, int]] = set()
    todo: list[Any] = [root.grad_fn for root in roots]
    while todo:
        edges = {edge for edge in todo.pop().next_functions if edge[0] is not None} - reached
        todo += [node for node, _ in edges]
        reached |= edges
    return reached


class TracedCall:
    """The passes of a kind of call, and the views of what it returns.

    Args:
        function: The rendering function, which runs the stages.
        arguments: Of a call with room for its lists (``with_room``).
        v_strides: Strides of gradients of images, by their numbers; of others C order.
        is_exact: Whether the caller gave no capacity.
        is_packed: Whether the caller gets packed rows.

    Attributes:
        room: What lists have room for.
        is_exact: As given.
        n_inputs: The number of tensors among the arguments. They are the first bases.
        device: Where it runs.
        on_gpu: As in :class:`_Record`.
        forward: The forward pass; on a GPU or if rows are packed in two parts, after the first of which it is known
            what lists need, and how many rows are packed.
        outputs: The bases that it allocates for images, centers and ``gradient_2dgs``; behind them, for packed rows.
        packed: The bases of these, or None.
        kept, scratch: The bases of its arenas, and their sizes in bytes. The first is needed by backward passes and
            ``meta``, the second not after the pass.
        images, n_images, in_meta: As in :class:`_Record`, with views.
        differentiable: Which images are, by number.
        centers: The view of ``means2d``.
        leaf: That of ``gradient_2dgs``, or None.
        names: The values of ``meta`` that are not made when they are read, in their order.
        constants: Those that are not tensors.
        rows: The views of those that are, by name.
        rendered, bands, budget: What describes the rest of ``meta``, with views in place of tensors.
        needed: The view of what lists needed, [5] int64: see ``needed`` of :class:`tsplat.data.Intersections`.
        counted: The same with the number of packed rows behind it, [6] int64.
        described: The bases that ``meta`` reads.
        of_images: From the gradients of images to those of centers, and of inputs that need no more.
        of_centers: From there to the other inputs; None if these do not depend on centers.
        v_images, v_views: The bases of the gradients of images, and their views; None for those in C order.
        v_centers: The base of the gradient of centers, packed ones if there are any, and whether images depend on
            these.
        v_carrier: That of all else that goes from one backward pass to the other, an arena of the dtype of centers. It
            is the gradient of a tensor, the carrier.
        crossing: The bases of both, or none.
        v_row: For values of ``meta``, the view of their gradient in ``v_carrier``.
        zero: The carrier, before it is expanded. Its value does not matter.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        v_strides: Mapping[int, tuple[int, ...]],
        *,
        is_exact: bool,
        is_packed: bool,
    ) -> None:
        self.is_exact = is_exact
        enabled = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(enabled), full_precision():
            own = {n: copy_with_layout(v, enabled) if isinstance(v, Tensor) else v for n, v in arguments.items()}
            record = _record(function, own, v_strides, is_packed)
        self.room: Capacities = record.rendered.options.capacity
        bases = Bases()
        self._place_forward(record, bases)
        self._describe(record, bases)
        self._place_backward(record, bases)

    def _place_forward(self, record: _Record, bases: Bases) -> None:
        self.n_inputs = len(record.inputs)
        for tensor in record.inputs:
            bases.add(Memory.of(tensor))
        centers, leaf = record.values["means2d"], record.values.get("gradient_2dgs")
        leaving = [tensor for tensor in (*record.images, centers, leaf) if tensor is not None]
        if any(bases.has(storage_of(tensor)) for tensor in leaving):
            raise UnsupportedError("an image is a view of an input")
        self.outputs = [add_output(bases, tensor) for tensor in leaving if not bases.has(storage_of(tensor))]
        self.packed: PackedRows | None = None
        if record.packed is not None:
            self.packed = PackedRows(*[add_output(bases, tensor, is_packed=True) for tensor in record.packed])
            self.outputs += self.packed
        steps, rest = record.steps[: record.n_forward], record.steps[record.n_forward :]
        lives = lives_of(steps, bases)
        later = {tensor.storage for step in rest for tensor in tensors_of(step)}
        later |= {storage_of(t) for t in leaves((record.rendered, *record.values.values(), record.needed), Tensor)}
        later |= {n.storage for n, _ in record.used_slots.values()}
        self.kept = add_arena(bases, [Life(s, life.size, 0, ALWAYS) for s, life in lives.items() if s in later])
        self.scratch = add_arena(bases, [life for s, life in lives.items() if s not in later])
        self.images = [
            None if image is None else marked(bases.view(image.detach()), self.outputs) for image in record.images
        ]
        self.n_images, self.in_meta = record.n_images, record.in_meta
        self.differentiable = [i for i, t in enumerate(record.images) if t is not None and t.requires_grad]
        self.centers = marked(bases.view(centers), self.outputs)
        self.leaf = None if leaf is None else bases.view(leaf)
        self.device, self.on_gpu = centers.device, record.on_gpu
        # On a GPU, a call reads what lists need as soon as the last ones are counted, before these are composited.
        n = _last_use(steps, record.needed) + 1
        parts = (steps[:n], steps[n:]) if self.on_gpu or self.packed is not None else (steps,)
        self.forward = [Pass(part, bases, range(bases.n), on_gpu=self.on_gpu) for part in parts]

    def _describe(self, record: _Record, bases: Bases) -> None:
        """Notes what ``meta`` has."""
        values, special = record.values, {"means2d", "gradient_2dgs", *record.in_meta}
        self.names = list(values)
        self.constants = {n: v for n, v in values.items() if not isinstance(v, Tensor)}
        self.rows = {n: bases.view(v) for n, v in values.items() if isinstance(v, Tensor) and n not in special}
        self.budget, self.bands = copy.copy(record.banded.budget), record.banded.bands
        self.budget.limit, self.budget.peak_bytes = None, 0
        self.rendered: Rendered = map_bundle(record.rendered, Tensor, bases.view)
        self.needed = bases.view(record.needed)
        self.counted = self.needed._replace(shape=torch.Size([N_NEEDED + 1]))
        views: list[View] = [*self.rows.values(), self.needed, self.centers]
        map_bundle(self.rendered, View, views.append)
        self.described = sorted({view.base for view in views})

    def _place_backward(self, record: _Record, bases: Bases) -> None:
        n_forward, dtype = bases.n, record.values["means2d"].dtype
        first, second = record.steps[record.n_forward : record.split], record.steps[record.split :]
        self.v_images = [add_output(bases, v) for v in record.v_images]
        self.v_views = [None if v.is_contiguous() else bases.view(v) for v in record.v_images]
        self.v_centers: tuple[Output, bool] | None = None
        if (v_centers := record.v_centers) is not None:
            output = add_output(bases, v_centers, is_packed=self.packed is not None)
            self.v_centers = output, "means2d" not in record.zeros
            if output.shape != (self.centers if self.packed is None else self.packed.centers).shape:
                raise UnsupportedError("the gradient of centers is a part of another tensor")
        if any(g is not None and bases.has(storage_of(g)) for g in record.gradients.values()):
            raise UnsupportedError("a gradient is a view of another tensor of the call")
        zeros = [v for name, v in record.v_rows.items() if name in record.zeros]
        lives, later = lives_of(first, bases), lives_of(second, bases)
        crossing = [life for storage, life in lives.items() if storage in later]
        if any(life.size % dtype.itemsize for life in crossing):
            raise UnsupportedError("what goes from one backward pass to the other has another dtype than centers")
        v_carrier, size, n_zeros = _arena_after_zeros(bases, zeros, crossing)
        self.v_carrier = Output(v_carrier, (max(size // dtype.itemsize, 1),), (1,), dtype)
        self.crossing = [] if self.v_centers is None else [self.v_centers[0].base, v_carrier]
        self.v_row = {name: bases.view(record.v_rows[of]) for name, of in ROWS.items() if of in record.v_rows}
        if any(view.base != v_carrier for view in self.v_row.values()):
            raise UnsupportedError("a gradient of rows does not go to the inputs")
        self.zero = torch.zeros(1, dtype=dtype, device=record.values["means2d"].device)
        passes = []
        for steps, own, is_second in ((first, lives, False), (second, later, True)):
            mine = {
                i: g for i, g in record.gradients.items() if (g is not None and storage_of(g) in later) == is_second
            }
            outputs = [add_output(bases, g) for g in mine.values() if g is not None and not bases.has(storage_of(g))]
            cleared = None
            if self.v_centers is not None and not is_second:
                outputs += [self.v_centers[0], self.v_carrier]
                cleared = v_carrier, n_zeros // dtype.itemsize
            inside = [life for storage, life in own.items() if not bases.has(storage)]
            scratch, slots = _add_scratch(bases, inside, record.used_slots)
            views = [None if g is None else marked(bases.view(g), outputs) for g in mine.values()]
            used = {bases.view(tensor).base for step in steps for tensor in tensors_of(step)}
            saved = sorted(base for base in used if base < n_forward)
            given = self.crossing if is_second else [output.base for output in self.v_images]
            order = [*saved, *given, *(output.base for output in outputs), scratch[0]]
            replayed = Pass(steps, bases, order, on_gpu=self.on_gpu)
            passes.append(BackwardPass(replayed, list(mine), views, outputs, cleared, scratch, slots, saved, given))
        self.of_images, self.of_centers = passes[0], None if v_centers is None else passes[1]


def _add_scratch(
    bases: Bases, lives: list[Life], used_slots: dict[int, tuple[Memory, int]]
) -> tuple[tuple[int, int], Slots | None]:
    """Adds the arena of a backward pass. Returns its base and size in bytes, and the tensor at its end of which a call
    uses a part only, if there is one."""
    end = next((life for life in lives if life.storage in used_slots), None)
    if end is None:
        return add_arena(bases, lives), None
    base, fixed, begin = add_arena_with_end(bases, [life for life in lives if life is not end], end)
    n, size = used_slots[end.storage]
    slots = Slots(bases.view(n), fixed, begin, size)
    return (base, slots.bytes(-(-end.size // size))), slots


def _arena_after_zeros(bases: Bases, zeros: list[Tensor], crossing: list[Life]) -> tuple[int, int, int]:
    """Adds a base for some storages behind those of zeros. Returns its number, its size, and that of the zeros, in
    bytes."""
    base, begin = bases.add(), 0
    sizes: list[int] = []
    for lives in ([Life(memory.storage, memory.size, 0, ALWAYS) for memory in map(Memory.of, zeros)], crossing):
        offsets, size = arrange([life._replace(first=0, last=ALWAYS) for life in lives])
        for storage, offset in offsets.items():
            bases.put(base, storage, begin + offset)
        begin += size
        sizes.append(size)
    return base, sum(sizes), sizes[0]


def copy_with_layout(tensor: Tensor, enabled: bool = False) -> Tensor:
    """Returns a copy with the same strides and the same alignment, in a storage of its own."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    offset = tensor.data_ptr() % SPECIALIZED_ALIGNMENT // tensor.itemsize
    with torch.no_grad():
        memory = tensor.detach().new_empty(offset + extent)
        memory[offset:].copy_(tensor.detach().as_strided((extent,), (1,)))
        copied = memory.as_strided(tensor.shape, tensor.stride(), offset).detach()
    return copied.requires_grad_(enabled and tensor.requires_grad)


def map_bundle(tree: Any, kind: type[Any], function: Callable[[Any], Any]) -> Any:
    """Returns a bundle with a function of each of its values of a kind in place of that."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, tuple):
        values = [map_bundle(value, kind, function) for value in tree]
        return type(tree)(values) if type(tree) in (tuple, list, torch.Size) else tuple.__new__(type(tree), values)
    return tree
