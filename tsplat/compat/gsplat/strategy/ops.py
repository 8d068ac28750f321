"""The names of ``gsplat.strategy.ops``: operations on Gaussians and their optimizers, all in place."""

from ....strategies.operations import (
    duplicate,
    inject_noise_to_position,
    relocate,
    remove,
    reset_opa,
    sample_add,
    split,
)
from ....strategies.random_numbers import _multinomial_sample
from ....strategies.rows import _update_param_with_optimizer
from ..utils import normalized_quat_to_rotmat

__all__ = [
    "_multinomial_sample",
    "_update_param_with_optimizer",
    "duplicate",
    "inject_noise_to_position",
    "normalized_quat_to_rotmat",
    "relocate",
    "remove",
    "reset_opa",
    "sample_add",
    "split",
]
