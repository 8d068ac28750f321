"""Tests that every supported layout of the same photographs has the same cameras as COLMAP."""

import pytest
import torch

from tests.support.captures import project
from tests.support.slow import slow_after
from tests.tools.imported_captures import LAYOUTS, make_scene
from tsplat.scene import read_capture

pytest.importorskip("pycolmap")


@pytest.fixture(scope="module")
def scene():
    views, points, colors = make_scene(11, 300)
    return views, points, colors


@pytest.mark.parametrize("layout", slow_after(4, LAYOUTS))
def test_points_are_where_colmap_has_them(tmp_path, scene, layout):
    views, points, _ = scene
    if layout.endswith("depth"):
        pytest.importorskip("OpenEXR")
    LAYOUTS[layout](tmp_path / "scene", *scene)
    capture = read_capture(tmp_path / "scene", test_every=0)
    found = sorted((*capture.train, *capture.test), key=lambda view: view.name)
    assert len(found) == len(views) and not capture.random_points
    # Points that are read in their order can be compared directly in any frame of the files.
    read = points if layout.endswith("depth") else capture.points
    for view, other in zip(views, found, strict=True):
        expected, depth = project(points, view.camera.viewmat, view.camera.K)
        pixels, other_depth = project(read, other.camera.viewmat, other.camera.K)
        assert float((pixels - expected).norm(dim=1).max()) < 0.1
        assert torch.allclose(other_depth / depth, (other_depth / depth)[:1].expand_as(depth), rtol=1e-3)
        assert (other.image.float() - view.image.float()).abs().mean() < 1.0
