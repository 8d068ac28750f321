"""A training and its pages: calls between steps, the share of the time for images, pauses."""

import threading
import types

import numpy as np
import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tests.support.waiting import wait_for
from tsplat import ArgumentError
from tsplat.scene import look_at
from tsplat.viewing.viewer import LiveTraining, Pose, Renderer, Settings
from tsplat.viewing.viewer import live_training as module
from tsplat.viewing.viewer.training_state import MAX_POINTS, Curve

POSE = Pose(look_at((0, 0, -3), (0, 0, 0)), 0.8, 32, 24)


@pytest.fixture
def gaussians():
    return make_gaussians()


@pytest.fixture
def training(gaussians):
    training = LiveTraining(gaussians, 100, backend="torch")
    yield training
    training.close()


class Other(threading.Thread):
    """Calls a function in another thread."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.result, self.error = function, None, None
        self.start()

    def raised(self):
        """Waits for the function, and raises what it raised."""
        self.join(60)
        raise self.error

    def run(self):
        try:
            self.result = self.function()
        except Exception as error:
            self.error = error


def between_steps(training, gaussians, step=1, check=lambda: None):
    training.between_steps(step, gaussians, check)


def wait_for_calls(training, n=1):
    wait_for(lambda: len(training._images) + len(training._others) == n)


def test_images_are_rendered_by_the_training_thread_between_steps(training, gaussians):
    threads = []
    training.measure = lambda: threads.append(threading.current_thread()) or module.nullcontext()
    other = Other(lambda: training.renderer.render(POSE, Settings()))
    wait_for_calls(training)
    assert other.is_alive()
    assert not threads
    newer = gaussians.map(lambda tensor: tensor + 0.1)
    between_steps(training, newer)
    other.join(60)
    assert threads == [threading.current_thread()]
    assert np.array_equal(other.result.image, Renderer(newer, "torch").render(POSE, Settings()).image)


@pytest.mark.parametrize("crop", [None, ((0.0, -9.0, -9.0), (9.0, 9.0, 9.0))])
def test_exported_gaussians_are_not_changed_by_later_steps(training, gaussians, crop):
    other = Other(lambda: training.renderer.cropped(crop))
    wait_for_calls(training)
    between_steps(training, gaussians)
    other.join(60)
    expected = Renderer(gaussians).cropped(crop).means.clone()
    gaussians.means.add_(1)
    assert torch.equal(other.result.means, expected)
    assert (0 < len(expected) < len(gaussians)) == (crop is not None)


def test_errors_are_raised_where_the_call_was_made(training, gaussians):
    other = Other(lambda: training.call(lambda: 1 / 0))
    wait_for_calls(training)
    between_steps(training, gaussians)
    with pytest.raises(ZeroDivisionError):
        other.raised()


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
def test_images_take_no_more_than_their_share_of_the_time(training, gaussians, share, monkeypatch):
    now, images = 0.0, 0
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: now))
    training._left = now
    training.set_share(share)

    def render():
        nonlocal now, images
        now += 0.04
        images += 1

    for step in range(100):
        now += 0.1
        between_steps(training, gaussians, step)
    idle = now
    for step in range(100, 401):
        now += 0.1
        while len(training._images) < 50:  # always more than there is time for
            training._images.append(module._Call(lambda: training._render(render)))
        between_steps(training, gaussians, step)
    assert (images > 0) == (share > 0)
    busy = share * (now - idle)
    assert busy - 0.2 <= 0.04 * images <= busy + 0.2
    # Other calls do not wait for their share.
    called = []
    training._others.append(module._Call(lambda: called.append(True)))
    between_steps(training, gaussians)
    assert called


def test_invalid_share(training):
    with pytest.raises(ArgumentError, match=r"share: expected a number from 0 to 0\.9, found 1"):
        training.set_share(1)


def test_pause_one_step_and_resume(training, gaussians):
    steps = []

    def train():
        while len(steps) < 10:
            between_steps(training, gaussians, len(steps))
            steps.append(threading.get_ident())

    training.pause()
    thread = Other(train)
    for n in range(3):
        # All calls are answered during a pause, whatever their share.
        training.set_share(0.0)
        assert training.renderer.render(POSE, Settings()).image.shape == (24, 32, 3)
        assert (len(steps), training.step, training.paused) == (n, n, True)
        training.take_step()
        wait_for(lambda n=n: training.step == n + 1)
        assert training.state().paused
    assert training.seconds_at_rest is None
    training.resume()
    thread.join(60)
    assert len(steps) == 10
    assert not training.paused
    assert training.seconds_at_rest == module.IMAGE_SECONDS


def test_check_ends_a_pause(training, gaussians):
    def check():
        raise KeyboardInterrupt

    training.pause()
    with pytest.raises(KeyboardInterrupt):
        between_steps(training, gaussians, check=check)


def test_pauses_do_not_count_as_time_for_steps(training, gaussians, monkeypatch):
    now = 0.0
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: now))

    def wait(_condition, seconds):
        nonlocal now
        now += 1000.0
        training.resume()

    monkeypatch.setattr(training._condition, "wait_for", wait)
    for step in range(20):
        if step == 10:
            training.pause()
        between_steps(training, gaussians, step)
        now += 0.5
    assert training.state().speed == pytest.approx(2.0)


def test_close_ends_calls_and_pauses(training, gaussians):
    other = Other(lambda: training.renderer.render(POSE, Settings()))
    wait_for_calls(training)
    training.pause()
    training.close()
    with pytest.raises(RuntimeError, match="training has ended"):
        other.raised()
    between_steps(training, gaussians)  # does not wait
    with pytest.raises(RuntimeError, match="training has ended"):
        Other(lambda: training.renderer.render(POSE, Settings())).raised()


def test_stay_answers_calls_after_the_last_step(training, gaussians):
    done = threading.Event()

    def check():
        if done.is_set():
            raise KeyboardInterrupt

    def stay():
        with pytest.raises(KeyboardInterrupt):
            training.stay(gaussians, check)
        return True

    other = Other(stay)
    assert training.renderer.render(POSE, Settings()).divisor == 1
    state = training.state()
    assert (state.finished, state.can_save) == (True, False)
    done.set()
    other.join(60)
    assert other.result


def test_state_and_curves(training):
    training.save = lambda: "saved"
    training.record_psnr(5, 9.0)
    training.record(10, 0.5, 12.0, 60)
    training.record(20, 0.25, float("inf"), 70)
    state = training.state()
    # The number is that of the Gaussians that are shown; plots have those of recorded steps.
    assert (state.step, state.loss, state.psnr, state.n_gaussians) == (20, 0.25, float("inf"), 60)
    assert (state.paused, state.can_save) == (False, True)
    (steps, psnr), (more_steps, n_gaussians) = training.curves()
    assert (steps.tolist(), psnr.tolist()) == ([5, 10], [9, 12])
    assert (more_steps.tolist(), n_gaussians.tolist()) == ([10, 20], [60, 70])


def test_long_curves_are_thinned_out_evenly():
    curve = Curve()
    for step in range(10, 30_001, 10):
        curve.add(step, 2.0 * step)
    steps, values = curve.arrays()
    assert MAX_POINTS / 2 <= len(steps) <= MAX_POINTS
    assert np.array_equal(values, 2 * steps)
    assert (steps[0], set(np.diff(steps))) == (10, {40})
    assert steps[-1] > 30_000 - 40
