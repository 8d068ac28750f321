"""Connects training to the pages that show it: the training thread renders images between steps."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch

from ...config import Backend
from ...errors import ArgumentError
from ...scene.cameras import Camera
from ...scene.gaussians import Gaussians
from ...scene.option_types import Box
from .renderer import Frame, Renderer, Settings
from .training_state import Curve, Points, TrainingState

T = TypeVar("T")

SHARE = 0.25
"""Default fraction of the time for rendering images while training runs and a page is visible."""

SHARE_MAX = 0.9

SAVED_SECONDS = 0.1
"""Maximum rendering time in seconds that is saved up while no image is rendered."""

IMAGE_SECONDS = 0.25
"""Time budget in seconds of an image with the camera at rest, while training runs."""

POLL_SECONDS = 0.1
"""Seconds between checks, while training is paused, of whether a signal asked it to stop."""

MARK_INTERVAL, N_MARKS = 0.5, 10
"""Interval in seconds, and number of intervals, over which the speed is measured."""


class LiveRenderer(Renderer):
    """Renders the Gaussians that are being trained, in the training thread."""

    def __init__(self, gaussians: Gaussians, backend: Backend, training: "LiveTraining") -> None:
        super().__init__(gaussians, backend)
        self._training = training

    def show(self, gaussians: Gaussians) -> None:
        """Renders these Gaussians from now on."""
        self.gaussians = gaussians
        self._cropped = (None, gaussians)

    def render(self, *arguments: Any, **options: Any) -> Frame:
        """See :meth:`Renderer.render`; called in the training thread."""
        return self._training.call(partial(super().render, *arguments, **options), is_image=True)

    def cropped(self, box: Box | None) -> Gaussians:
        """See :meth:`Renderer.cropped`; outside of the training thread, returns a copy, as steps change tensors."""
        if self._training.is_training_thread():
            return super().cropped(box)
        return self._training.call(lambda: Renderer.cropped(self, box).map(lambda tensor: tensor.clone()))

    def is_large(self) -> bool:
        """Returns False: each step changes which Gaussians matter most in an image, so none are left out."""
        return False

    def seen_by(self, camera: Camera, settings: Settings, n_max: int | None = None) -> Gaussians:
        """Returns all Gaussians in the crop box: steps change the Gaussians, so culling boxes would not be valid."""
        return self.cropped(settings.crop)


class _Call(Future[Any]):
    """A call for the training thread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function

    def run(self) -> None:
        """Calls the function and sets the result, for which another thread waits."""
        try:
            self.set_result(self._function())
        except Exception as error:
            self.set_exception(error)
        except BaseException:
            self.set_exception(_ended())
            raise


class LiveTraining:
    """Connects a training run to its viewer pages.

    The training thread calls :meth:`between_steps`; all other threads call the other methods. While training runs,
    images take at most the fraction :attr:`share` of the time. If no page requests images, the overhead is less than
    0.1 ms per step.

    Args:
        gaussians: The initial Gaussians.
        steps: Total number of steps.
        step: Number of steps taken.
        backend: As in :func:`tsplat.rasterization`.
        paused: Whether to wait before the first step.

    Attributes:
        renderer: Renders the newest Gaussians.
        save: Saves a checkpoint in the training thread, and returns a message; None if there is nothing to save to.
        result: Message with the command that shows the result; empty before the end.
        measure: Returns a context manager in which the training thread renders and waits.
    """

    def __init__(
        self, gaussians: Gaussians, steps: int, *, step: int = 0, backend: Backend = "auto", paused: bool = False
    ) -> None:
        self.renderer = LiveRenderer(gaussians, backend, self)
        self.save: Callable[[], str] | None = None
        self.result = ""
        self.measure: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.steps, self.step, self.share = steps, step, SHARE
        self._values: tuple[float, float] | None = None
        self._psnr, self._n_gaussians = Curve(), Curve()
        self._condition = threading.Condition()
        self._images: deque[_Call] = deque()
        self._others: deque[_Call] = deque()
        self._closed = self._finished = False
        self._thread: int | None = None
        # Number of steps that training may take before it pauses.
        self._allowed = 0 if paused else math.inf
        self._credit = SAVED_SECONDS
        self._left = time.perf_counter()
        self._paused_seconds = 0.0
        self._marks: deque[tuple[float, int]] = deque(maxlen=N_MARKS)

    # The training thread

    def between_steps(self, step: int, gaussians: Gaussians, check: Callable[[], object] = lambda: None) -> None:
        """Renders images that pages requested, within the share of the time, and waits while training is paused.

        Args:
            step: Number of steps taken.
            gaussians: The current Gaussians.
            check: Called while training is paused; raises an exception to end the pause.
        """
        self.step = step
        self.serve(gaussians)
        if self.paused:
            start = time.perf_counter()
            with self.measure():
                try:
                    while self.paused and not self._closed:
                        check()
                        self.serve(gaussians, POLL_SECONDS)
                finally:
                    self._paused_seconds += time.perf_counter() - start
                    self._left = time.perf_counter()
        with self._condition:
            self._allowed = max(self._allowed - 1, 0)
        now = time.perf_counter() - self._paused_seconds
        if not self._marks or now - self._marks[-1][0] > MARK_INTERVAL:
            self._marks.append((now, self.step))

    def serve(self, gaussians: Gaussians, seconds: float = 0.0) -> None:
        """Renders images that pages requested, within the share of the time, and returns.

        Args:
            gaussians: The current Gaussians.
            seconds: Maximum time to wait for a call.
        """
        earned = (time.perf_counter() - self._left) * self.share / (1 - self.share)
        self._credit = min(self._credit + earned, max(SAVED_SECONDS, earned))
        self._thread = threading.get_ident()
        # Also if no image is rendered, so that replaced tensors are freed.
        self.renderer.show(gaussians)
        if (call := self._next(seconds)) is not None:
            with self.measure():
                while call is not None:
                    call.run()
                    call = self._next(0.0)
        self._left = time.perf_counter()

    def stay(self, gaussians: Gaussians, check: Callable[[], object]) -> None:
        """Renders images that pages request after the last step, until `check` raises or :meth:`close` is called."""
        self._finished = True
        self.pause()
        while not self._closed:
            check()
            self.serve(gaussians, POLL_SECONDS)

    def record(self, step: int, loss: float, psnr: float, n_gaussians: int) -> None:
        """Records values of a step for the plots."""
        with self._condition:
            self.step, self._values = step, (loss, psnr)
            if math.isfinite(psnr):
                self._psnr.add(step, psnr)
            self._n_gaussians.add(step, n_gaussians)

    def record_psnr(self, step: int, psnr: float) -> None:
        """Records a step of an earlier session of training for the plots."""
        with self._condition:
            self._psnr.add(step, psnr)

    def close(self) -> None:
        """Ends a pause and cancels all pending calls."""
        with self._condition:
            self._closed = True
            calls = [*self._images, *self._others]
            self._images.clear()
            self._others.clear()
            self._condition.notify_all()
        for call in calls:
            call.set_exception(_ended())

    def _next(self, seconds: float) -> _Call | None:
        """Returns the next call that is due, after waiting for at most `seconds`; None if there is none."""
        with self._condition:
            if seconds:
                self._condition.wait_for(lambda: self._images or self._others or not self.paused, seconds)
            if self._others:
                return self._others.popleft()
            may_render = self.paused or (self.share > 0 and self._credit > 0)
            return self._images.popleft() if self._images and may_render else None

    # Other threads

    def call(self, function: Callable[[], T], *, is_image: bool = False) -> T:
        """Calls a function in the training thread between two steps, and returns its result.

        Args:
            is_image: Whether the duration counts as time for images.

        Raises:
            RuntimeError: Training has ended.
            Exception: As the function raises.
        """
        if self.is_training_thread():
            return function()
        call = _Call(partial(self._render, function) if is_image else function)
        with self._condition:
            if self._closed:
                raise _ended()
            (self._images if is_image else self._others).append(call)
            self._condition.notify_all()
        result: T = call.result()
        return result

    def is_training_thread(self) -> bool:
        """Returns whether the caller is the training thread."""
        return self._thread == threading.get_ident()

    @property
    def paused(self) -> bool:
        """Whether training waits for :meth:`resume` or :meth:`take_step`."""
        return self._allowed == 0

    def pause(self) -> None:
        """Pauses training after the current step."""
        self._allow(0)

    def resume(self) -> None:
        """Lets training continue."""
        self._allow(math.inf)

    def take_step(self) -> None:
        """Lets training take one step, and then pause."""
        self._allow(1)

    def set_share(self, share: float) -> None:
        """Sets the fraction of the time for images while training runs.

        Raises:
            ArgumentError: The share is not between 0 and 0.9.
        """
        if not 0 <= share <= SHARE_MAX:
            raise ArgumentError(f"share: expected a number from 0 to {SHARE_MAX}, found {share}")
        self.share = share

    def save_checkpoint(self) -> str:
        """Saves a checkpoint between two steps, and returns a message."""
        assert self.save is not None
        return self.call(self.save)

    @property
    def seconds_at_rest(self) -> float | None:
        """Time budget in seconds of an image at rest; None, for full size, while training is paused."""
        return None if self.paused else IMAGE_SECONDS

    def state(self) -> TrainingState:
        """Returns the current state."""
        with self._condition:
            loss, psnr = self._values or (None, None)
            marks = list(self._marks)
        speed = None
        if len(marks) > 1:
            speed = (marks[-1][1] - marks[0][1]) / max(marks[-1][0] - marks[0][0], 1e-9)
        return TrainingState(
            step=self.step,
            steps=self.steps,
            loss=loss,
            psnr=psnr,
            n_gaussians=len(self.renderer.gaussians),
            speed=speed,
            paused=math.isfinite(self._allowed),
            finished=self._finished,
            can_save=self.save is not None and not self._finished,
            share=self.share,
            result=self.result,
        )

    def curves(self) -> tuple[Points, Points]:
        """Returns steps and values of the PSNR and of the number of Gaussians."""
        with self._condition:
            return self._psnr.arrays(), self._n_gaussians.arrays()

    def _allow(self, steps: float) -> None:
        with self._condition:
            self._allowed = steps
            self._condition.notify_all()

    def _render(self, function: Callable[[], T]) -> T:
        """Calls a function, whose duration counts as time for images unless training is paused."""
        if self.renderer.gaussians.means.is_cuda:
            torch.cuda.synchronize()  # otherwise, the rest of the step would count as time for the image
        start, was_paused = time.perf_counter(), self.paused
        try:
            return function()
        finally:
            if not was_paused:
                self._credit -= time.perf_counter() - start


def _ended() -> RuntimeError:
    return RuntimeError("training has ended")
