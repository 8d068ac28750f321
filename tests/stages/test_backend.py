"""Choice of the backend: errors where the Triton kernels cannot run."""

import pytest
import torch

import tsplat
from tests.support import scenes


def test_triton_on_cpu_raises(monkeypatch):
    scene = scenes.make(scenes.Structure(n=12, cameras=2), torch.float32)
    monkeypatch.setattr("tsplat.stages.backend.triton_is_interpreted", lambda: False)
    with pytest.raises(tsplat.BackendError, match=r"'triton' needs CUDA or ROCm tensors, found cpu; use .cuda\(\) or"):
        tsplat.rasterization(**scene, backend="triton")
    monkeypatch.setattr("tsplat.stages.backend.has_triton", lambda: False)
    with pytest.raises(tsplat.BackendError, match="'triton' needs the triton package; pip install triton"):
        tsplat.rasterization(**scene, backend="triton")
