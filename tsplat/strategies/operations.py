"""Operations on Gaussians and their optimizers: duplicate, split, remove, relocate, add, reset, add noise.

Names and positional arguments are those of `gsplat.strategy.ops` 1.6. All operations work in place:

- `params` maps names to leaf tensors with a row per Gaussian: means [N, 3], scales [N, 3] before exp, quats [N, 4]
  (wxyz, any norm), opacities [N] or [N, 1] before sigmoid, and optionally others. Operations replace its entries.
  Those of :func:`relocate` keep their memory, of which it changes some rows; :func:`sample_add` and :func:`remove` move
  one tensor at a time. If memory runs out, an operation changes all rows or none.
- `optimizers` maps the same names to optimizers, each with only this parameter. The rows of their states are changed
  like those of the parameters. Parameters that do not require a gradient need no optimizer. Other names are ignored.
- `state` holds the statistics of a strategy. Tensors with a row per Gaussian are changed like the parameters.
- `scene`, if given, is notified of the change by a hook; see :class:`.gaussian_parameters.Follower`.

Random numbers come from `generator`, or PyTorch's global one if it is None. Operations raise `ArgumentError` if these
arguments do not match each other, see :func:`check_shapes` and :func:`check_optimizers`, and then change nothing.

With `ranks`, each rank has consecutive rows of all Gaussians, and operations are collective calls with the same result
as in a single process. Rows that an operation appends remain on the rank of their original until
:func:`.sharding.reshard`.
"""

import math

import torch
from torch import Tensor

from ..arguments import plain
from ..config import Backend
from ..errors import ArgumentError
from ..formulas import rotations
from ..runtime.backend import choose, launchers
from ..runtime.process_group import RankGroup
from .gaussian_parameters import (
    Follower,
    Optimizers,
    Parameters,
    State,
    check_finite,
    check_mask,
    check_min_opacity,
    check_opacity,
    check_optimizers,
    check_shapes,
    opacities_of,
)
from .random_numbers import BLOCK, draw_key, row_indices, sample_rows, standard_normal
from .relocation import check_binoms, compute_relocation
from .rows import _update_param_with_optimizer, append_zeros, enlarge, keep_rows, replace_rows
from .sharding import count, ranges, route

LOG_SPLIT = math.log(1.6)
"""Logarithm of the factor by which the scales of split Gaussians are divided."""

NOISE_MAX = 64.0
"""Upper bound of the length of a noise sample, with a margin: the Box-Muller transform of 31 bits is at most 9.3."""

SMALL = 2.0**-16
"""A coordinate of a mean is small if it is below this fraction of the largest coordinate in its block."""


@torch.no_grad()
def duplicate(
    params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, scene: Follower | None = None
) -> None:
    """Appends a copy of each Gaussian in a mask [N] bool. Moments of copies are zero; statistics are copied."""
    n = check_shapes(params, (), check_mask(mask))

    def copied(rows: Tensor) -> Tensor:
        return torch.cat([rows, rows[mask]])

    append = append_zeros(int(mask.sum()))
    replace_rows(params, optimizers, state, n, lambda _, p: copied(p), append, copied)
    if scene is not None:
        scene.on_duplicate(mask.nonzero().squeeze(1))


@torch.no_grad()
def remove(
    params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, scene: Follower | None = None
) -> None:
    """Removes the Gaussians in a mask [N] bool."""
    check_shapes(params, (), check_mask(mask))
    check_optimizers(params, optimizers, params)
    keep_rows(params, optimizers, state, (~mask).nonzero().squeeze(1))
    if scene is not None:
        scene.on_remove(mask)


@torch.no_grad()
def split(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    mask: Tensor,
    revised_opacity: bool = False,
    scene: Follower | None = None,
    *,
    generator: torch.Generator | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Replaces each Gaussian in a mask [N] bool by two smaller ones, at positions sampled from its distribution.

    The new rows are appended, all first halves before all second ones. Scales are divided by 1.6. Moments are zero;
    statistics are copied. With `revised_opacity`, opacities are 1 - sqrt(1 - o), so that both halves together are as
    opaque as the original ("Revising densification in Gaussian splatting", arXiv 2404.06109).
    """
    n = check_shapes(params, ("means", "scales", "quats"), check_mask(mask))
    check_optimizers(params, optimizers, params)
    k = int(mask.sum())
    first, total = count(ranks, k)
    scales = params["scales"].detach()[mask].exp()
    halves_of_all = torch.cat([row_indices(k, first, scales), row_indices(k, total + first, scales)])
    offsets = rotate(
        params["quats"].detach()[mask].repeat(2, 1),
        scales.repeat(2, 1) * standard_normal(draw_key(generator), halves_of_all, scales),
    )

    def repeated(rows: Tensor) -> Tensor:
        return rows[mask].repeat(2, *[1] * (rows.dim() - 1))

    def halves(name: str, p: Tensor) -> Tensor:
        both = repeated(p)
        if name == "means":
            both = both + offsets.to(both)
        elif name == "scales":
            both = both - LOG_SPLIT
        elif name == "opacities" and revised_opacity:
            both = revise_opacities(both)
        return torch.cat([p[~mask], both])

    append = append_zeros(2 * k)
    replace_rows(
        params, optimizers, state, n, halves, lambda moment: append(moment[~mask]),
        lambda rows: torch.cat([rows[~mask], repeated(rows)]),
    )  # fmt: skip
    if scene is not None:
        scene.on_split(mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1))


def revise_opacities(logits: Tensor) -> Tensor:
    """Returns the logits of 1 - sqrt(1 - o): two such Gaussians are together as opaque as one with opacity o."""
    return (1 - (1 - logits.sigmoid()).sqrt()).logit()


@torch.no_grad()
def reset_opa(params: Parameters, optimizers: Optimizers, state: State, value: float) -> None:
    """Limits opacities to at most `value`, after sigmoid, and sets their moments to zero.

    Raises:
        ArgumentError: `value` is not between 0 and 1.
    """
    check_opacity("value", value)
    check_shapes(params, ("opacities",))
    max_logit = math.log(value / (1 - value))
    _update_param_with_optimizer(
        lambda _, p: p.clamp_max(max_logit),
        lambda _, moment: torch.zeros_like(moment),
        params,
        optimizers,
        ["opacities"],
    )


def _copies(params: Parameters, chosen: Tensor, binoms: Tensor, min_opacity: float) -> dict[str, Tensor]:
    """Returns rows of all parameters, [K, ...], which are both the new values of chosen Gaussians and their copies.

    With the new opacities and scales, k + 1 copies of a Gaussian that was chosen k times look like the original.
    """
    counts = torch.bincount(chosen, minlength=len(params["scales"]))[chosen] + 1
    opacities, scales = compute_relocation(
        opacities_of(params)[chosen], params["scales"].detach()[chosen].exp(), counts, binoms
    )
    eps = torch.finfo(opacities.dtype).eps
    new = {"opacities": opacities.clamp(min_opacity, 1 - eps).logit(), "scales": scales.log()}
    # PyTorch rounds differently at the end of a tensor: all copies of a Gaussian get the values of the last one.
    _, places = torch.unique(chosen, return_inverse=True)
    last = torch.zeros_like(places).scatter_reduce_(
        0, places, torch.arange(len(chosen), device=places.device, dtype=places.dtype), "amax"
    )[places]
    return {
        name: new[name][last].view(-1, *p.shape[1:]).to(p) if name in new else p.detach()[chosen]
        for name, p in params.items()
    }


def _sampling_weights(params: Parameters) -> Tensor:
    opacities = opacities_of(params)
    if not opacities.isfinite().all():
        raise ArgumentError("weights: expected finite, nonnegative values; some opacities are invalid")
    return opacities


def _check_sampling(
    params: Parameters, optimizers: Optimizers, n: int | None, binoms: Tensor, min_opacity: float
) -> int:
    check_binoms(binoms)
    check_min_opacity(min_opacity)
    n = check_shapes(params, ("scales", "opacities"), n)
    check_optimizers(params, optimizers, params)
    return n


@torch.no_grad()
def relocate(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    mask: Tensor,
    binoms: Tensor,
    min_opacity: float = 0.005,
    scene: Follower | None = None,
    *,
    generator: torch.Generator | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Moves dead Gaussians to live ones, sampled by opacity with replacement, and divides the opacity among the copies.

    Moments and statistics of moved and of sampled Gaussians are set to zero. All tensors are changed in place.

    Args:
        mask: [N] bool, the dead Gaussians.
        binoms: [n_max, n_max] binomial coefficients; see :func:`.relocation.compute_relocation`.
        min_opacity: Lower limit of the new opacities, after sigmoid.

    Raises:
        ArgumentError: All Gaussians are dead, or opacities are not finite.
    """
    n_rows = _check_sampling(params, optimizers, check_mask(mask), binoms, min_opacity)
    n_own = int(mask.sum())
    n_dead, n_alive = count(ranks, n_own)[1], count(ranks, n_rows - n_own)[1]
    if n_dead == 0:
        return
    if n_alive == 0:
        raise ArgumentError(f"mask: all {n_dead} Gaussians are dead; expected at least one live one to move them to")
    weights = _sampling_weights(params).masked_fill(mask, 0.0)
    chosen = sample_rows(weights, n_dead, generator, ranks)
    # All new rows are computed before any is changed, so that an error changes nothing.
    new = _copies(params, chosen, binoms, min_opacity)
    move = route(ranks, ranges(ranks, len(chosen)), ranges(ranks, n_own))
    moved, dead = {name: move(rows) for name, rows in new.items()}, mask.nonzero().squeeze(1)

    def relocated(name: str, p: Tensor) -> Tensor:
        p = p.detach()
        p[chosen] = new[name]
        p[dead] = moved[name]
        return p

    def cleared(rows: Tensor) -> Tensor:
        rows[chosen] = rows[dead] = 0
        return rows

    replace_rows(params, optimizers, state, n_rows, relocated, cleared, cleared)
    if scene is not None:
        scene.on_relocate(mask.nonzero().squeeze(1), chosen)


@torch.no_grad()
def sample_add(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    n: int,
    binoms: Tensor,
    min_opacity: float = 0.005,
    scene: Follower | None = None,
    *,
    generator: torch.Generator | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Appends n copies of Gaussians, sampled as by :func:`relocate`. Their moments and statistics are zero.

    Raises:
        ArgumentError: As in :func:`relocate`, or `n` is negative.
    """
    n_rows = _check_sampling(params, optimizers, None, binoms, min_opacity)
    if n < 0:
        raise ArgumentError(f"n: expected 0 or more, found {n}")
    chosen = sample_rows(_sampling_weights(params), n, generator, ranks)
    append = enlarge(params, optimizers, len(chosen))
    new = _copies(params, chosen, binoms, min_opacity)

    def grown(name: str, p: Tensor) -> Tensor:
        p = append(p.detach())
        p[chosen] = p[n_rows:] = new[name]
        return p

    replace_rows(params, optimizers, state, n_rows, grown, append, append)
    if scene is not None:
        scene.on_sample_add(chosen)


@torch.no_grad()
def inject_noise_to_position(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    scaler: float,
    t: float = 0.005,
    k: float = 100.0,
    *,
    generator: torch.Generator | None = None,
    first: int = 0,
    backend: Backend = "auto",
) -> None:
    """Adds noise to the means of nearly transparent Gaussians, in proportion to their covariance.

    Args:
        scaler: Scale of the noise, usually the means' learning rate in world units times 5e5.
        t, k: The noise of a Gaussian with opacity o is multiplied by sigmoid(k (t - o)).
        first: Index of the first Gaussian among all ranks' Gaussians; the noise depends on these indices.
        backend: As in :func:`tsplat.rasterization`.

    Raises:
        ArgumentError: `scaler`, `t` or `k` is not finite.
    """
    check_shapes(params)
    for name, value in (("scaler", scaler), ("t", t), ("k", k)):
        check_finite(name, value)
    add_noise(params, draw_key(generator), scaler, t, k, first, backend)


def add_noise(
    params: Parameters, key: int | Tensor, scaler: float | Tensor, t: float, k: float, first: int, backend: Backend
) -> None:
    """Adds the noise of :func:`inject_noise_to_position`, given a random key.

    If the key, [] int64, and the scaler, [] fp64, are tensors, replays of the Triton kernels read their new values. If
    the scaler is a number, a CPU draws random numbers only for Gaussians that noise may move.
    """
    means = params["means"]
    tensors = [plain(name, params[name].detach()).contiguous() for name in ("means", "quats", "scales", "opacities")]
    on_cpu = means.device.type == "cpu"
    n = BLOCK if on_cpu else max(len(means), 1)
    mcmc_noise = launchers(means.device, backend).mcmc_noise
    # Not for the torch backend: PyTorch's sigmoid rounds differently at the end of a tensor.
    if on_cpu and not isinstance(scaler, Tensor) and choose(means.device, backend)[0] == "triton":
        moved = _rows_moved_by_noise(tensors[0], tensors[2], tensors[3], scaler, t, k)
    else:
        moved = None
    for begin in range(0, len(means) if moved is None else len(moved), n):
        if moved is None:
            rows = [tensor[begin : begin + n] for tensor in tensors]
            ids = row_indices(len(rows[0]), first + begin, means)
        else:
            ids = moved[begin : begin + n]
            rows = [tensor.index_select(0, ids) for tensor in tensors]
        samples = standard_normal(key, ids if moved is None else ids + first, means).contiguous()
        mcmc_noise(*rows, samples, scaler, t, k)
        if moved is not None:
            tensors[0].index_copy_(0, ids, rows[0])
    if tensors[0].data_ptr() != means.data_ptr():
        means.copy_(tensors[0])


def _rows_moved_by_noise(
    means: Tensor, log_scales: Tensor, opacity_logits: Tensor, scaler: float, t: float, k: float
) -> Tensor | None:
    """Returns the rows whose means noise may change, [n] int64, ascending; None if these may be more than half.

    For a Gaussian with opacity o and largest scale s, each coordinate of the noise is at most
    :data:`NOISE_MAX` · scaler · s² · exp(k (t - o)). A coordinate x of a mean does not change if |noise| < |x| eps / 4.
    With s of the largest Gaussian of a block, this gives a bound of the logits, above which means do not move unless
    they have a small coordinate.
    """
    if not (k > 0 and scaler):
        return None
    eps, logits, found = torch.finfo(means.dtype).eps, opacity_logits.flatten(), []
    for begin in range(0, len(means), BLOCK):
        block = slice(begin, begin + BLOCK)
        distances = means[block].abs()
        small = SMALL * float(distances.amax())
        if not 0 < small < math.inf:
            return None
        exponent = math.log(NOISE_MAX * abs(scaler)) + 2 * float(log_scales[block].amax()) - math.log(small * eps / 8)
        opacity = max(t + exponent / k, 1e-6)
        if not opacity < 1 - 1e-6:
            return None
        bound = math.log(opacity / (1 - opacity)) + 1e-3
        nearest = torch.minimum(torch.minimum(distances[:, 0], distances[:, 1]), distances[:, 2])
        is_still = (logits[block] > bound).logical_and_(nearest >= small)  # False for NaN
        found.append(is_still.logical_not_().nonzero().squeeze(1).add_(begin))
    rows = torch.cat(found) if found else None
    return rows if rows is not None and 2 * len(rows) <= len(means) else None


def rotate(quats: Tensor, vectors: Tensor) -> Tensor:
    """Rotates vectors [N, 3] by quaternions [N, 4] (wxyz, any norm)."""
    w, axis = (quats / quats.norm(dim=-1, keepdim=True)).to(vectors).split([1, 3], -1)
    return rotations.rotate(w, axis, vectors)
