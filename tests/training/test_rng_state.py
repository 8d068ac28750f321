"""States of random number generators."""

import json
import random

import numpy as np
import torch

from tsplat.training.rng_state import generator_state, get_rng_state, set_generator_state, set_rng_state


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_global_generators_continue_after_json():
    state = json.loads(json.dumps(get_rng_state()))
    expected = [draw() for _ in range(3)]
    set_rng_state(state)
    assert [draw() for _ in range(3)] == expected


def test_generator_continues():
    generator, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    torch.rand(3, generator=generator)
    set_generator_state(other, generator_state(generator))
    assert torch.equal(torch.rand(3, generator=other), torch.rand(3, generator=generator))
