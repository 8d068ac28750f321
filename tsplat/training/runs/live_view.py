"""Shows a training in web browsers while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import UnsupportedError
from ...scene.capture.views import View
from ...scene.gaussians import Gaussians
from ...support.extras import require
from ...viewing.trajectories import cameras_of_views
from ...viewing.viewer import LiveTraining, Viewer, frame_model
from ...viewing.viewer.server import ADDRESS, MODULES, PORT, check_address, open_in_browser, print_address
from ..configuration import Config
from ..history import History
from ..observers import Progress


@dataclasses.dataclass(frozen=True)
class ViewOptions:
    """How to show a training in web browsers.

    Attributes:
        address: Address to listen at; "0.0.0.0" for all.
        port: Port to listen at; the next free one where it is taken.
        open: Whether to open the page in a web browser on this computer.
        paused: Whether to wait for the page before the first step.
        stay: Whether :meth:`LiveView.finish` keeps the viewer open until Ctrl-C.
    """

    address: str = ADDRESS
    port: int = PORT
    open: bool = False
    paused: bool = False
    stay: bool = False


def check_view(options: ViewOptions | None, world_size: int) -> None:
    """Checks that a training can be shown, before any work.

    Raises:
        ArgumentError: The address is not one of this computer.
        MissingExtraError: A package of the extra ``viewer`` is not installed.
        UnsupportedError: There are several ranks.
    """
    if options is None:
        return
    if world_size > 1:
        raise UnsupportedError(
            f"view: not implemented for several ranks, found {world_size}; train without it, and show the checkpoints "
            "that the run has saved: tsplat view RUN"
        )
    require(*MODULES)
    check_address(options.address)


class LiveView:
    """Shows a training in web browsers. Images are rendered in the training thread, between steps.

    Args:
        gaussians: The Gaussians at first.
        views: Training views.
        config: Number of steps, background and backend.
        options: How to show it.
        test_views: Held-out views, to look at only.
        name: Name to show.
        step: Number of steps taken.
        folder: Folder that the page writes to, and reads from.

    Attributes:
        training: What the training and its pages exchange.
        check: Called while training is paused; raises an exception to end the pause.
        url: Address of the page for a browser on this computer.

    Raises:
        ArgumentError: The address is not one of this computer.
        MissingExtraError: A package of the extra ``viewer`` is not installed.
    """

    def __init__(
        self,
        gaussians: Gaussians,
        views: Sequence[View],
        config: Config,
        options: ViewOptions,
        *,
        test_views: Sequence[View] = (),
        name: str = "training",
        step: int = 0,
        folder: Path = Path("."),
    ) -> None:
        self.training = LiveTraining(gaussians, config.steps, step=step, backend=config.backend, paused=options.paused)
        self.check: Callable[[], object] = lambda: None
        self._options, self._closed = options, False
        cameras = [camera.to("cpu") for camera in cameras_of_views(views, test_views)]
        photographs = {view.name: view for view in (*views, *test_views)}
        model = frame_model(name, self.training.renderer, cameras, photographs, config.backdrop)
        self._viewer = Viewer(
            [model], address=options.address, port=options.port, training=self.training, folder=folder
        )
        self.url = self._viewer.url
        if options.open:
            open_in_browser(self.url)

    def print_address(self) -> None:
        """Prints where the training can be seen."""
        print_address(
            self._viewer, self._options.port, "the training", state=", paused" if self._options.paused else ""
        )

    def before_step(self, step: int, gaussians: Gaussians) -> None:
        """Renders what pages ask for, and waits while training is paused.

        Args:
            step: Number of steps taken.
            gaussians: The current Gaussians.
        """
        self.training.between_steps(step, gaussians, self.check)

    def record(self, progress: Progress) -> None:
        """Records every tenth step for the plots, and each that is taken alone."""
        self.training.step = progress.step
        if progress.step in (1, progress.steps) or progress.step % History.EVERY == 0 or self.training.paused:
            self.training.record(progress.step, float(progress.loss), float(progress.psnr), progress.n_gaussians)

    def record_history(self, history: History) -> None:
        """Records the earlier part of a resumed run for the plots."""
        for step, psnr in zip(history.train_steps, history.train_psnr, strict=True):
            self.training.record_psnr(step, psnr)

    def finish(self, gaussians: Gaussians) -> None:
        """Closes the viewer after the last step; with ``options.stay``, after Ctrl-C.

        Args:
            gaussians: The final Gaussians.
        """
        if self._options.stay:
            print(f"training has ended; the viewer stays open at {self.url} until Ctrl-C", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                self.training.stay(gaussians, self.check)
        self.close()

    def close(self) -> None:
        """Closes the viewer. The page says that the connection is lost."""
        if not self._closed:
            self._closed = True
            self.training.close()
            self._viewer.close()
