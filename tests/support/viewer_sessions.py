"""Models for viewer clients, and functions for their controls."""

import contextlib
import dataclasses

import torch

from tests.support.training_scenes import make_gaussians, make_views
from tests.support.waiting import wait_for
from tsplat.viewing.trajectories import cameras_of_views
from tsplat.viewing.viewer.renderer import Renderer
from tsplat.viewing.viewer.viewed_models import ViewedModel


def viewed(name="model", with_views=True, sh_degree=1):
    gaussians = make_gaussians(sh_degree=sh_degree)
    shN = 0.3 * torch.randn(gaussians.shN.shape, generator=torch.Generator().manual_seed(0))
    gaussians = dataclasses.replace(gaussians, shN=shN)
    views = make_views(gaussians, 4) if with_views else []
    cameras = cameras_of_views(views[:3], views[3:])
    return ViewedModel(
        name, Renderer(gaussians), cameras, {view.name: view for view in views}, (0.2, 0.4, 0.6),
        [0.0, -1.0, -3.0], [0.0, 0.0, 0.0], [0.0, -1.0, 0.0], 45.0,
    )  # fmt: skip


@contextlib.contextmanager
def settled(client):
    """Waits for the final image after changes."""
    n = len(client.images)
    yield
    wait_for(lambda: len(client.images) > n and client.images[-1][1] == "png")


def control(client, label):
    """Returns the control with a label, which may be followed by a unit."""
    controls = client.gui.controls
    return (
        controls[label]
        if label in controls
        else next(controls[name] for name in controls if name.startswith(f"{label} ("))
    )


def described(client):
    """Returns the text about a training run."""
    texts = (getattr(control, "content", "") for control in client.gui.controls.values())
    return next(text for text in texts if text.startswith("**Step "))
