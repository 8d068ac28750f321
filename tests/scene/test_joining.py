"""Joined models, and degrees of spherical harmonics."""

import pytest
import torch

from tests.support.model_files import random_gaussians
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import ArgumentError
from tsplat.rendering import render
from tsplat.scene import merge_models, set_sh_degree


def test_models_follow_each_other_and_keep_their_colors():
    models = [random_gaussians(n=n, degree=degree) for n, degree in ((5, 1), (7, 3), (3, 0))]
    joined = merge_models(models)
    assert torch.equal(joined.means, torch.cat([model.means for model in models]))
    assert (len(joined), joined.sh_degree) == (15, 3)
    assert torch.equal(joined.shN[:5, :3], models[0].shN)
    assert torch.equal(joined.shN[5:12], models[1].shN)
    assert not joined.shN[:5, 3:].any()
    assert not joined.shN[12:].any()


def test_halves_of_a_model_render_as_it_does():
    gaussians = make_gaussians(n=40, sh_degree=1)
    halves = [gaussians.map(lambda tensor, part=part: tensor[part]) for part in (slice(0, 17), slice(17, 40))]
    (view,) = make_views(gaussians, n=1)
    assert torch.equal(*(render(model, view.camera, backend="torch") for model in (gaussians, merge_models(halves))))


def test_the_first_model_decides_the_flag_and_others_are_noted():
    notes = []
    models = [random_gaussians(n=4, antialiased=flag) for flag in (True, False)]
    assert merge_models(models, warn=notes.append).antialiased
    assert notes == [
        "some models were trained for antialiased rendering and some were not; all are marked as antialiased"
    ]
    assert merge_models(models[:1], warn=notes.append).antialiased
    assert len(notes) == 1


def test_no_models():
    with pytest.raises(ArgumentError, match="models: expected at least one, found none"):
        merge_models([])


@pytest.mark.parametrize("degree", range(5))
def test_degrees(degree):
    gaussians = random_gaussians(n=6, degree=2)
    changed = set_sh_degree(gaussians, degree)
    assert changed.sh_degree == degree
    shared = min(changed.shN.shape[1], 8)
    assert torch.equal(changed.shN[:, :shared], gaussians.shN[:, :shared])
    assert not changed.shN[:, 8:].any()


@pytest.mark.parametrize("degree", [-1, 5, 1.5])
def test_invalid_degree(degree):
    with pytest.raises(ArgumentError, match="degree: expected an int from 0 to 4"):
        set_sh_degree(random_gaussians(), degree)


def test_2d_gaussians_stay_2d_and_are_not_mixed_with_3d_ones():
    flat = random_gaussians(n=4).as_surfels()
    assert merge_models([flat, flat]).surfels
    with pytest.raises(ArgumentError, match="models: expected only 2D or only 3D Gaussians, found both"):
        merge_models([flat, random_gaussians(n=4)])
