"""An interactive viewer in a web browser, by viser. Needs the extra ``viewer``.

- :mod:`~tsplat.viewing.viewer.renderer`: a model, a camera and settings in, an image within a time budget out.
- :mod:`~tsplat.viewing.viewer.viewed_models`: what is shown.
- :mod:`~tsplat.viewing.viewer.worker`: renders the newest request of a client.
- :mod:`~tsplat.viewing.viewer.drawing`: models that pages draw themselves.
- :mod:`~tsplat.viewing.viewer.live_training`, :mod:`~tsplat.viewing.viewer.training_tab`: a model that is being
  trained.
- :mod:`~tsplat.viewing.viewer.poses`, :mod:`~tsplat.viewing.viewer.comparison`,
  :mod:`~tsplat.viewing.viewer.keyframes`: cameras of viser, photographs compared with renders, and videos.
- :mod:`~tsplat.viewing.viewer.guard`, :mod:`~tsplat.viewing.viewer.messages`, :mod:`~tsplat.viewing.viewer.folder`: who
  may use the page, what it may send, and what it may write and read.
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
