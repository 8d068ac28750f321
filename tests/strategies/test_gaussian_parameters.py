"""Checks of parameters and optimizers."""

import pytest

from tests.support.strategy_models import make_model
from tsplat import ArgumentError
from tsplat.strategies.gaussian_parameters import check_parameters


def test_check_parameters_names_the_problem():
    params, optimizers = make_model(3)
    with pytest.raises(ArgumentError, match="optimizers: expected one for sh0"):
        check_parameters(params, {k: v for k, v in optimizers.items() if k != "sh0"})
    with pytest.raises(ArgumentError, match="optimizers: the one for means must have exactly this parameter"):
        check_parameters(params, optimizers | {"means": optimizers["sh0"]})
    with pytest.raises(ArgumentError, match="params: expected quats among"):
        check_parameters({k: v for k, v in params.items() if k != "quats"}, optimizers)
