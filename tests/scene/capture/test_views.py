"""Views."""

import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import View


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(image=torch.zeros(2, 2, 3)), "uint8"),
        (dict(image=torch.zeros(2, 2, 1, dtype=torch.uint8)), "image"),
        (dict(viewmat=torch.eye(3)), "viewmat"),
        (dict(viewmat=torch.full((4, 4), math.nan)), "viewmat.*'a'"),
        (dict(K=-torch.eye(3)), "focal"),
    ],
)
def test_invalid_views_are_rejected(values, message):
    valid = dict(image=torch.zeros(2, 2, 3, dtype=torch.uint8), viewmat=torch.eye(4), K=torch.eye(3))
    View("a", **valid)
    with pytest.raises(ArgumentError, match=message):
        View("a", **valid | values)
