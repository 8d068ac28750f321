"""Functions of the unscented transform, with the defaults of gsplat."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .... import fully_fused_projection_with_ut as native_projection
from .... import rasterize_to_pixels_eval3d as native_rasterize
from ._distortion import UnscentedTransformParameters

Function = Callable[..., tuple[Tensor | None, ...]]


def _with_parameters(native: Function) -> Function:
    """The function with default parameters of the unscented transform in place of None."""
    parameters = inspect.signature(native).parameters
    default = parameters["ut_params"].replace(default=UnscentedTransformParameters())
    signature = inspect.Signature([*(parameters | {"ut_params": default}).values()])

    @functools.wraps(native)
    def function(*args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return native(*bound.args, **bound.kwargs)

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


fully_fused_projection_with_ut = _with_parameters(native_projection)
rasterize_to_pixels_eval3d = _with_parameters(native_rasterize)
