"""Tests of the tool that runs gsplat's tests: copies for the CPU, and replacements of nerfacc's functions."""

import torch

from tests.tools import gsplat_tests


def test_weights_are_those_of_each_ray():
    alphas = torch.tensor([0.5, 0.25, 0.8, 0.1], requires_grad=True)
    rays = torch.tensor([0, 0, 2, 2])
    weights, left = gsplat_tests.render_weight_from_alpha(alphas, ray_indices=rays, n_rays=3)
    torch.testing.assert_close(left, torch.tensor([1.0, 0.5, 1.0, 0.2]))
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.125, 0.8, 0.02]))
    sums = gsplat_tests.accumulate_along_rays(weights, None, ray_indices=rays, n_rays=3)
    torch.testing.assert_close(sums, torch.tensor([[0.625], [0.0], [0.82]]))
    doubled = gsplat_tests.accumulate_along_rays(weights, torch.full((4, 2), 2.0), ray_indices=rays, n_rays=3)
    torch.testing.assert_close(doubled, (2 * sums).expand(3, 2))
    (gradient,) = torch.autograd.grad(sums.sum(), alphas)
    torch.testing.assert_close(gradient, torch.tensor([0.75, 0.5, 0.9, 0.2]))
    assert gsplat_tests.pack_info(rays, 3).tolist() == [[0, 2], [2, 0], [2, 2]]


def test_copies_are_for_cpus(tmp_path):
    checkout, copied = tmp_path / "checkout", tmp_path / "copied"
    for folder in (checkout / "gsplat" / "cuda", checkout / "tests", checkout / "assets", copied):
        folder.mkdir(parents=True)
    (checkout / "assets" / "test_garden.npz").touch()
    (checkout / "gsplat" / "cuda" / "_torch_lidars.py").write_text('object.__setattr__(params, "fov", 1)\n')
    (checkout / "tests" / "conftest.py").touch()
    (checkout / "tests" / "test_2dgs.py").write_text(
        'from tests.test_cameras import parse\nx = torch.ones(2, device="cuda:0").cuda()\nW, H = 640, 480\n'
    )
    gsplat_tests.copy(checkout, copied, None, False)
    assert (copied / "gsplat_tests" / "test_2dgs.py").read_text() == (
        'from gsplat_tests.parsed_cameras import parse\nx = torch.ones(2, device="cpu").cpu()\nW, H = 160, 120\n'
    )
    assert not (copied / "gsplat_tests" / "conftest.py").exists()
    assert (copied / "gsplat_own" / "cuda" / "_torch_lidars.py").read_text() == 'object.__setattr__(self, "fov", 1)\n'
    assert gsplat_tests._shape("error 1.5e-3 > 2 at (0, 1)\nmore") == "error # > # at (#, #)"
