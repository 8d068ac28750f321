"""Compares nested values bit by bit."""

import torch


def assert_identical(value, other):
    """Asserts that values have the same structure and types, and tensors the same bits, or on the meta device,
    shapes."""
    assert type(value) is type(other)
    if isinstance(value, torch.Tensor):
        assert (value.dtype, value.shape, value.device) == (other.dtype, other.shape, other.device)
        assert value.layout == other.layout
        if value.layout == torch.sparse_coo:
            assert_identical((value._indices(), value._values()), (other._indices(), other._values()))
        elif value.device.type != "meta":
            one, two = (tensor.detach().contiguous().numpy().tobytes() for tensor in (value, other))
            assert one == two
    elif isinstance(value, dict):
        assert list(value) == list(other)
        for key in value:
            assert_identical(value[key], other[key])
    elif isinstance(value, list | tuple):
        assert len(value) == len(other)
        for one, two in zip(value, other):
            assert_identical(one, two)
    else:
        assert value == other
