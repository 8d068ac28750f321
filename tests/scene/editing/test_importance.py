"""The importance of Gaussians against images without them."""

import pytest
import torch

from tests.support.training_scenes import make_gaussians, make_views
from tsplat.rendering import render_views
from tsplat.scene.editing.importance import importance, removal_errors


@pytest.mark.slow
def test_errors_are_those_of_images_without_each_gaussian():
    gaussians = make_gaussians(n=12, sh_degree=1)
    cameras = [view.camera for view in make_views(gaussians, n=2)]
    generator = torch.Generator().manual_seed(0)
    n_probes = 300
    errors, weights = importance(gaussians, cameras * n_probes, backend="auto", generator=generator)

    def images(model, color):
        return torch.cat([render_views(model, [camera], background=color, backend="torch")[0] for camera in cameras])

    expected = []
    for i in range(12):
        rest = gaussians.map(lambda tensor, i=i: torch.cat([tensor[:i], tensor[i + 1 :]]))
        # The mean over colors of the background, uniform between 0 and 1: their mean, and their variance of 1/12.
        gray, black = (images(gaussians, color) - images(rest, color) for color in ((0.5,) * 3, (0.0,) * 3))
        expected.append((gray.square() + (2 * (gray - black)).square() / 12).sum())
    assert ((errors / n_probes / torch.stack(expected)).log().abs() < 0.35).all()
    ones = make_gaussians(n=12)
    ones.sh0[:] = 0.5 / 0.28209479177387814
    assert float(weights.sum()) / n_probes == pytest.approx(float(images(ones, (0.0,) * 3)[..., 0].sum()), rel=1e-4)


def test_hidden_gaussians_have_no_importance():
    gaussians = make_gaussians(n=12)
    gaussians.means[3] = torch.tensor([0.0, 500, 0])
    cameras = [view.camera for view in make_views(gaussians, n=3)]
    errors, weights = importance(gaussians, cameras, backend="torch", generator=torch.Generator().manual_seed(0))
    assert errors[3] == weights[3] == 0
    assert errors.count_nonzero() == weights.count_nonzero() == 11


def test_errors_alone_are_those_of_importance():
    gaussians = make_gaussians(n=12, sh_degree=1)
    cameras = [view.camera for view in make_views(gaussians, n=3)]
    both, alone = (torch.Generator().manual_seed(0) for _ in range(2))
    expected, _ = importance(gaussians, cameras, backend="torch", generator=both)
    with torch.no_grad():
        errors = removal_errors(gaussians, cameras, [None] * 3, backend="torch", generator=alone)
    torch.testing.assert_close(errors, expected, rtol=1e-3, atol=1e-5)
    assert not errors.requires_grad
    assert not removal_errors(gaussians, [], [], backend="torch", generator=alone).any()


def test_masked_pixels_do_not_count():
    gaussians = make_gaussians(n=12)
    cameras = [view.camera for view in make_views(gaussians, n=1)]
    camera = cameras[0]

    def errors(mask):
        generator = torch.Generator().manual_seed(0)
        return removal_errors(gaussians, cameras, [mask], backend="torch", generator=generator)

    nothing = torch.zeros(camera.height, camera.width, dtype=torch.bool)
    assert torch.equal(errors(~nothing), errors(None)) and errors(None).any()
    assert not errors(nothing).any()


def test_errors_of_2d_gaussians():
    gaussians = make_gaussians(n=12).as_surfels()
    cameras = [view.camera for view in make_views(make_gaussians(n=12), n=2)]
    generator = torch.Generator().manual_seed(0)
    assert removal_errors(gaussians, cameras, [None] * 2, backend="torch", generator=generator).count_nonzero() > 6
