"""Projection by the unscented transform, with the defaults of gsplat."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import Tensor

from .... import fully_fused_projection_with_ut as native
from ._distortion import UnscentedTransformParameters

_PARAMETERS = inspect.signature(native).parameters
_SIGNATURE = inspect.Signature(
    [*(_PARAMETERS | {"ut_params": _PARAMETERS["ut_params"].replace(default=UnscentedTransformParameters())}).values()]
)


@functools.wraps(native)
def fully_fused_projection_with_ut(*args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return native(*bound.args, **bound.kwargs)


fully_fused_projection_with_ut.__signature__ = _SIGNATURE  # type: ignore[attr-defined]
