"""Outputs: how channels become maps, and that an output is one object."""

import dataclasses

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact
from tsplat import output_maps
from tsplat.output_maps import DISTORTIONS, HITS, MEDIANS, RAY_NORMALS, SURFEL_NORMALS, Output, Rule, split_channels
from tsplat.passes import replay_cache

SQUARES = Output("squares", Rule.SUM, 2, lambda rows: torch.stack([rows.depths, rows.depths.square()], -1), "squares")


@pytest.fixture
def squares_on_request(monkeypatch):
    """The argument ``return_normals`` asks for sums of z and z^2."""
    own = dataclasses.replace(SQUARES, argument="return_normals")

    monkeypatch.setattr(output_maps, "ON_REQUEST", (own,))
    monkeypatch.setattr(output_maps, "IN_META", (own,))
    replay_cache.clear_caches()
    yield
    replay_cache.clear_caches()


def test_channels_become_maps():
    channels = torch.arange(11.0).expand(1, 2, 3, 11)
    assert split_channels(channels, (HITS,)) == {"colors": channels}
    maps = split_channels(channels, (SURFEL_NORMALS, SQUARES, DISTORTIONS, MEDIANS))
    found = {name: values[0, 0, 0].tolist() for name, values in maps.items()}
    assert found == {"normals": [0, 1, 2], "squares": [3, 4], "colors": [5, 6, 7, 8, 9], "distortions": [10]}
    assert split_channels(channels[..., :3], (RAY_NORMALS,))["colors"].shape == (1, 2, 3, 0)


@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_output_is_one_object(backend, channels, squares_on_request):
    """Calls of all kinds, and replayed ones, render a further output as they render extra signals of its values."""
    structure = scenes.Structure(n=9, cameras=1, width=14, height=10, channels=channels, seed=5)
    scene = scenes.make(structure) | dict(viewmats=torch.eye(4, dtype=torch.float64)[None], backgrounds=None)
    scene["means"] = scene["means"] + torch.tensor([0, 0, 4.0])
    names = ("means", "quats", "scales", "opacities", "colors")

    def render(**more):
        leaves = {name: scene[name].clone().requires_grad_() for name in names}
        z = leaves["means"][:, 2]
        values = {"extra_signals": torch.stack([z, z * z], -1)} if more["backend"] == "reference" else {}
        images = tsplat.rasterization(**scene | leaves | values | more)
        meta = images[-1]
        images = (*images[:2], meta["render_extra_signals"] if values else meta["squares"])
        gradients = torch.autograd.grad(images, [*leaves.values()], scenes.random_like(images, 0), allow_unused=True)
        return {**dict(zip(("colors", "alphas", "squares"), images)), **dict(zip(names, gradients))}

    for modes in ({}, {"packed": False}, {"render_mode": "RGB+ED"}, {"with_eval3d": True, "render_mode": "RGB-d"}):
        expected = render(backend="reference", packed=False, **{k: v for k, v in modes.items() if k != "packed"})
        for _ in range(3):
            found = render(backend=backend, return_normals=True, **modes)
            for name, value in found.items():
                assert_exact(name, value, expected[name])
