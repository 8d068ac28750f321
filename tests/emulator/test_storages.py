"""Memory of tensors by address, as an emulated driver knows it."""

import threading

import pytest
import torch

from emulator.storages import Storages


@pytest.fixture
def storages():
    found = Storages()
    with found.noting():
        yield found


def test_addresses_within_a_storage_are_known(storages):
    x = torch.zeros(10, dtype=torch.float64)
    assert storages.at(x[3:].data_ptr()) == storages.at(x.untyped_storage().data_ptr())
    found = storages.at(x[3:].data_ptr())
    assert (found.address, found.size, found.item_bytes) == (x.data_ptr(), 80, 8)
    for inside in (0, 79, 80):
        assert storages.at(x.data_ptr() + inside).address == x.data_ptr()
    for outside in (-1, 81):
        found = storages.at(x.data_ptr() + outside)
        assert found is None or found.address != x.data_ptr()


def test_a_later_tensor_takes_the_place_of_those_that_were_there(storages):
    memory = torch.zeros(64, dtype=torch.uint8)
    start = memory.untyped_storage().data_ptr()

    def at(first, size):
        return torch.frombuffer(memory.numpy(), dtype=torch.uint8, offset=first, count=size)

    parts = [at(0, 16), at(16, 16), at(32, 16)]
    for part in parts:
        part.data_ptr()
    assert [storages.at(start + i).size for i in (0, 15, 32)] == [16, 16, 16]
    whole = at(8, 32)
    whole.data_ptr()
    assert [storages.at(start + i).address - start for i in (8, 16, 39)] == [8, 8, 8]
    assert storages.at(start + 4) is None


def test_other_threads_are_known(storages):
    x = torch.zeros(10)
    thread = threading.Thread(target=x.data_ptr)
    thread.start()
    thread.join()
    assert storages.at(x.untyped_storage().data_ptr()).size == 40


def test_named_tensors_are_known_with_their_table(storages):
    x, table = torch.zeros(3), torch.zeros(1, dtype=torch.int64)
    table.pointees = [x]
    (pointee,) = storages.at(table.data_ptr()).pointees
    assert pointee.size == 12


def test_nothing_is_kept_beyond():
    assert "data_ptr" not in torch.Tensor.__dict__
    with Storages().noting(), Storages().noting() as _:
        torch.zeros(1).data_ptr()
    assert "data_ptr" not in torch.Tensor.__dict__
