"""Tensors with spare rows."""

import copy
import resource
import sys

import pytest
import torch

from tsplat.ops import Adam
from tsplat.runtime import spare_rows
from tsplat.runtime.spare_rows import n_rows_max, with_spare_rows, without_spare_rows, zeros_like_with_spare_rows
from tsplat.strategies.rows import enlarge


@pytest.fixture(autouse=True)
def addresses_are_free(monkeypatch):
    """For machines that limit addresses, and other systems than Linux."""
    monkeypatch.setattr(spare_rows, "_takes_only_addresses", lambda rows: rows.device.type == "cpu")


def model():
    """Returns a parameter with spare rows and moments, and its optimizer, as dictionaries."""
    parameter = torch.nn.Parameter(with_spare_rows(torch.arange(12.0).view(4, 3), 10))
    optimizer = Adam([parameter], backend="torch", moments_dtype=torch.bfloat16)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"means": parameter}, {"means": optimizer}


def test_rows_are_appended_without_a_copy_while_there_are_spare_ones():
    params, optimizers = model()
    before, address = params["means"].detach().clone(), params["means"].data_ptr()
    for n in (3, 3):
        append = enlarge(params, optimizers, n)
        moments = optimizers["means"].state[params["means"]]
        tensors = [params["means"].detach(), moments["exp_avg"]]
        assert [n_rows_max(tensor) for tensor in tensors] == [10, 10]
        longer = [append(tensor) for tensor in tensors]
        assert [tensor.data_ptr() for tensor in longer] == [tensor.data_ptr() for tensor in tensors]
        assert all(torch.equal(tensor[-n:], torch.zeros_like(tensor[-n:])) for tensor in longer)
        moments.update(exp_avg=longer[1], exp_avg_sq=append(moments["exp_avg_sq"]))
        optimizers["means"].state.clear()
        longer[0][-n:] = 7.0
        params["means"] = torch.nn.Parameter(longer[0])
        optimizers["means"].state[params["means"]] = moments
        optimizers["means"].param_groups[0]["params"] = [params["means"]]
    assert params["means"].data_ptr() == address and torch.equal(params["means"][:4], before)
    enlarge(params, optimizers, 1)
    assert params["means"].data_ptr() != address and len(params["means"]) == 10


def test_moments_have_spare_rows_and_their_dtype():
    params, optimizers = model()
    moments = optimizers["means"].state[params["means"]]
    assert moments["exp_avg"].dtype is torch.bfloat16 and n_rows_max(moments["exp_avg"]) == 10
    assert torch.equal(zeros_like_with_spare_rows(params["means"].detach()), torch.zeros(4, 3))


def test_only_tensors_that_were_made_so_have_spare_rows():
    whole = torch.zeros(10, 3)
    assert n_rows_max(whole[:4]) == 4
    assert n_rows_max(with_spare_rows(whole[:4], 4)) == 4
    with_some = with_spare_rows(whole[:4], 10)
    assert (n_rows_max(with_some), n_rows_max(with_some[1:])) == (10, 3)
    assert n_rows_max(copy.deepcopy(without_spare_rows(with_some))) == 4


def test_addresses_are_not_taken_where_they_are_limited(monkeypatch):
    monkeypatch.undo()
    limit = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**40, limit[1]))
    assert n_rows_max(with_spare_rows(torch.zeros(4, 3), 10)) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_spare_rows_are_not_resident(monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    rows = with_spare_rows(torch.zeros(4, 3), 2**26)
    assert n_rows_max(rows) == 2**26
    pages = {}
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if "-" in line.split(" ")[0]:
                begin, end = (int(value, 16) for value in line.split(" ")[0].split("-"))
            elif line.startswith("Rss:"):
                pages[begin, end] = int(line.split()[1])
    (kilobytes,) = [size for (begin, end), size in pages.items() if begin <= rows.data_ptr() < end]
    assert kilobytes < 2**18  # of 786 MB
