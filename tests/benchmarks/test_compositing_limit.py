"""How many entries of lists the walks of compositing evaluate, and the instructions of their loops."""

import pytest
import torch

import tsplat
from benchmarks import compositing_limit

pytestmark = pytest.mark.triton

TILES = (2, 3)
N = 40


def launches(opacity, covered=(35, 29)):
    """The walks of an image of 35x29 pixels, whose tiles list N Gaussians of the same opacity on all pixels."""
    width, height = covered
    n_tiles = TILES[0] * TILES[1]
    means2d = torch.full((1, N, 2), 16.0, requires_grad=True)
    ids = torch.arange(N, dtype=torch.int32).repeat(n_tiles)

    def step():
        colors, _ = tsplat.rasterize_to_pixels(
            means2d, torch.tensor([1e-6, 0.0, 1e-6]).expand(1, N, 3), torch.ones(1, N, 3), torch.full((1, N), opacity),
            width, height, 16, torch.arange(n_tiles).view(1, *TILES) * N, ids, backend="triton",
        )  # fmt: skip
        colors.sum().backward()

    return compositing_limit.recorded(step)


def test_faint_gaussians_are_all_evaluated():
    found = launches(0.01)
    lists = found[compositing_limit.FORWARD][2]["ranges"].offsets.numel() - 1
    assert compositing_limit.walked(found[compositing_limit.FORWARD]) == lists * N
    # The last rows of parts are outside of the image.
    inside = 3 * sum(4 * row < 29 for row in range(8))
    assert compositing_limit.walked_back(found[compositing_limit.BACKWARD]) == inside * N


def test_opaque_gaussians_end_the_walk():
    # Three times 1 - 0.97 is below the least transmittance; it is checked every 16 entries.
    found = launches(0.97)
    lists = found[compositing_limit.FORWARD][2]["ranges"].offsets.numel() - 1
    assert compositing_limit.walked(found[compositing_limit.FORWARD]) == lists * 16
    inside = 3 * sum(4 * row < 29 for row in range(8))
    assert compositing_limit.walked_back(found[compositing_limit.BACKWARD]) == inside * 2


def test_loops_consist_of_vector_instructions():
    found = launches(0.01)
    forward, backward = (
        compositing_limit.vector_instructions(found[name])
        for name in (compositing_limit.FORWARD, compositing_limit.BACKWARD)
    )
    assert 50 < forward < backward < 1000
