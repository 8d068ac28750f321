"""Stage: what is visible goes to the rank whose camera sees it, and gradients come back; absent on one rank.

Every rank owns some Gaussians and some cameras. It projects its Gaussians on all cameras and sends each visible row to
the camera's rank, which so holds all rows of its own cameras, in the order of one process that has all Gaussians.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import struct
import weakref
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..data import Rows, sum_rows
from ..errors import ArgumentError, DeviceError, DisagreementError, PeerError
from .autograd import once_differentiable

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

RECORD_BYTES = 4096
"""What a rank says about its call before anything depends on it."""

MESSAGE_LENGTH = 1200
"""Of an error, in that record."""


class Ranks:
    """The ranks of a process group that render together; what one owns is known to all after :meth:`agreeing`.

    Attributes:
        rank, size: This rank and their number, within the group.
        n_gaussians, n_cameras: Of every rank.
        differentiable: Whether any rank wants any gradient; then the backward passes of all exchange.
        differentiable_cameras: Whether any rank wants that of its viewmats.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.n_gaussians = [0] * self.size
        self.n_cameras = [0] * self.size
        self.differentiable = False
        self.differentiable_cameras = False
        self._group = group
        self._device_types = sorted(device.type for device in group._device_types)
        # The same on every rank, wherever its tensors lie.
        self._record_device = torch.device("cpu" if "cpu" in self._device_types else self._device_types[0])

    def check_device(self, means: Tensor) -> None:
        """Raises `DeviceError` where the group's backend cannot send from the tensor's device."""
        if means.device.type not in self._device_types:
            raise DeviceError(
                f"means: lies on {means.device}, but the process group sends from {' and '.join(self._device_types)} "
                "only; move the tensors, or make the group with a backend for that device"
            )

    def exchange_records(
        self, counts: list[int], words: dict[str, str]
    ) -> tuple[list[list[int]], list[dict[str, str]]]:
        """Four numbers and the words of every rank; equal words are one object."""
        text = json.dumps(words).encode().ljust(RECORD_BYTES - 32)
        assert len(text) == RECORD_BYTES - 32
        own = torch.frombuffer(bytearray(struct.pack("4q", *counts) + text), dtype=torch.uint8).to(self._record_device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(every, own, group=self._group)
        records = [record.tobytes() for record in torch.stack(every).cpu().numpy()]
        known = {text: json.loads(text) for text in {record[32:] for record in records}}
        return [list(struct.unpack("4q", r[:32])) for r in records], [known[r[32:]] for r in records]

    def agree(self, counts: list[list[int]], words: list[dict[str, str]]) -> None:
        """Takes the numbers of rows from the records of ranks, all of whose settings must be equal.

        Raises:
            PeerError: A rank sent an error in place of settings.
            DisagreementError: Settings differ.
        """
        errors = [f"rank {rank} stopped with {said['error']}" for rank, said in enumerate(words) if "error" in said]
        if errors:
            raise PeerError("; ".join(errors))
        complaints = []
        for name in words[0] if any(said is not words[0] for said in words) else ():
            holders: dict[str, list[int]] = {}
            for rank, said in enumerate(words):
                holders.setdefault(said[name], []).append(rank)
            if len(holders) > 1:
                found = ", ".join(
                    f"{value} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
                    for value, ranks in holders.items()
                )
                complaints.append(f"{name}: {found}")
        if complaints:
            raise DisagreementError(f"{'; '.join(complaints)}; ranks that render together need the same")
        self.n_gaussians, self.n_cameras, wanted, wanted_of_cameras = (list(column) for column in zip(*counts))
        self.differentiable, self.differentiable_cameras = any(wanted), any(wanted_of_cameras)

    def gather(self, own: Tensor, counts: list[int]) -> Tensor:
        """Rows of all ranks one after the other, of which each has counts[rank]."""
        if not any(counts):
            return own
        padded = own.new_zeros(max(counts), *own.shape[1:])
        padded[: len(own)] = own
        every = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(every, padded, group=self._group)
        return torch.cat([rows[:count] for rows, count in zip(every, counts)])

    def send(self, rows: Tensor, counts: list[int], received_counts: list[int]) -> Tensor:
        """Sends the first counts[0] rows to rank 0, and so on; what came from rank 0 is first."""
        received = rows.new_empty(sum(received_counts), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), received_counts, counts, group=self._group)
        return received

    def send_counts(self, counts: list[int]) -> list[int]:
        """Tells each rank how many rows it will get; returns how many come from each."""
        own = torch.tensor(counts, device=self._record_device)
        received: list[int] = self.send(own, [1] * self.size, [1] * self.size).tolist()
        return received


def join(group: ProcessGroup | None) -> Ranks | None:
    """The ranks of a process group, by default of all processes; None where there is one.

    Raises:
        ArgumentError: There is no process group, or this process is not in it.
    """
    if not dist.is_available():
        raise ArgumentError("distributed: this PyTorch was built without torch.distributed; pass distributed=False")
    if not dist.is_initialized():
        raise ArgumentError(
            "distributed: there is no process group; start the ranks with torchrun and call "
            "torch.distributed.init_process_group() in each, or pass distributed=False"
        )
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise ArgumentError(
            f"group: expected a torch.distributed.ProcessGroup that this process belongs to, found {group!r}"
        )
    return None if dist.get_world_size(group) == 1 else Ranks(group)


@contextlib.contextmanager
def agreeing(ranks: Ranks | None, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A region of checks that ends alike on every rank; what it adds to the record it yields is compared, too.

    The region ends with :func:`describe`. On one rank, None, the checks are all there is.

    Raises:
        DisagreementError: Settings differ; on every rank.
        PeerError: The region raised on another rank.
    """
    record: dict[str, Any] = {"settings": dict(settings), "counts": [0] * 4}
    try:
        yield record
    except Exception as error:
        if ranks is not None:
            text = "".join(c if " " <= c <= "~" else "?" for c in f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH])
            # What is wrong here is to be said here, also where it cannot be sent.
            with contextlib.suppress(RuntimeError):
                ranks.exchange_records([0] * 4, {"error": text})
        raise
    if ranks is not None:
        words = {name: _word(value) for name, value in record["settings"].items()}
        ranks.agree(*ranks.exchange_records(record["counts"], words))


def _word(value: object) -> str:
    """Equal numbers in equal words: 1 and 1.0 are the same setting."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)[:60]


def describe(
    record: dict[str, Any],
    ranks: Ranks,
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    dtype: torch.dtype,
) -> None:
    """Adds what :func:`agreeing` needs to know of the tensors, whose shapes go together.

    Raises:
        DeviceError: The group's backend cannot send from where they lie.
    """
    ranks.check_device(means)
    record["settings"] |= {
        "device": means.device.type,
        "compute dtype": dtype,
        "colors dtype": colors.dtype,
        "colors per Gaussian": list(colors.shape[1:]),
        "grad mode": torch.is_grad_enabled(),
    }
    inputs = (means, quats, scales, covars, opacities, colors, viewmats)
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    wanted_of_cameras = torch.is_grad_enabled() and viewmats.requires_grad
    record["counts"] = [means.shape[0], viewmats.shape[0], int(wanted), int(wanted_of_cameras)]


def _anchor(wanted: bool, device: torch.device) -> Tensor | None:
    """An input that puts a function into the graph of this rank, as it is in that of a rank with gradients to find."""
    return torch.zeros((), device=device, requires_grad=True) if wanted else None


class _GatherCameras(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, viewmats: Tensor, Ks: Tensor, _anchor: Tensor | None, ranks: Ranks) -> tuple[Tensor, Tensor]:
        ctx.ranks = ranks
        every = ranks.gather(torch.cat([viewmats[0].flatten(1), Ks[0].flatten(1)], 1), ranks.n_cameras)
        Ks = every[:, 16:].reshape(1, len(every), 3, 3)
        ctx.mark_non_differentiable(Ks)
        return every[:, :16].reshape(1, len(every), 4, 4), Ks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Tensor, ...], v_viewmats: Tensor, _v_Ks: Tensor) -> tuple[Tensor | None, ...]:
        ranks: Ranks = ctx.ranks
        own = ranks.n_cameras[ranks.rank]
        found = ranks.send(v_viewmats[0], ranks.n_cameras, [own] * ranks.size)
        return found.view(ranks.size, 1, own, 4, 4).sum(0), None, None, None


def gather_cameras(ranks: Ranks, viewmats: Tensor, Ks: Tensor) -> tuple[Tensor, Tensor]:
    """Cameras of all ranks, rank by rank: [1, C of this rank, ...] -> [1, C of all, ...] each.

    What each rank finds for the gradient of a view matrix is summed on its owner, in the order of ranks.
    """
    anchor = _anchor(ranks.differentiable_cameras, viewmats.device)
    cameras: tuple[Tensor, Tensor] = _GatherCameras.apply(viewmats, Ks, anchor, ranks)  # type: ignore[no-untyped-call]
    return cameras


@dataclasses.dataclass(frozen=True)
class _Route:
    """Which rows go where.

    Attributes:
        sent: [S] int64, the rows that are sent, by destination.
        row_ids: [S] int64, their flat index into [C of all, N of this rank].
        counts, received_counts: Rows sent to and received from each rank.
    """

    sent: Tensor
    row_ids: Tensor
    counts: list[int]
    received_counts: list[int]


@torch.no_grad()
def _find_route(ranks: Ranks, rows: Rows) -> _Route:
    row_ids = rows.row_ids
    if row_ids is None:
        row_ids = sent = (rows.radii > 0).all(-1).nonzero().squeeze(1)
    else:
        sent = torch.arange(row_ids.numel(), device=row_ids.device)
    # Rows come camera by camera, and so rank by rank.
    ends = torch.tensor(list(accumulate(ranks.n_cameras)), device=row_ids.device) * rows.n_gaussians
    bounds = [0, *torch.searchsorted(row_ids, ends).tolist()]
    counts = [end - begin for begin, end in pairwise(bounds)]
    return _Route(sent, row_ids, counts, ranks.send_counts(counts))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        depths: Tensor,
        conics: Tensor,
        opacities: Tensor,
        features: Tensor | None,
        feature_ids: Tensor | None,
        radii: Tensor,
        _anchor: Tensor | None,
        ranks: Ranks,
        route: _Route,
        drawn: list[weakref.ref[Tensor]] | None,
    ) -> tuple[Tensor | None, ...]:
        n_gaussians = max(ranks.n_gaussians[ranks.rank], 1)
        columns = [t[route.sent] for t in (means2d.reshape(-1, 2), depths, conics, opacities)]
        ids = route.sent if feature_ids is None else feature_ids[route.sent]
        if features is not None:
            columns.append(features[ids].to(means2d.dtype))
        integers = (radii[route.sent], route.row_ids // n_gaussians, route.row_ids % n_gaussians)
        columns += [t.to(torch.int32) for t in integers]
        received = _unpack(ranks.send(_pack(columns), route.counts, route.received_counts), columns)
        *rows, camera_ids, gaussian_ids = received

        # In the order of one process: by camera, then by Gaussian, which are counted on from rank to rank.
        firsts = torch.tensor([0, *accumulate(ranks.n_gaussians)][:-1], device=radii.device)
        lengths = torch.tensor(route.received_counts, device=radii.device)
        camera_ids = camera_ids.to(torch.int64) - sum(ranks.n_cameras[: ranks.rank])
        gaussian_ids = gaussian_ids + torch.repeat_interleave(firsts, lengths, output_size=len(gaussian_ids))
        row_ids, order = (camera_ids * sum(ranks.n_gaussians) + gaussian_ids).sort()
        *floats, radii = (t[order] for t in rows)

        ctx.save_for_backward(order, ids)
        ctx.ranks, ctx.route, ctx.drawn = ranks, route, drawn
        ctx.shape, ctx.n_features, ctx.features_are_rows = means2d.shape, 0, feature_ids is None
        if features is not None:
            ctx.n_features, ctx.features_dtype = len(features), features.dtype
        # The attribute belongs on the very tensor that the caller holds.
        ctx.absgrad_target = None if drawn is None else means2d
        ctx.mark_non_differentiable(radii, row_ids)
        if features is None:
            return (*floats, None, radii, row_ids)
        return (*floats, radii, row_ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], *v_rows: Tensor | None) -> tuple[Tensor | None, ...]:
        order, ids = saved
        ranks: Ranks = ctx.ranks
        route: _Route = ctx.route
        columns = [v for v in v_rows[:5] if v is not None]
        if ctx.drawn is not None:
            # None where nothing was composited on the way.
            absgrad = getattr(ctx.drawn[0](), "absgrad", None)
            columns.append(torch.zeros_like(columns[0]) if absgrad is None else absgrad)
        v_received = [torch.empty_like(v).index_copy_(0, order, v) for v in columns]
        v_sent = _unpack(ranks.send(_pack(v_received), route.received_counts, route.counts), columns)

        def put(v: Tensor) -> Tensor:
            """Gradients of the rows that were sent among those of all rows."""
            return v.new_zeros(ctx.shape[:-1].numel(), *v.shape[1:]).index_copy_(0, route.sent, v)

        v_means2d, v_depths, v_conics, v_opacities = (put(v) for v in v_sent[:4])
        v_features = None
        if v_rows[4] is not None:
            v_features = put(v_sent[4]) if ctx.features_are_rows else sum_rows(v_sent[4], ids, ctx.n_features)
            v_features = v_features.to(ctx.features_dtype)
        if ctx.absgrad_target is not None:
            ctx.absgrad_target.absgrad = put(v_sent[-1]).view(ctx.shape)
        return v_means2d.view(ctx.shape), v_depths, v_conics, v_opacities, v_features, *(None,) * 6


def exchange(
    ranks: Ranks,
    rows: Rows,
    means2d: Tensor,
    features: Tensor | None,
    feature_ids: Tensor | None,
    *,
    absgrad: bool,
) -> tuple[Rows, Tensor | None]:
    """Sends visible rows to the ranks that own their cameras.

    Args:
        rows: This rank's Gaussians on the cameras of all ranks.
        means2d: The same tensor as in rows, of any leading dimensions; it gets `.absgrad` on the way back.
        features: [G, D] of any float type, or None.
        feature_ids: [R] int64, which of the G a row has, or None where G = R.
        absgrad: Whether means2d of what is returned will have `.absgrad` when gradients come back.

    Returns:
        The rows of all ranks' Gaussians on this rank's cameras, packed, and their features [nnz, D] in the compute
        dtype.
    """
    assert rows.opacities is not None
    drawn: list[weakref.ref[Tensor]] | None = [] if absgrad else None
    *floats, received_features, radii, row_ids = _Exchange.apply(  # type: ignore[no-untyped-call]
        means2d,
        rows.depths,
        rows.conics,
        rows.opacities,
        features,
        feature_ids,
        rows.radii,
        _anchor(ranks.differentiable, means2d.device),
        ranks,
        _find_route(ranks, rows),
        drawn,
    )
    means2d, depths, conics, opacities = floats
    if drawn is not None:
        # Not the tensor itself, which holds on to the graph that would hold on to it.
        drawn.append(weakref.ref(means2d))
    n_cameras, n_gaussians = ranks.n_cameras[ranks.rank], sum(ranks.n_gaussians)
    received = Rows(n_cameras, n_gaussians, row_ids, radii, means2d, depths, conics, None, opacities)
    return received, received_features


def _pack(columns: list[Tensor]) -> Tensor:
    """Rows of 4 and 8 byte numbers, [R, ...] each -> [R, words] int32."""
    return torch.cat([t[..., None].flatten(1).contiguous().view(torch.int32) for t in columns], 1)


def _unpack(packed: Tensor, like: list[Tensor]) -> list[Tensor]:
    """What was packed, with trailing dimensions and element types as in `like`."""
    sizes = [math.prod(t.shape[1:]) * t.element_size() // 4 for t in like]
    columns = (t.clone(memory_format=torch.contiguous_format) for t in torch.split(packed, sizes, 1))
    return [c.view(t.dtype).view(len(packed), *t.shape[1:]) for c, t in zip(columns, like)]
