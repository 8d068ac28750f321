"""Camera motions and exposures."""

import math

import torch

from tsplat.runtime.process_group import RankGroup
from tsplat.scene import look_at
from tsplat.training.view_corrections import (
    GAIN_MAX,
    GAIN_SPREAD,
    ViewGains,
    apply_exposure,
    apply_motion,
    identity_exposures,
    identity_motions,
)


def test_motion_is_a_rotation_and_a_translation_in_the_camera_frame():
    motion = torch.tensor([0.0, 0.0, math.pi / 2, 1.0, 2.0, 3.0])
    expected = torch.tensor([[0.0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]])
    assert torch.allclose(apply_motion(torch.eye(4), motion), expected, atol=1e-6)


def test_motion_gradients():
    viewmat = look_at((1, 2, 3), (0, 0, 0)).double()
    generator = torch.Generator().manual_seed(1)
    for motion in (0.3 * torch.randn(6, dtype=torch.float64, generator=generator), torch.zeros(6, dtype=torch.float64)):
        assert torch.autograd.gradcheck(lambda m: apply_motion(viewmat, m), (motion.requires_grad_(),))


def test_exposure_is_an_affine_map_of_colors():
    image, exposure = torch.rand(4, 5, 3), torch.rand(3, 4)
    expected = torch.einsum("hwi,ji->hwj", image, exposure[:, :3]) + exposure[:, 3]
    assert torch.allclose(apply_exposure(image, exposure), expected, atol=1e-6)


def test_identities():
    viewmat, image = look_at((1, 2, 3), (0, 0, 0)), torch.rand(4, 5, 3)
    assert torch.equal(apply_motion(viewmat, identity_motions(2, image)[1]), viewmat)
    assert torch.equal(apply_exposure(image, identity_exposures(2, image)[1]), image)


def observe(gains, index, *given):
    gains.add_change(index, gains.estimate(index, *given))


def test_gains_converge_to_the_ratios_of_the_views_around_one():
    truth = torch.tensor([[0.5, 0.6, 1.0], [2.0, 1.5, 1.0], [1.0, 1.0, 1.2]])
    images = torch.rand(3, 6, 5, 3) + 0.1
    gains = ViewGains(3, images)
    for _ in range(20):
        for index, image in enumerate(images):
            observe(gains, index, image, image * truth[index], None)
        gains.update(RankGroup())
    torch.testing.assert_close(gains.logs, truth.log() - truth.log().mean(0), rtol=0, atol=1e-3)
    expected = images[1] * (truth[1] / truth.prod(0) ** (1 / 3))
    torch.testing.assert_close(gains.apply(1, images[1]), expected, rtol=2e-3, atol=0)
    # Half the logarithms at the threshold, and none far below it.
    gains.logs[:] = torch.tensor([[GAIN_SPREAD], [-GAIN_SPREAD], [GAIN_SPREAD]])
    torch.testing.assert_close(gains.apply(1, images[1]), images[1] * math.exp(-GAIN_SPREAD / 2))
    gains.logs /= 4
    torch.testing.assert_close(gains.apply(1, images[1]), images[1], rtol=1e-3, atol=0)


def test_gains_converge_where_a_step_renders_a_view_many_times():
    truth, image = torch.tensor([[0.5], [2.0]]), torch.rand(6, 5, 3) + 0.1
    gains = ViewGains(2, image, views_per_step=12)
    for _ in range(10):
        for index in 6 * [0, 1]:
            observe(gains, index, image, image * truth[index], None)
        gains.update(RankGroup())
    torch.testing.assert_close(gains.logs, truth.log().expand(2, 3))


def test_gains_ignore_masked_pixels_and_images_without_content():
    image, mask = torch.rand(4, 4, 3) + 0.1, torch.zeros(4, 4, dtype=torch.bool)
    mask[:2] = True
    gains = ViewGains(2, image)
    observe(gains, 0, image, torch.where(mask[..., None], 2 * image, 9.0), mask)
    observe(gains, 1, torch.zeros(4, 4, 3), image, None)
    gains.update(RankGroup())
    # A ratio of 2, averaged with 1; the mean of both views is one.
    torch.testing.assert_close(gains.logs[0], torch.full((3,), 0.25 * math.log(2)))
    observe(gains, 0, 1e-3 * image, image, None)
    gains.update(RankGroup())
    assert gains.logs.abs().max() < math.log(GAIN_MAX)
