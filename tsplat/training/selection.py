"""Selects the Gaussians that a view may show: only these are activated, rendered and, in training, differentiated.

Rows keep their order, and every value is computed as it is for all Gaussians, so that results are bit-identical with
and without a selection. PyTorch's sigmoid rounds differently at the end of a tensor, so it is computed for all
Gaussians.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..runtime.autograd import let_gradient_overwrite
from ..scene.cameras import Camera
from ..scene.culling import culls, rows_in_sight
from ..scene.gaussians import Gaussians
from .parameters import Parameters

ROWS_MIN, ROWS_STEP = 1024, 1.5
"""A selection has ROWS_MIN times a power of ROWS_STEP rows, as each number of rows requires its own pass."""

ROW_GRADIENT_VALUES_MIN = 16
"""Number of values per Gaussian from which a parameter has gradients of rows only. With fewer, Adam's kernel would take
longer."""

SHARE_MAX = 0.5
"""Maximum fraction of the Gaussians in a selection, including padding. Above it, copying rows costs more than it saves,
as a hidden Gaussian costs only about a third of a visible one."""


def select(gaussians: Gaussians, camera: Camera) -> Tensor | None:
    """Returns the rows of the Gaussians that a camera may see, [R] int64, ascending, padded with -1; None for all.

    Returns None for cameras without culling, as they see all Gaussians.
    """
    if not culls(camera) or len(gaussians) * SHARE_MAX < ROWS_MIN:
        return None
    near = {} if camera.near is None else {"near": camera.near}
    rows = rows_in_sight(gaussians.means.detach(), gaussians.log_scales.detach(), camera, **near)
    steps = math.ceil(math.log(max(len(rows), ROWS_MIN) / ROWS_MIN, ROWS_STEP))
    n_rows = math.ceil(ROWS_MIN * ROWS_STEP**steps)
    if n_rows > SHARE_MAX * len(gaussians):
        return None
    return torch.nn.functional.pad(rows, (0, n_rows - len(rows)), value=-1)


class _Activated(torch.autograd.Function):
    """Returns precomputed opacities in place of the sigmoid of logits [R], with the gradient of the sigmoid."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, opacities: Tensor) -> Tensor:
        ctx.save_for_backward(opacities)
        return opacities.view_as(opacities)

    @staticmethod
    def backward(ctx: Any, v_opacities: Tensor) -> tuple[Tensor, None]:
        (opacities,) = ctx.saved_tensors
        return torch.ops.aten.sigmoid_backward(v_opacities, opacities), None


@dataclasses.dataclass(frozen=True, eq=False)
class _SelectedGaussians(Gaussians):
    """Gaussians with precomputed opacities [N], which are zero in rows of padding."""

    known_opacities: Tensor | None = None

    @property
    def opacities(self) -> Tensor:
        opacities: Tensor = _Activated.apply(self.opacity_logits, self.known_opacities)  # type: ignore[no-untyped-call]
        return opacities


def shown_by(gaussians: Gaussians, camera: Camera) -> Gaussians:
    """Returns copies of the Gaussians that a camera may see, which render the same image, or all Gaussians.

    The Gaussians must not require gradients, and be 3D Gaussians on a CPU.
    """
    rows = select(gaussians, camera)
    if rows is None:
        return gaussians
    copies = gaussians.map(lambda tensor: tensor.index_select(0, rows.clamp_min(0)))
    return _SelectedGaussians(**vars(copies), known_opacities=_known_opacities(gaussians.opacity_logits, rows))


def _known_opacities(logits: Tensor, rows: Tensor) -> Tensor:
    """Returns the opacities of rows [R], zero in padding, with the rounding of the sigmoid of all logits [N]."""
    return logits.sigmoid().index_select(0, rows.clamp_min(0)).masked_fill_(rows < 0, 0.0)


class Selection:
    """Copies of rows of the Gaussians' parameters, with gradients of their own.

    Args:
        parameters: The parameters of all Gaussians.
        rows: See :func:`select`.
        renders_once: Whether the copies are rendered only once. Gradients of coefficients of spherical harmonics, of
            which there are most, then overwrite the copies.
        refills: Whether these coefficients are then copied again for the backward pass, and take no memory before.

    Attributes:
        rows: The rows.
        params: The copies, [R, ...], by the names of the parameters; padding is filled with the first row.
    """

    def __init__(self, parameters: Parameters, rows: Tensor, *, renders_once: bool, refills: bool) -> None:
        indices = rows.clamp_min(0)
        self.rows = rows
        self._parameters = parameters
        self.params = {
            name: parameter.detach().index_select(0, indices).requires_grad_()
            for name, parameter in parameters.params.items()
        }
        if renders_once:
            coeffs, copy = parameters.params["shN"].detach(), self.params["shN"]
            refill = functools.partial(torch.index_select, coeffs, 0, indices, out=copy.detach()) if refills else None
            let_gradient_overwrite(copy, refill)
        self._opacities = _known_opacities(parameters.params["opacities"].detach(), rows)

    def gaussians(self) -> Gaussians:
        """Returns the selected Gaussians. Padding is transparent."""
        gaussians = self._parameters.gaussians(params=self.params)
        return _SelectedGaussians(**vars(gaussians), known_opacities=self._opacities)

    def clear_gradients(self) -> None:
        """Discards the gradients of the copies."""
        for copy in self.params.values():
            copy.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Returns the gradients that backward passes have accumulated, by the names of the parameters."""
        return {
            name: torch.zeros_like(copy) if copy.grad is None else copy.grad.contiguous()
            for name, copy in self.params.items()
        }


def union(selections: Sequence[Tensor | None], n: int) -> Tensor | None:
    """Returns the rows of `n` Gaussians that any selection has, [U] int64, ascending; None if one has all Gaussians."""
    known = [rows for rows in selections if rows is not None]
    if len(known) < len(selections):
        return None
    is_shown = torch.zeros(n, dtype=torch.bool, device=known[0].device)
    for rows in known:
        is_shown[rows[rows >= 0]] = True
    return is_shown.nonzero().squeeze(1)


class SummedGradients:
    """Sums of the gradients of several views, of the Gaussians that any of the views may show.

    Args:
        parameters: The parameters of all Gaussians.
        selections: The rows of each view, see :func:`select`.

    Attributes:
        selections: The arguments, or only None if one of the views shows all Gaussians.
        rows: The :func:`union` of the selections; None for all Gaussians.
        gradients: The sums by the names of the parameters, [U, ...] or [N, ...]; None without a gradient.
    """

    def __init__(self, parameters: Parameters, selections: Sequence[Tensor | None]) -> None:
        self._parameters = parameters
        self.rows = union(selections, len(parameters.params["means"]))
        self.selections = [None] * len(selections) if self.rows is None else selections
        self.gradients: dict[str, Tensor | None] = dict.fromkeys(parameters.params)

    def add(self, rows: Tensor | None, gradients: Sequence[Tensor | None]) -> None:
        """Adds the gradients of a view, [R, ...] each, in the order of the parameters. `rows` is its selection."""
        places = None
        if self.rows is not None:
            assert rows is not None
            places = torch.searchsorted(self.rows, rows[: int((rows >= 0).sum())])
        for (name, parameter), gradient in zip(self._parameters.params.items(), gradients, strict=True):
            if gradient is None:
                continue
            if (total := self.gradients[name]) is None:
                n = len(parameter) if self.rows is None else len(self.rows)
                total = self.gradients[name] = gradient.new_zeros(n, *parameter.shape[1:])
            if places is None:
                total += gradient
            else:
                total.index_add_(0, places, gradient[: len(places)])


class DenseGradients:
    """Gradients of all Gaussians, which are zero except in some rows, in memory that is kept between steps.

    Those of parameters with many values per Gaussian stay gradients of rows: Adam's kernel updates their other rows
    with gradients of zero.

    Args:
        parameters: The parameters of all Gaussians.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._gradients: dict[str, Tensor] = {}
        self._rows: Tensor | None = None

    def update(self, rows: Tensor, gradients: Mapping[str, Tensor | None], changed: Mapping[str, float]) -> None:
        """Sets the gradients of parameters, or of their rows, given the gradients of `rows` [R], padded with -1.

        `changed` maps the name of each gradient to the weight of its regularization, which also changes other rows if
        the weight is not zero.
        """
        of_rows = {
            name: g for name, g in gradients.items() if g is not None and g[:1].numel() >= ROW_GRADIENT_VALUES_MIN
        }
        self._parameters.set_row_gradients(rows, of_rows)
        rows = rows[: int((rows >= 0).sum())]
        for name, parameter in self._parameters.params.items():
            gradient = gradients[name]
            if gradient is None or name in of_rows:
                parameter.grad = None
                continue
            dense = self._gradients.get(name)
            if dense is None or dense.shape != parameter.shape:
                dense = self._gradients[name] = torch.zeros_like(parameter)
            elif changed.get(name):
                dense.zero_()
            elif self._rows is not None:
                dense.index_fill_(0, self._rows, 0.0)
            parameter.grad = dense.index_copy_(0, rows, gradient[: len(rows)])
        self._rows = rows.clone()  # a pass writes the next rows to the same memory

    def release(self) -> None:
        """Releases the memory."""
        self._gradients, self._rows = {}, None
