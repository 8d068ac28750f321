"""Renders a model with cameras; see :mod:`tsplat.scene.rendered_views`."""

from .scene.rendered_views import render, render_views

__all__ = ["render", "render_views"]
