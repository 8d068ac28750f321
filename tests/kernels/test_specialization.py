"""How often Triton compiles during training: never again after the first steps."""

import pytest
from torch import Tensor

from tests.support.training_scenes import make_gaussians, make_views
from tsplat.kernels import launch
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training.configuration import Config
from tsplat.training.trainer import Trainer
from tsplat.triton_cpu import flat_arguments

pytestmark = pytest.mark.triton


def specialization(kernel, arguments):
    """What Triton compiles a kernel for: https://triton-lang.org, `triton.jit`, and `do_not_specialize`."""
    key = [kernel.__name__]
    for parameter in kernel.params:
        argument = arguments.get(parameter.name)
        if parameter.is_constexpr:
            key.append((type(argument), argument))
            continue
        for value in flat_arguments(argument):
            if value is None:
                key.append(None)
            elif isinstance(value, Tensor):
                key.append((value.dtype, value.data_ptr() % 16 == 0))
            elif parameter.annotation_type == "fp64":
                key.append("fp64")
            else:
                wide = not -(2**31) <= value < 2**31
                is_plain = parameter.do_not_specialize or isinstance(argument, tuple)
                key.append(wide if is_plain else (wide, value == 1, value % 16 == 0))
    return tuple(key)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        MCMCStrategy(cap_max=400, refine_start_iter=20, refine_every=20),
        DefaultStrategy(refine_start_iter=20, refine_every=20, reset_every=40),
    ],
    ids=["mcmc", "default"],
)
def test_training_compiles_nothing_after_its_first_steps(strategy, monkeypatch):
    compiled, sizes = set(), set()
    monkeypatch.setattr(
        launch, "observer", lambda kernel, _, arguments: compiled.add(specialization(kernel, arguments))
    )
    gaussians = make_gaussians(n=64)
    trainer = Trainer(gaussians, make_views(gaussians), Config(steps=160, sh_interval=20, strategy=strategy))
    for _ in range(70):
        trainer.advance()
    early = set(compiled)
    for _ in range(90):
        trainer.advance()
        sizes.add(len(trainer.gaussians.means))
    assert len(sizes) > 3, "the number of Gaussians did not change"
    assert compiled == early
