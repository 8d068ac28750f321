"""Stage: exchange of projected Gaussians between ranks. Skipped on a single rank.

Each rank holds some Gaussians and some cameras. It projects its Gaussians with the cameras of all ranks and sends each
visible row to the rank of the camera. A rank then has all rows of its cameras, in the order in which a single process
would have them. Gradients are sent back along the same routes.
"""

import dataclasses
import math
import weakref
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ..data import Cameras, Features, ProjectedGaussians, sum_by_id
from ..runtime.autograd import once_differentiable
from ..runtime.bundles import flatten, restore, structure
from .agreement import Ranks
from .inputs import camera_fields


def _anchor(differentiable: bool, device: torch.device) -> Tensor | None:
    """Makes a dummy input that requires a gradient, so that all ranks or none have an autograd node."""
    return torch.zeros((), device=device, requires_grad=True) if differentiable else None


class _GatherCameras(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ranks: Ranks, like: Cameras, _anchor: Tensor | None, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.ranks, ctx.like = ranks, like
        columns = [t[0] for t in tensors if t is not None]
        packed = ranks.all_gather(_pack([(column, None) for column in columns]), ranks.n_cameras)
        gathered = (_unpack(words, column) for words, column in zip(_split(packed, columns), columns, strict=True))
        cameras: Cameras = restore(like, [None if t is None else next(gathered)[None] for t in tensors])
        fields = camera_fields(cameras)
        constant = [getattr(cameras, name) for name, field in fields.items() if not field.differentiable]
        ctx.mark_non_differentiable(*(t for t in constant if t is not None))
        return tuple(flatten(cameras))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Tensor, ...], *v: Tensor | None) -> tuple[Tensor | None, ...]:
        ranks: Ranks = ctx.ranks
        n_own, fields = ranks.n_cameras[ranks.rank], camera_fields(ctx.like)
        v_cameras: list[Tensor | None] = []
        for field, v_field in zip(fields.values(), v):
            if field.differentiable and v_field is not None:
                received = ranks.all_to_all(v_field[0], ranks.n_cameras, [n_own] * ranks.world_size)
                v_cameras.append(received.view(ranks.world_size, 1, n_own, *v_field.shape[2:]).sum(0))
            else:
                v_cameras.append(None)
        return None, None, None, *v_cameras


def gather_cameras(ranks: Ranks | None, cameras: Cameras, device: torch.device) -> Cameras:
    """Gathers the cameras of all ranks in rank order: [1, C of this rank, ...] -> [1, C of all ranks, ...].

    In the backward pass, the rank that holds a camera sums its gradients from all ranks, in rank order.
    """
    if ranks is None:
        return cameras
    anchor = _anchor(ranks.any_cameras_require_grad, device)
    like = structure(cameras)
    gathered: Cameras = restore(like, _GatherCameras.apply(ranks, like, anchor, *flatten(cameras)))  # type: ignore[no-untyped-call]
    return gathered


@dataclasses.dataclass(frozen=True)
class _Route:
    """The rows to send to each rank.

    Attributes:
        sent: [S] int64, rows to send, ordered by destination; None for all rows, in their order.
        dense_ids: [S] int64, index of each of these rows in [C of all ranks, N of this rank].
        counts, received_counts: Number of rows sent to and received from each rank.
    """

    sent: Tensor | None
    dense_ids: Tensor
    counts: list[int]
    received_counts: list[int]


@torch.no_grad()
def _find_route(ranks: Ranks, projected: ProjectedGaussians) -> _Route:
    dense_ids, sent = projected.dense_ids, None
    if dense_ids is None:
        dense_ids = sent = (projected.radii > 0).all(-1).nonzero().squeeze(1)
    # Rows are ordered by camera, and so by rank.
    ends = torch.tensor(list(accumulate(ranks.n_cameras)), device=dense_ids.device) * projected.n_gaussians
    bounds = [0, *torch.searchsorted(dense_ids, ends).tolist()]
    counts = [end - begin for begin, end in pairwise(bounds)]
    return _Route(sent, dense_ids, counts, ranks.exchange_counts(counts))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        depths: Tensor,
        shapes: Tensor,
        opacities: Tensor,
        features: Tensor | None,
        feature_ids: Tensor | None,
        radii: Tensor,
        _anchor: Tensor | None,
        ranks: Ranks,
        route: _Route,
        received_means2d: list[weakref.ref[Tensor]] | None,
    ) -> tuple[Tensor | None, ...]:
        n_gaussians, sent = max(ranks.n_gaussians[ranks.rank], 1), route.sent
        ids = sent if feature_ids is None else feature_ids if sent is None else feature_ids[sent]
        columns = [(t, sent) for t in (means2d.reshape(-1, 2), depths, shapes, opacities)]
        if features is not None and features.dtype == means2d.dtype:
            columns.append((features, ids))
        elif features is not None:
            columns.append(((features if ids is None else features[ids]).to(means2d.dtype), None))
        integers = (route.dense_ids // n_gaussians, route.dense_ids % n_gaussians)
        columns += [(radii, sent), *[(t.to(torch.int32), None) for t in integers]]
        like = [_without_rows(t) for t, _ in columns]
        packed = _pack(columns)
        del columns, integers  # memory peaks in what follows
        packed = ranks.all_to_all(packed, route.counts, route.received_counts)
        *parts, camera_ids, gaussian_ids = _split(packed, like)

        # The order of a single process: by camera, then by Gaussian, with ids that count over all ranks.
        firsts = torch.tensor([0, *accumulate(ranks.n_gaussians)][:-1], device=radii.device)
        lengths = torch.tensor(route.received_counts, device=radii.device)
        dense_ids = (camera_ids[:, 0].to(torch.int64) - sum(ranks.n_cameras[: ranks.rank])) * sum(ranks.n_gaussians)
        dense_ids += gaussian_ids[:, 0]
        dense_ids += torch.repeat_interleave(firsts, lengths, output_size=len(packed))
        dense_ids, order = dense_ids.sort()
        *floats, radii = (_unpack(words, t, order) for words, t in zip(parts, like))

        ctx.save_for_backward(order, ids)
        ctx.ranks, ctx.route, ctx.received_means2d = ranks, route, received_means2d
        ctx.shape, ctx.n_features, ctx.features_are_rows = means2d.shape, 0, feature_ids is None
        if features is not None:
            ctx.n_features, ctx.features_dtype = len(features), features.dtype
        # `.absgrad` is set on the tensor that the caller holds.
        ctx.absgrad_target = None if received_means2d is None else means2d
        ctx.mark_non_differentiable(radii, dense_ids)
        if features is None:
            return (*floats, None, radii, dense_ids)
        return (*floats, radii, dense_ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], *v_received: Tensor | None) -> tuple[Tensor | None, ...]:
        order, ids = saved
        ranks: Ranks = ctx.ranks
        route: _Route = ctx.route
        columns = [(v, None) for v in v_received[:5] if v is not None]
        if ctx.received_means2d is not None:
            # There is no absgrad if the loss does not depend on the images.
            absgrad = getattr(ctx.received_means2d[0](), "absgrad", None)
            columns.append((torch.zeros_like(columns[0][0]) if absgrad is None else absgrad, None))
        like = [_without_rows(v) for v, _ in columns]
        packed = ranks.all_to_all(_pack(columns, order), route.received_counts, route.counts)
        v_sent = (_unpack(words, v) for words, v in zip(_split(packed, like), like, strict=True))

        def scatter(v: Tensor) -> Tensor:
            """Scatters gradients of sent rows to all rows; zero elsewhere."""
            if route.sent is None:
                return v
            return v.new_zeros(ctx.shape[:-1].numel(), *v.shape[1:]).index_copy_(0, route.sent, v)

        v_means2d, v_depths, v_shapes, v_opacities = (scatter(next(v_sent)) for _ in range(4))
        v_features = None
        if v_received[4] is not None:
            v_rows = next(v_sent)
            v_features = scatter(v_rows) if ctx.features_are_rows else sum_by_id(v_rows, ids, ctx.n_features)
            v_features = v_features.to(ctx.features_dtype)
        if ctx.absgrad_target is not None:
            ctx.absgrad_target.absgrad = scatter(next(v_sent)).view(ctx.shape)
        return v_means2d.view(ctx.shape), v_depths, v_shapes, v_opacities, v_features, *(None,) * 6


def exchange(
    ranks: Ranks | None, projected: ProjectedGaussians, features: Features, *, absgrad: bool
) -> tuple[ProjectedGaussians, Features]:
    """Sends visible rows to the ranks that hold their cameras. Returns its arguments on a single rank.

    Takes this rank's Gaussians on the cameras of all ranks. Returns all ranks' Gaussians on this rank's cameras,
    packed, with features [nnz, D] in the compute dtype. With `absgrad`, the backward pass sends ``.absgrad`` of the
    returned ``means2d`` back, and sets it on ``projected.means2d``.
    """
    if ranks is None:
        return projected, features
    assert projected.opacities is not None
    received_means2d: list[weakref.ref[Tensor]] | None = [] if absgrad else None
    *floats, values, radii, dense_ids = _Exchange.apply(  # type: ignore[no-untyped-call]
        projected.means2d,
        projected.depths,
        projected.shapes,
        projected.opacities,
        features.values,
        None if features.ids is None else features.ids.ids,
        projected.radii,
        _anchor(ranks.any_requires_grad, projected.means2d.device),
        ranks,
        _find_route(ranks, projected),
        received_means2d,
    )
    means2d, depths, shapes, opacities = floats
    if received_means2d is not None:
        # A weak reference avoids a cycle: the tensor holds the graph, which holds this list.
        received_means2d.append(weakref.ref(means2d))
    n_cameras, n_gaussians = ranks.n_cameras[ranks.rank], sum(ranks.n_gaussians)
    received = ProjectedGaussians(n_cameras, n_gaussians, dense_ids, radii, means2d, depths, shapes, None, opacities)
    return received, Features(values, None)


def _without_rows(values: Tensor) -> Tensor:
    """Returns an empty tensor with the trailing dimensions and the dtype of `values`, which does not keep them."""
    return values.new_empty(0, *values.shape[1:])


def _pack(columns: Sequence[tuple[Tensor, Tensor | None]], places: Tensor | None = None) -> Tensor:
    """Packs tensors [R, ...] of 4 or 8 byte elements into one tensor [R, words] int32, one after the other.

    Args:
        columns: Tensors, with the ids of the rows to pack; None for all rows.
        places: [R] int64, the row of the result for each row; None for the same.
    """
    n = next(len(values if ids is None else ids) for values, ids in columns)
    packed = columns[0][0].new_empty(n, sum(_n_words(values) for values, _ in columns), dtype=torch.int32)
    for words, (values, ids) in zip(_split(packed, [values for values, _ in columns]), columns, strict=True):
        rows = values if ids is None else values[ids]
        rows = rows[..., None].flatten(1).contiguous().view(torch.int32)
        if places is None:
            words.copy_(rows)
        else:
            words.index_copy_(0, places, rows)
    return packed


def _n_words(values: Tensor) -> int:
    """Returns the number of words of 4 bytes of a row."""
    return math.prod(values.shape[1:]) * values.element_size() // 4


def _split(packed: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """Splits packed rows into the words of each tensor."""
    return torch.split(packed, [_n_words(values) for values in like], 1)


def _unpack(words: Tensor, like: Tensor, order: Tensor | None = None) -> Tensor:
    """Returns the rows `order`, or all rows, of a packed tensor. Trailing dimensions and dtype are those of `like`."""
    rows = words.clone(memory_format=torch.contiguous_format) if order is None else words.index_select(0, order)
    return rows.view(like.dtype).view(len(rows), *like.shape[1:])
