"""Training in one call, without a run folder."""

from collections.abc import Sequence
from contextlib import closing, nullcontext

from ...scene.capture.views import View
from ...scene.gaussians import Gaussians
from ...viewing.view_options import ViewOptions
from ..configuration import Config
from ..observers import OnStep
from ..trainer import Trainer
from .live_view import LiveView


def fit(
    gaussians: Gaussians,
    views: Sequence[View],
    config: Config | None = None,
    on_step: OnStep | None = None,
    view: ViewOptions | None = None,
) -> Gaussians:
    """Trains Gaussians on views for all steps, with a :class:`Trainer`.

    Args:
        gaussians: The initial Gaussians; not modified.
        views: Training views, on the Gaussians' device.
        config: Settings of training; None for the defaults.
        on_step: Called after each step; returning True ends training.
        view: Options of a viewer that shows the training in web browsers; None for no viewer.

    Returns:
        The Gaussians after the last step, detached.

    Raises:
        ArgumentError: There are no Gaussians or no views; see also :func:`tsplat.rasterization`.
        DivergedError: The loss, the gradients or the Gaussians are no longer finite.
        MissingExtraError: A package of the extra ``viewer``, which `view` needs, is not installed.

    Example::

        from tsplat.scene import Gaussians, procedural_capture
        from tsplat.training import Config, evaluate, fit

        capture = procedural_capture(48, 36, n_train=8, n_test=2, n_points=200)
        initial = Gaussians.from_points(capture.points, capture.colors)
        gaussians = fit(initial, capture.train, Config(steps=20, background=capture.background))
        print(evaluate(gaussians, capture.test, background=capture.background).psnr)
    """
    config = config or Config()
    viewer = nullcontext() if view is None else closing(LiveView(gaussians, views, config, view))
    with viewer as shown:
        trainer = Trainer(gaussians, views, config, observers=[] if shown is None else [shown])
        while trainer.step < config.steps:
            progress = trainer.advance()
            if on_step is not None and on_step(progress):
                break
        if shown is not None:
            shown.finish(trainer.gaussians)
    return trainer.gaussians
