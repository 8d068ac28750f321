"""An interactive viewer in a web browser, based on viser. Requires the extra ``viewer``.

- :mod:`~tsplat.viewing.viewer.renderer`: renders images of a model within a time budget.
- :mod:`~tsplat.viewing.viewer.viewed_models`: models with their cameras, photographs and framing.
- :mod:`~tsplat.viewing.viewer.worker`: renders the newest request of a client.
- :mod:`~tsplat.viewing.viewer.drawing`: models that browsers draw.
- :mod:`~tsplat.viewing.viewer.live_training`, :mod:`~tsplat.viewing.viewer.training_tab`: a model that is being
  trained.
- :mod:`~tsplat.viewing.viewer.poses`, :mod:`~tsplat.viewing.viewer.comparison`,
  :mod:`~tsplat.viewing.viewer.keyframes`: cameras of viser, comparisons with photographs, and videos.
- :mod:`~tsplat.viewing.viewer.guard`, :mod:`~tsplat.viewing.viewer.messages`, :mod:`~tsplat.viewing.viewer.folder`:
  checks of requests and messages, and of the files that pages write and read.
- :mod:`~tsplat.viewing.viewer.callbacks`, :mod:`~tsplat.viewing.viewer.panel`, and
  :mod:`~tsplat.viewing.viewer.cameras_tab`, :mod:`~tsplat.viewing.viewer.crop_tab`,
  :mod:`~tsplat.viewing.viewer.video_tab`: the controls.
- :mod:`~tsplat.viewing.viewer.session`, :mod:`~tsplat.viewing.viewer.server`: one client, and the web server.
"""

from .live_training import LiveTraining
from .renderer import Frame, Pose, Renderer, Settings
from .server import Viewer
from .viewed_models import ViewedModel, frame_model, open_viewed

__all__ = [
    "Frame",
    "LiveTraining",
    "Pose",
    "Renderer",
    "Settings",
    "ViewedModel",
    "Viewer",
    "frame_model",
    "open_viewed",
]
