"""Arguments are checked in every call, also after replayed calls of the same shapes."""

import pytest
import torch

from tests.support import scenes
from tests.support.call_kinds import STAGES
from tsplat import rasterization

SCENE = scenes.make(scenes.Structure(n=3, cameras=1, width=8, height=6, seed=1), torch.float32)


def outcome(function=rasterization, **changes):
    """Returns the error of a call, or the dtype of its image."""
    try:
        return str(function(**SCENE | changes)[0].dtype)
    except (ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module", autouse=True)
def _replayed():
    for _ in range(3):
        assert outcome() == "torch.float32"


def freed():
    tensor = SCENE["means"].clone()
    tensor.untyped_storage().resize_(0)
    return tensor


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
    "int as a bool": lambda: dict(packed=1),
    "string": lambda: dict(packed="yes"),
    "lens": lambda: dict(radial_coeffs=torch.zeros(1, 6)),
    "f-theta": lambda: dict(ftheta_coeffs=object()),
    "degree": lambda: dict(sh_degree=2),
    "background": lambda: dict(backgrounds=torch.zeros(1, 7)),
    "batch": lambda: dict(distributed=2),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_replayed_calls_hide_no_error(change):
    expected = outcome(STAGES[rasterization], **CHANGES[change]())
    for _ in range(2):
        assert outcome(**CHANGES[change]()) == expected
    assert outcome() == "torch.float32"


def test_gradient_of_intrinsics_is_refused_where_gradients_are_recorded():
    Ks = SCENE["Ks"].clone().requires_grad_()
    for _ in range(3):
        with torch.no_grad():
            assert outcome(Ks=Ks) == "torch.float32"
    assert "Ks: its gradient is not implemented" in outcome(Ks=Ks)


def test_replayed_calls_are_not_transformed():
    with pytest.raises(NotImplementedError, match=r"torch\.func|vmap"):
        torch.func.vmap(lambda x: rasterization(**SCENE)[0] + x)(torch.zeros(2))


def test_coefficients_of_lenses_are_read_in_each_call():
    seen = dict(
        means=torch.tensor([[1.0, 0.5, 4], [-1, 0, 5], [0, -0.5, 4]]), opacities=torch.ones(3), with_ut=True,
        quats=torch.tensor([[1.0, 0, 0, 0]]).repeat(3, 1), scales=torch.full((3, 3), 0.1), viewmats=torch.eye(4)[None],
        Ks=torch.tensor([[[8.0, 0, 4], [0, 8, 3], [0, 0, 1]]]),
    )  # fmt: skip
    coefficients = [torch.tensor([[k, 0, 0, 0, 0, 0]]) for k in (0.0, 0.1, 0.0, 0.1)]
    found = [rasterization(**SCENE | seen, radial_coeffs=each)[2]["means2d"] for each in coefficients]
    assert len(found[0]) == 3
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
