"""The benchmark of captures of thousands of views."""

import torch

from benchmarks.many_views import WARM_UP, measure, write_views
from tsplat.scene import read_capture
from tsplat.scene.capture import photographs


def test_views_repeat_the_photographs_and_are_read_when_they_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(photographs, "BYTES_MAX", 2**12)
    write_views(tmp_path / "scene", 12, 3, (32, 24), 60)
    views = read_capture(tmp_path / "scene", test_every=0).train
    assert len(views) == 12 and views[0].source.cache is views[1].source.cache
    assert torch.equal(views[1].pixels, views[4].pixels) and not torch.equal(views[1].pixels, views[2].pixels)
    assert torch.equal(views[1].camera.viewmat, views[4].camera.viewmat)
    found = measure(tmp_path / "scene", WARM_UP + 2)
    assert found.startswith("10 training views: loaded in ") and " 2 steps in " in found
