"""Evaluation in 3D: every lens and shutter against the reference, rays of the caller, and closed forms."""

import pytest

from tests.stages.test_unscented import images_and_gradients
from tests.support.closeness import assert_exact
from tests.support.lenses import CASES, make

BACKENDS = [pytest.param("triton", marks=pytest.mark.triton)]
NAMES = ["means", "quats", "scales", "opacities", "colors", "backgrounds"]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("kind", "readout"), CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_and_gradients_match_reference(backend, kind, readout, seed):
    scene = make(kind, readout, seed, batch=(2,) if seed else (), sh_degree=2 if seed else None) | {"with_eval3d": True}
    names = NAMES + ["viewmats"] * (readout == "GLOBAL")
    options = dict(rasterize_mode="antialiased" if seed else "classic", numerics=("gsplat-1.5", "gsplat-1.6")[seed])
    *found, meta = images_and_gradients(scene, names, backend=backend, packed=seed == 0, **options)
    *expected, _ = images_and_gradients(scene, names, backend="reference", packed=False, **options)
    assert (meta["radii"] > 0).all(-1).sum() > 3 and found[1].max() > 0.1
    for name, one, other in zip(["colors", "alphas", *names], found, expected):
        assert_exact(name, one, other)
