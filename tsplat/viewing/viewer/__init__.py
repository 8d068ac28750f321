"""An interactive viewer in a web browser, by viser. Needs the extra ``viewer``.

- :mod:`~tsplat.viewing.viewer.renderer`: a model, a camera and settings in, an image within a time budget out.
- :mod:`~tsplat.viewing.viewer.viewed_models`: what is shown.
- :mod:`~tsplat.viewing.viewer.worker`: renders the newest request of a client.
- :mod:`~tsplat.viewing.viewer.panel`, :mod:`~tsplat.viewing.viewer.session`, :mod:`~tsplat.viewing.viewer.server`: the
  controls, one client, and the web server.
"""

from .renderer import Frame, Pose, Renderer, Settings
from .server import Viewer
from .viewed_models import ViewedModel, open_viewed

__all__ = ["Frame", "Pose", "Renderer", "Settings", "ViewedModel", "Viewer", "open_viewed"]
