from ..rendering import render, render_views
from .framing import guess_up, look_at_all
from .notebooks import show
from .page_parts import Annotation, PageExtras, read_annotations
from .scene_pages import ScenePage, export_page, write_page
from .start_views import StartView, first_view
from .trajectories import orbit_around, path_along, read_cameras, spiral_at
from .videos import render_frames, write_frames

__all__ = [
    "Annotation",
    "PageExtras",
    "ScenePage",
    "StartView",
    "export_page",
    "first_view",
    "guess_up",
    "look_at_all",
    "orbit_around",
    "path_along",
    "read_annotations",
    "read_cameras",
    "render",
    "render_frames",
    "render_views",
    "show",
    "spiral_at",
    "write_frames",
    "write_page",
]
