"""Calls that differ from an earlier one in values only are not checked again; all others are."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tsplat.stages import call as calls

SCENE = scenes.make(scenes.Structure(n=3, cameras=1, width=8, height=6, seed=1), torch.float32)


@pytest.fixture
def checked(monkeypatch):
    """Names of the calls that were checked, in order."""
    names = []
    check = calls._check_all
    monkeypatch.setattr(calls, "_checked", {})
    monkeypatch.setattr(calls, "_check_all", lambda *arguments: (names.append(None), check(*arguments))[1])
    return names


def call(**changes):
    return tsplat.rasterization(**SCENE | dict(backend="torch") | changes)


def outcome(**changes):
    """The error of a call, or the dtype of its image."""
    try:
        return str(call(**changes)[0].dtype)
    except (ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"


def freed():
    tensor = SCENE["means"].clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def test_other_values_are_not_checked_again(checked):
    call()
    call()
    n = len(checked)
    moved = call(means=SCENE["means"] + 0.1)
    call(viewmats=SCENE["viewmats"].clone(), opacities=0.5 * SCENE["opacities"])
    assert len(checked) == n
    assert torch.equal(moved[2]["depths"], call(means=SCENE["means"] + 0.1, packed=1)[2]["depths"])
    assert len(checked) == n + 1  # 1 is another argument than True


CHANGES = {
    "dtype": lambda: dict(means=SCENE["means"].double()),
    "integers": lambda: dict(opacities=SCENE["opacities"].int()),
    "shape": lambda: dict(quats=SCENE["quats"][:2]),
    "device": lambda: dict(means=SCENE["means"].to("meta")),
    "gradient of Ks": lambda: dict(Ks=SCENE["Ks"].clone().requires_grad_()),
    "no tensor": lambda: dict(scales=SCENE["scales"].tolist()),
    "None": lambda: dict(opacities=None),
    "freed": lambda: dict(means=freed()),
    "nested": lambda: dict(means=torch.nested.as_nested_tensor([SCENE["means"], SCENE["means"]])),
    "sparse": lambda: dict(means=SCENE["means"].to_sparse()),
    "conjugate": lambda: dict(means=torch.complex(SCENE["means"], -SCENE["means"]).conj().imag),
    "option": lambda: dict(width=0),
    "float": lambda: dict(tile_size=16.5),
    "bool as an int": lambda: dict(width=True),
    "string": lambda: dict(packed="yes"),
    "lens": lambda: dict(radial_coeffs=torch.zeros(1, 6)),
    "f-theta": lambda: dict(ftheta_coeffs=object()),
    "degree": lambda: dict(sh_degree=2),
    "background": lambda: dict(backgrounds=torch.zeros(1, 7)),
    "batch": lambda: dict(distributed=2),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_known_calls_hide_no_error(change, checked):
    expected = outcome(**CHANGES[change]())
    calls._checked.clear()
    for _ in range(3):
        assert outcome() == "torch.float32"
    for _ in range(2):
        assert outcome(**CHANGES[change]()) == expected
    assert outcome() == "torch.float32"


def test_gradient_of_intrinsics_is_refused_where_gradients_are_recorded(checked):
    Ks = SCENE["Ks"].clone().requires_grad_()
    for _ in range(2):
        with torch.no_grad():
            assert outcome(Ks=Ks) == "torch.float32"
    assert "Ks: its gradient is not implemented" in outcome(Ks=Ks)


def test_known_calls_are_not_transformed(checked):
    for _ in range(2):
        call()
    with pytest.raises(NotImplementedError, match=r"torch\.func|vmap"):
        torch.func.vmap(lambda x: call()[0] + x)(torch.zeros(2))


def test_coefficients_of_lenses_are_read_in_each_call(checked):
    seen = dict(
        means=torch.tensor([[1.0, 0.5, 4], [-1, 0, 5], [0, -0.5, 4]]), opacities=torch.ones(3), with_ut=True,
        quats=torch.tensor([[1.0, 0, 0, 0]]).repeat(3, 1), scales=torch.full((3, 3), 0.1), viewmats=torch.eye(4)[None],
        Ks=torch.tensor([[[8.0, 0, 4], [0, 8, 3], [0, 0, 1]]]),
    )  # fmt: skip
    found = [call(radial_coeffs=torch.tensor([[k, 0, 0, 0, 0, 0]]), **seen)[2]["means2d"] for k in (0.0, 0.1, 0.0)]
    assert len(found[0]) == 3
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_what_is_known_is_bounded(checked, monkeypatch):
    monkeypatch.setattr(calls, "CHECKED_MAX", 3)
    for width in range(1, 9):
        call(width=width)
        assert len(calls._checked) <= 3
