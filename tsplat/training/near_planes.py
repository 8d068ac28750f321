"""Near planes for views whose cameras have none."""

import dataclasses
from collections.abc import Sequence

from ..runtime.process_group import RankGroup
from ..scene.capture.views import View
from ..scene.extents import near_plane
from ..scene.gaussians import Gaussians


def views_with_near_planes(views: Sequence[View], gaussians: Gaussians, ranks: RankGroup) -> Sequence[View]:
    """Returns the views with a near plane for each camera, the same on all ranks. A collective call.

    Cameras without a near plane get a common one, computed from the Gaussians that they show. `gaussians` are all
    Gaussians, or the shard of this rank.
    """
    missing = [view.camera for view in views if view.camera.near is None]
    if not missing:
        return views
    planes = [near for near in ranks.all_gather_object(near_plane(missing, gaussians.means)) if near is not None]
    near = min(planes, default=None)
    return [
        view if view.camera.near is not None else view.replaced(camera=dataclasses.replace(view.camera, near=near))
        for view in views
    ]
