"""Programs written for Inria's packages: the calls of train.py of 2023 and 2024, through several refinements."""

import io

import pytest
import torch

from tests.compat.inria.clients import STEPS, N, Trainer

TRAINER = {
    "2023": dict(generation=2023),
    "2023_covariances": dict(generation=2023, covariances=True),
    "2023_opacity_reset": dict(generation=2023, resets=(7,)),
    "2024": dict(),
    "2024_joined_sh": dict(separate_sh=False),
    "2024_sparse_adam": dict(sparse_adam=True),
    "2024_sparse_adam_opacity_reset": dict(sparse_adam=True, resets=(7,)),
    "2024_antialiasing": dict(antialiasing=True),
    "2024_depth_loss": dict(depth_loss=True),
    "2024_exposure": dict(exposure=True),
}


@pytest.mark.parametrize("name", TRAINER)
def test_train(name):
    trainer = Trainer(**TRAINER[name])
    before = trainer.evaluate()
    trainer.train()
    assert trainer.evaluate() > before + 1
    params = trainer.params
    n = len(params["xyz"])
    assert n != N
    for group in trainer.optimizer.param_groups:
        (parameter,) = group["params"]
        assert parameter.isfinite().all(), group["name"]
        assert len(parameter) == n
        state = trainer.optimizer.state[parameter]
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
    assert len(trainer.optimizer.state) == len(params)


@pytest.mark.parametrize("sparse_adam", [False, True])
def test_training_continues_from_a_checkpoint(sparse_adam):
    """The result equals that of training without interruption, bit for bit."""
    trainer, resumed = Trainer(sparse_adam=sparse_adam), Trainer(sparse_adam=sparse_adam)
    trainer.train(7)
    file = io.BytesIO()
    torch.save(trainer.capture(), file)
    file.seek(0)
    resumed.restore(torch.load(file))
    trainer.train(STEPS - 7)
    resumed.train(STEPS - 7)
    for name, parameter in trainer.params.items():
        assert torch.equal(parameter, resumed.params[name]), name
