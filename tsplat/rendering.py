"""Renders a model with cameras; see :mod:`tsplat.scene.rendered_views`."""

from .scene.rendered_views import kind_of_call, render, render_views

__all__ = ["kind_of_call", "render", "render_views"]
