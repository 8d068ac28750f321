"""Morton codes and the order of points along the Morton curve."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tsplat.scene.morton import morton_codes, morton_order


@given(st.lists(st.tuples(*[st.integers(0, 2**21 - 1)] * 3), min_size=1, max_size=20))
def test_codes_interleave_bits(points):
    # Two corners fix the bounding box.
    corners = [(0, 0, 0), (2**21 - 1,) * 3]
    codes = morton_codes(torch.tensor([*corners, *points], dtype=torch.float64)).tolist()
    for (x, y, z), code in zip(points, codes[2:]):
        expected = 0
        for bit in range(21):
            expected |= (x >> bit & 1) << 3 * bit | (y >> bit & 1) << 3 * bit + 1 | (z >> bit & 1) << 3 * bit + 2
        assert code == expected


def test_order_keeps_neighbors_close_and_puts_nan_last():
    points = torch.rand(4096, 3)
    points[17, 1] = float("nan")
    order = morton_order(points)
    assert order[-1] == 17
    assert order.sort().values.tolist() == list(range(4096))
    steps = points[order[:-1]].diff(dim=0).norm(dim=-1).median()
    assert steps < 0.15 * points[torch.arange(4096) != 17].diff(dim=0).norm(dim=-1).median()
    assert morton_order(points[:0]).numel() == 0
    assert morton_order(torch.ones(3, 3)).tolist() == [0, 1, 2]
