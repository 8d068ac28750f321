"""Camera motions and exposures."""

import math

import torch

from tsplat.scene import look_at
from tsplat.training.view_corrections import apply_exposure, identity_exposures, identity_motions, move_camera


def test_motion_is_a_rotation_and_a_translation_in_the_camera_frame():
    motion = torch.tensor([0.0, 0.0, math.pi / 2, 1.0, 2.0, 3.0])
    expected = torch.tensor([[0.0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]])
    assert torch.allclose(move_camera(torch.eye(4), motion), expected, atol=1e-6)


def test_motion_gradients():
    viewmat = look_at((1, 2, 3), (0, 0, 0)).double()
    generator = torch.Generator().manual_seed(1)
    for motion in (0.3 * torch.randn(6, dtype=torch.float64, generator=generator), torch.zeros(6, dtype=torch.float64)):
        assert torch.autograd.gradcheck(lambda m: move_camera(viewmat, m), (motion.requires_grad_(),))


def test_exposure_is_an_affine_map_of_colors():
    image, exposure = torch.rand(4, 5, 3), torch.rand(3, 4)
    expected = torch.einsum("hwi,ji->hwj", image, exposure[:, :3]) + exposure[:, 3]
    assert torch.allclose(apply_exposure(image, exposure), expected, atol=1e-6)


def test_identities():
    viewmat, image = look_at((1, 2, 3), (0, 0, 0)), torch.rand(4, 5, 3)
    assert torch.equal(move_camera(viewmat, identity_motions(2, image)[1]), viewmat)
    assert torch.equal(apply_exposure(image, identity_exposures(2, image)[1]), image)
