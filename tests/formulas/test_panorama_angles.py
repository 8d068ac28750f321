"""Formulas of panoramas."""

import math

import torch

from tsplat.formulas.panorama_angles import full_panorama, longitude_and_latitude


def test_borders_of_a_full_panorama_are_a_turn_and_the_poles():
    fx, fy, cx, cy = full_panorama(640, 320)
    directions = torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0.0, 0, -1], [-0.0, 0, -1]]).double()
    longitudes, latitudes = longitude_and_latitude(*directions.unbind(-1))
    u, v = fx * longitudes + cx, fy * latitudes + cy
    assert torch.allclose(u[[0, 1, 4, 5]], torch.tensor([320.0, 480, 640, 0]).double())
    assert torch.allclose(v, torch.tensor([160.0, 160, 320, 0, 160, 160]).double())
    _, latitude = longitude_and_latitude(*torch.tensor([3.0, 5, 4]).double())
    assert math.isclose(latitude, math.pi / 4)
    assert fx * math.pi == fy * math.pi == 320
