"""Spherical harmonics in two parts, against the reference."""

import pytest
import torch

from tests.support.closeness import assert_exact
from tests.support.scenes import Structure, make, random_like
from tsplat import ArgumentError, reference
from tsplat.compat.gsplat import spherical_harmonics, spherical_harmonics_l0, spherical_harmonics_l1_plus
from tsplat.config import PRESETS

N, D = 5, 4


def inputs(batch=()):
    """Leaves: means [..., N, 3], view matrices of the start and the end [..., 2, 4, 4], and coefficients [N, 16, D]."""
    scene = make(Structure(n=N, cameras=2, batch=batch))
    later = make(Structure(n=N, cameras=2, batch=batch, seed=1))["viewmats"]
    sh = torch.randn(N, 16, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return [tensor.clone().requires_grad_() for tensor in (scene["means"], scene["viewmats"], later, sh)]


def expected_values(degree, means, viewmats, later, sh, masks=None):
    """Sums all degrees above 0 in the directions from the mean of the camera centers."""
    centers = reference.camera_centers(viewmats, PRESETS["gsplat-1.6"])
    if later is not None:
        centers = (centers + reference.camera_centers(later, PRESETS["gsplat-1.6"])) / 2
    dirs = means[..., None, :, :] - centers[..., None, :]
    values = reference.spherical_harmonics(degree, dirs, sh) - reference.spherical_harmonics(0, dirs, sh)
    return values if masks is None else torch.where(masks[..., None], values, 0.0)


def test_degree_0():
    sh0 = torch.randn(N, 1, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    expected = reference.spherical_harmonics(0, torch.ones(N, 3, dtype=torch.float64), sh0)
    assert_exact("values", spherical_harmonics_l0(sh0), expected)
    assert torch.autograd.gradcheck(spherical_harmonics_l0, sh0)
    assert spherical_harmonics_l0(sh0.detach().half()).dtype == torch.float32


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("degree", range(4))
def test_higher_degrees_match_reference(degree, batch):
    leaves = inputs(batch)
    means, viewmats, later, sh = leaves
    masks = torch.rand(*batch, 2, N, generator=torch.Generator().manual_seed(3)) < 0.7
    found = spherical_harmonics_l1_plus(degree, means, viewmats, sh[:, 1:], masks, viewmats_rs=later)
    expected = expected_values(degree, *leaves, masks)
    assert found.shape == (*batch, 2, N, D)
    assert_exact("values", found, expected)
    if degree:
        v = random_like((found,), 0)
        gradients = (torch.autograd.grad(values, leaves, v) for values in (found, expected))
        for name, one, other in zip(("means", "viewmats", "viewmats_rs", "sh"), *gradients):
            assert_exact(name, one, other)


def test_packed_rows_are_those_of_all_rows():
    means, viewmats, _, sh = inputs((2,))
    every = spherical_harmonics_l1_plus(3, means, viewmats, sh[:, 1:])
    ids = torch.rand(2, 2, N, generator=torch.Generator().manual_seed(4)) < 0.5
    batch_ids, camera_ids, gaussian_ids = ids.nonzero(as_tuple=True)
    masks = torch.arange(len(batch_ids)) % 2 == 0
    found = spherical_harmonics_l1_plus(
        3, means, viewmats, sh[gaussian_ids, 1:], masks, batch_ids, camera_ids, gaussian_ids
    )
    expected = torch.where(masks[:, None], every[batch_ids, camera_ids, gaussian_ids], 0.0)
    assert_exact("values", found, expected)


@pytest.mark.parametrize("degree", range(4))
def test_arguments_of_1_6(degree):
    leaves = inputs((2,))
    means, viewmats, later, sh = leaves
    masks = torch.rand(2, 2, N, generator=torch.Generator().manual_seed(3)) < 0.7
    found = spherical_harmonics(degree, means, viewmats, sh, masks, viewmats_rs=later)
    expected = torch.where(masks[..., None], spherical_harmonics_l0(sh[:, :1]), 0.0)
    expected = expected + expected_values(degree, *leaves, masks)
    assert_exact("values", found, expected)
    v = random_like((found,), 0)
    gradients = (torch.autograd.grad(values, leaves, v, allow_unused=True) for values in (found, expected))
    for name, one, other in zip(("means", "viewmats", "viewmats_rs", "sh"), *gradients):
        assert_exact(name, one, other)


def test_forms_of_arguments_are_told_apart():
    means, viewmats, _, sh = inputs()
    viewmats = viewmats[:1]
    dirs = means - reference.camera_centers(viewmats, PRESETS["gsplat-1.6"])
    masks = torch.arange(N) % 2 == 0
    expected = spherical_harmonics(2, dirs, sh)
    assert_exact("1.5.3", expected, reference.spherical_harmonics(2, dirs, sh))
    masked = torch.where(masks[:, None], expected, 0.0)
    ids = masks.nonzero()[:, 0]
    for found, values in (
        (spherical_harmonics(2, dirs, sh, None), expected),
        (spherical_harmonics(degrees_to_use=2, dirs=dirs, coeffs=sh), expected),
        (spherical_harmonics(2, dirs, coeffs=sh), expected),
        (spherical_harmonics(2, dirs, sh, masks), masked),
        (spherical_harmonics(2, dirs, coeffs=sh, masks=masks), masked),
        (spherical_harmonics(2, means, viewmats, sh)[0], expected),
        (spherical_harmonics(2, means, viewmats, sh, masks[None])[0], masked),
        (spherical_harmonics(2, means, viewmats, coeffs=sh, masks=None)[0], expected),
        (spherical_harmonics(2, means=means, viewmats=viewmats, coeffs=sh)[0], expected),
        (spherical_harmonics(2, means, viewmats=viewmats, coeffs=sh, masks=masks[None])[0], masked),
        (spherical_harmonics(2, means, viewmats, sh[ids], None, 0 * ids, 0 * ids, ids), expected[ids]),
    ):
        assert_exact("values", found, values)
    with pytest.raises(ArgumentError, match="coeffs: expected coefficients of 5 rows, found 4"):
        spherical_harmonics(2, means, viewmats, sh[1:])
    with pytest.raises(TypeError):
        spherical_harmonics(2, means, viewmats, sh, None, nothing=1)


def test_degree_0_has_no_higher_degrees():
    means, viewmats, _, sh = inputs()
    assert not spherical_harmonics_l1_plus(0, means, viewmats, sh[:, 1:1]).any()


def test_arguments_are_checked():
    means, viewmats, _, sh = inputs()
    ids = torch.zeros(3, dtype=torch.int64)
    for arguments, match in (
        ((2, means, viewmats, sh[:, 1:4]), "degrees_to_use: degree 2 needs 9 bases, but the coefficients have 4"),
        ((1, means, viewmats, sh[:3, 1:]), "shN: expected coefficients of 5 rows, found 3"),
        ((1, means, viewmats, sh[:, 1:], torch.ones(N, dtype=torch.bool)), r"masks: .* here \[2, 5\], found \[5\]"),
        ((1, means, viewmats, sh[:3, 1:], None, ids, ids), "batch_ids: expected together with"),
        ((1, means, viewmats, sh[:3, 1:], None, ids, ids - 1, ids), r"camera_ids: expected .*, found -1 to -1"),
    ):
        with pytest.raises(ArgumentError, match=match):
            spherical_harmonics_l1_plus(*arguments)
    with pytest.raises(ArgumentError, match=r"sh0: expected \[N, 1, D\]"):
        spherical_harmonics_l0(sh)
