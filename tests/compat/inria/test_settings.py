"""The camera that settings describe, with matrices in full precision and as autocast computes them."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsplat import quat_scale_to_covar_preci
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer
from tsplat.compat.inria import settings as settings_module

WIDTH, HEIGHT = 64, 48


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch):
    monkeypatch.setattr(settings_module, "_warnings", set())


def rotation(quat):
    """A rotation [3, 3] of a quaternion wxyz: its covariance with scales whose squares tell the axes apart."""
    w, x, y, z = (torch.tensor(quat, dtype=torch.float64) / math.hypot(*quat)).tolist()
    a, b = torch.tensor([x, y, z], dtype=torch.float64), torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    b = b.double()
    return (w * w - a @ a) * torch.eye(3, dtype=torch.float64) + 2 * torch.outer(a, a) + 2 * w * b


def camera(quat=(1.0, 0.0, 0.0, 0.0), center=(0.0, 0.0, 0.0), offset=(0.0, 0.0), tan=0.5):
    """World to camera and the projection [4, 4], and the tangents."""
    view = torch.eye(4)
    view[:3, :3] = rotation(quat).float()
    view[:3, 3] = -(view[:3, :3] @ torch.tensor(center))
    projection = torch.zeros(4, 4)
    projection[0, 0], projection[1, 1] = 1 / tan, 1 / (tan * HEIGHT / WIDTH)
    projection[:2, 2] = torch.tensor(offset)
    projection[2, 2], projection[2, 3], projection[3, 2] = 1.0001, -0.01, 1.0
    return view, projection, (tan, tan * HEIGHT / WIDTH)


def settings_of(view, product, tangents, **others):
    values = dict(bg=torch.full((3,), 0.2), scale_modifier=1.0, sh_degree=1, prefiltered=False, debug=False)
    return GaussianRasterizationSettings(
        image_height=HEIGHT, image_width=WIDTH, tanfovx=tangents[0], tanfovy=tangents[1], viewmatrix=view.T,
        projmatrix=product, campos=torch.linalg.inv(view.float())[:3, 3], **values, **others,
    )  # fmt: skip


def principal_point(settings):
    """In pixels."""
    return settings.checked().intrinsics(torch.zeros(1, dtype=torch.float64))[0, :2, 2]


def render(view, projection, tangents, dtype=None, cast=False):
    """Renders a model as feed-forward models do, with the product of matrices inside autocast, and differentiates."""
    generator = torch.Generator().manual_seed(1)
    n = 50
    in_camera = torch.rand(n, 3, generator=generator) * torch.tensor([2.0, 1.5, 2.0]) + torch.tensor([-1, -0.75, 3.0])
    means = (in_camera - view[:3, 3]) @ view[:3, :3]
    values = dict(
        means3D=means, opacities=torch.rand(n, 1, generator=generator), shs=torch.randn(n, 4, 3, generator=generator),
        cov3D_precomp=quat_scale_to_covar_preci(
            torch.randn(n, 4, generator=generator), torch.full((n, 3), 0.1), compute_preci=False, triu=True
        )[0],
    )  # fmt: skip
    leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        product = view.T @ projection.T
        assert dtype is None or product.dtype == dtype
        settings = settings_of(view, product.float() if cast else product, tangents)
        image, _ = GaussianRasterizer(settings)(means2D=None, **leaves)
        gradients = torch.autograd.grad(image.square().sum(), list(leaves.values()))
    return image.detach(), *gradients


QUATS = [(1.0, 0.0, 0.5, 0.0), (1.0, -0.4, 0.0, 0.0), (0.5, 0.3, -0.7, 0.4), (0.1, 0.9, 0.2, -0.3)]


@pytest.mark.filterwarnings("ignore:projmatrix")
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotated_cameras_under_autocast_have_the_bits_of_fp32(dtype, cast):
    for quat in QUATS:
        given = camera(quat, center=(1.0, -2.0, 0.5))
        for found, expected in zip(render(*given, dtype, cast), render(*given)):
            assert torch.equal(found, expected)


def test_low_precision_warns_once():
    view, projection, tangents = camera(QUATS[2])
    product = (view.T @ projection.T).bfloat16()
    with pytest.warns(UserWarning, match="projmatrix: found values of low precision.*principal point to"):
        assert principal_point(settings_of(view, product, tangents)).tolist() == [WIDTH / 2, HEIGHT / 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        principal_point(settings_of(view, product, tangents))


def test_a_pose_in_low_precision_is_named():
    view, projection, tangents = camera(QUATS[2])
    with pytest.warns(UserWarning, match=r"viewmatrix: found torch.bfloat16, which rounds the pose"):
        settings_of(view.bfloat16(), view.T @ projection.T, tangents).checked()


quaternions = st.one_of(
    st.sampled_from(
        [(1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 1.0), (1.0, 0.0, 0.2, 0.0)]
    ),
    st.tuples(*[st.floats(-1, 1).filter(lambda value: abs(value) > 0.01)] * 4),
)
offsets = st.one_of(st.sampled_from([0.0, 2.0**-6, 2.0**-10, 0.125]), st.floats(-0.9, 0.9), st.floats(-1e-3, 1e-3))


@given(quat=quaternions, offset=st.tuples(offsets, offsets), tan=st.floats(0.1, 2.0))
def test_principal_points_in_fp32_are_kept(quat, offset, tan):
    """Without a warning, small ones and those of matrices that bf16 can hold, too."""
    view, projection, tangents = camera(quat, (0.3, 2.0, -1.0), offset, tan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = principal_point(settings_of(view, view.T @ projection.T, tangents))
    expected = 0.5 * torch.tensor([WIDTH, HEIGHT]) * (1 + torch.tensor(offset, dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=0, atol=WIDTH / tan * 2e-6)


@pytest.mark.filterwarnings("ignore:projmatrix")
@given(quat=quaternions, tan=st.floats(0.1, 2.0), dtype=st.sampled_from([torch.bfloat16, torch.float16, "tf32"]))
def test_rounding_of_products_is_no_offset(quat, tan, dtype):
    view, projection, tangents = camera(quat, (0.3, 2.0, -1.0), (0.0, 0.0), tan)
    if dtype == "tf32":
        # Factors of 11 bits, and a product in fp32.
        product = view.T.half().float() @ projection.T.half().float()
    else:
        with torch.autocast("cpu", dtype):
            product = view.T @ projection.T
    found = principal_point(settings_of(view, product, tangents))
    if dtype != "tf32" or 0 not in quat:
        # fp16 also rounds by its smallest number.
        torch.testing.assert_close(found, torch.tensor([WIDTH / 2, HEIGHT / 2]).double(), rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:projmatrix")
def test_principal_points_beyond_the_rounding_are_read_in_low_precision():
    view, projection, tangents = camera(QUATS[2], offset=(0.4, -0.3))
    with torch.autocast("cpu", torch.bfloat16):
        product = view.T @ projection.T
    found = principal_point(settings_of(view, product, tangents))
    torch.testing.assert_close(found, torch.tensor([44.8, 16.8], dtype=torch.float64), rtol=0, atol=1.0)
    raw = principal_point(settings_of(view, product, tangents, projmatrix_raw=projection.T))
    torch.testing.assert_close(raw, torch.tensor([44.8, 16.8], dtype=torch.float64))


def test_matrices_of_shape_1_4_4_are_those_of_shape_4_4():
    view, projection, tangents = camera(QUATS[2], offset=(0.4, -0.3))
    plain = settings_of(view, view.T @ projection.T, tangents)
    batched = plain._replace(viewmatrix=plain.viewmatrix[None], projmatrix=plain.projmatrix[None])
    assert torch.equal(principal_point(batched), principal_point(plain))


def test_parameters_in_low_precision_are_computed_with_in_fp32():
    """Scales times a factor, and directions from the camera."""
    view, projection, tangents = camera(center=(0.0, 0.0, -3.0))
    settings = settings_of(view, view.T @ projection.T, tangents)._replace(scale_modifier=0.7)
    generator = torch.Generator().manual_seed(0)
    values = dict(
        means3D=torch.rand(30, 3, generator=generator) - 0.5, opacities=torch.rand(30, 1, generator=generator),
        shs=torch.randn(30, 4, 3, generator=generator), scales=torch.rand(30, 3, generator=generator) * 0.2,
        rotations=torch.randn(30, 4, generator=generator),
    )  # fmt: skip
    low = {name: value.bfloat16() for name, value in values.items()}
    settings = settings._replace(campos=settings.campos.bfloat16())
    image, _ = GaussianRasterizer(settings)(means2D=None, **low)
    expected, _ = GaussianRasterizer(settings)(means2D=None, **{name: value.float() for name, value in low.items()})
    assert torch.equal(image, expected)
