"""A live view of training in web browsers."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...errors import UnsupportedError
from ...scene.capture.local_frame import LocalFrame
from ...scene.capture.views import Capture, View
from ...scene.gaussians import Gaussians
from ...support.extras import require
from ...support.interruption import StopRequest
from ...viewing.trajectories import cameras_of_views
from ...viewing.view_options import ViewOptions
from ...viewing.viewer import LiveTraining, Viewer, frame_model
from ...viewing.viewer.server import MODULES, check_address, check_host_name, open_in_browser, print_address
from ..configuration import Config
from ..history import History
from ..observers import Observer, Progress, RunStart
from ..trainer import Trainer
from .scenes import views_of_model
from .sessions import RunSession


def check_view(options: ViewOptions | None, world_size: int) -> None:
    """Checks that training can be shown: there is one rank, viser is installed, and the address is of this computer."""
    if options is not None:
        LiveView.check_ranks(world_size)
        require(*MODULES)
        check_address(options.address)
        check_host_name(options.host_name)


class LiveView(Observer):
    """Shows training in web browsers. Images are rendered in the training thread, between steps.

    Args:
        gaussians: The initial Gaussians.
        views: Training views.
        config: Number of steps, background and backend.
        options: Options of the viewer.
        test_views: Held-out views, whose cameras are shown, too.
        name: Name of the model in the viewer.
        step: Number of steps taken.
        folder: Folder that the viewer writes to and reads from.
        frame: The local frame of Gaussians and views; pages show the frame of the model.

    Attributes:
        training: State that training and its pages share.
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
        frame: LocalFrame | None = None,
    ) -> None:
        self._frame = frame or LocalFrame()
        gaussians = self._frame.gaussians_of_model(gaussians)
        self.training = LiveTraining(gaussians, config.steps, step=step, backend=config.backend, paused=options.paused)
        self.check: Callable[[], object] = lambda: None
        self._options, self._closed = options, False
        cameras = cameras_of_views(views, test_views, self._frame)
        photographs = views_of_model(views, test_views, self._frame)
        model = frame_model(name, self.training.renderer, cameras, photographs, config.backdrop)
        self._viewer = Viewer(
            [model],
            address=options.address,
            port=options.port,
            training=self.training,
            folder=folder,
            host_name=options.host_name,
        )
        self.url = self._viewer.url
        if options.open:
            open_in_browser(self.url)

    def print_address(self) -> None:
        """Prints the address of the page that shows the training."""
        print_address(self._viewer, self._options.port, "training", state=", paused" if self._options.paused else "")

    @staticmethod
    def check_ranks(world_size: int) -> None:
        """Raises :class:`UnsupportedError` if there are several ranks."""
        if world_size > 1:
            raise UnsupportedError(
                f"view: not implemented for several ranks, found {world_size}; train without it, and show the "
                "checkpoints that the run has saved: tsplat view RUN"
            )

    def during(self, run: RunStart) -> contextlib.AbstractContextManager[None]:
        """Records the earlier part of a resumed run for the plots, and lets pages save checkpoints."""
        self.training.save = run.save
        for step, psnr in run.train_psnr:
            self.training.record_psnr(step, psnr)
        return contextlib.nullcontext()

    def before_step(self, step: int, gaussians: Gaussians) -> None:
        """Renders what pages ask for, and waits while training is paused."""
        self.training.between_steps(step, self._frame.gaussians_of_model(gaussians), self.check)

    def after_step(self, progress: Progress) -> None:
        """Records every tenth step for the plots, and each step while training is paused."""
        self.training.step = progress.step
        if progress.step in (1, progress.steps) or progress.step % History.EVERY == 0 or self.training.paused:
            self.training.record(progress.step, float(progress.loss), float(progress.psnr), progress.n_gaussians)

    def between_views(self, gaussians: Gaussians) -> None:
        """Renders what pages ask for."""
        self.training.serve(self._frame.gaussians_of_model(gaussians))

    def finish(self, gaussians: Gaussians, result: str = "") -> None:
        """Closes the viewer after the last step or, with ``options.stay``, after Ctrl-C.

        Args:
            gaussians: The final Gaussians.
            result: Message for the pages, with the command that shows the result.
        """
        self.training.result = result
        if self._options.stay:
            print(f"training has ended; the viewer stays open at {self.url} until Ctrl-C", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                self.training.stay(self._frame.gaussians_of_model(gaussians), self.check)
        self.close(result)

    def close(self, message: str = "") -> None:
        """Closes the viewer. Pages show `message`, if it is not empty, and that the connection is lost."""
        if not self._closed:
            self._closed = True
            self.training.close()
            self._viewer.close(message)


@contextlib.contextmanager
def shown(
    trainer: Trainer,
    capture: Capture,
    options: ViewOptions | None,
    folder: Path,
    stop: StopRequest,
    session: RunSession,
) -> Iterator[None]:
    """Context manager that shows the training of a run and prints its address. Does nothing if `options` is None.

    The viewer is added to the trainer's observers. `stop` ends a pause; `session` measures the time of the viewer's
    rendering and pauses.
    """
    if options is None:
        yield
        return
    view = LiveView(
        trainer.gaussians,
        capture.train,
        trainer.config,
        options,
        test_views=capture.test,
        name=folder.resolve().name,
        step=trainer.step,
        folder=folder / "viewer",
        frame=capture.frame,
    )
    view.check = stop.check
    view.training.measure = functools.partial(session.measure, "viewing")
    trainer.observers.append(view)
    try:
        view.print_address()
        yield
        result = f"{'finished' if trainer.step >= trainer.config.steps else 'stopped'}: tsplat view {folder}"
        view.finish(trainer.gaussians, result)
        print(result)
    finally:
        view.close()
        trainer.observers.remove(view)
