"""Worker: the newest request is rendered, first within the budget and then at full size."""

import threading
import time

import numpy as np
import pytest

from tests.support.waiting import wait_for
from tsplat.viewing.viewer import worker
from tsplat.viewing.viewer.renderer import Frame
from tsplat.viewing.viewer.worker import MOVING_SECONDS, REST_SECONDS, Worker


class Client:
    """Renders requests of numbers; a full-size image has divisor 1."""

    def __init__(self, moving_divisor=4):
        self.rendered, self.shown, self.failed = [], [], []  # `shown` has divisors, and whether at rest
        self.gate, self.waiting = threading.Event(), False
        self.gate.set()
        self.moving_divisor = moving_divisor
        self.worker = Worker(self.render, self.show, self.failed.append)

    def render(self, request, seconds):
        self.waiting = True
        self.gate.wait()
        self.rendered.append((request, seconds))
        if request == "invalid":
            raise RuntimeError("out of memory")
        divisor = 1 if seconds is None else self.moving_divisor
        return Frame(np.zeros((2, 2, 3), np.uint8), divisor, divisor == 1, 0.01, 0)

    def show(self, frame, at_rest):
        self.shown.append((frame.divisor, at_rest))


@pytest.fixture
def client():
    client = Client()
    yield client
    client.gate.set()
    client.worker.close()


def test_full_size_follows_at_rest(client):
    client.worker.submit(1)
    wait_for(lambda: len(client.shown) == 2)
    assert client.rendered == [(1, MOVING_SECONDS), (1, None)]
    assert client.shown == [(4, False), (1, True)]


def test_full_size_within_the_budget_is_rendered_once_and_shown_again_at_rest():
    client = Client(moving_divisor=1)
    client.worker.submit(1)
    wait_for(lambda: len(client.shown) == 2)
    client.worker.close()
    assert client.rendered == [(1, MOVING_SECONDS)]
    assert client.shown == [(1, False), (1, True)]


def test_request_that_waited_until_the_camera_was_at_rest_is_rendered_at_full_size_at_once(client):
    client.gate.clear()
    client.worker.submit(0)
    wait_for(lambda: client.waiting)
    client.worker.submit(1)
    time.sleep(1.5 * REST_SECONDS)
    client.gate.set()
    wait_for(lambda: client.shown[-1:] == [(1, True)])
    assert client.rendered == [(0, MOVING_SECONDS), (1, None)]


@pytest.mark.slow
def test_no_image_at_rest_while_requests_arrive(client, monkeypatch):
    monkeypatch.setattr(worker, "REST_SECONDS", 2.0)
    for i in range(20):
        client.worker.submit(i)
        time.sleep(0.01)
    wait_for(lambda: client.shown[-1:] == [(1, True)])
    assert [at_rest for _, at_rest in client.shown].index(True) == len(client.shown) - 1


def test_request_at_rest_is_rendered_at_full_size_at_once(client):
    client.worker.submit(1, at_rest=True)
    wait_for(lambda: client.shown)
    client.worker.submit(2)
    wait_for(lambda: len(client.shown) == 3)
    assert client.rendered == [(1, None), (2, MOVING_SECONDS), (2, None)]


def test_older_requests_are_dropped(client):
    client.gate.clear()
    client.worker.submit(0)
    wait_for(lambda: client.waiting)
    for i in range(1, 100):
        client.worker.submit(i)
    client.gate.set()
    wait_for(lambda: (99, None) in client.rendered)
    assert client.rendered == [(0, MOVING_SECONDS), (99, MOVING_SECONDS), (99, None)]


def test_errors_are_told_and_the_next_request_is_rendered(client):
    client.worker.submit("invalid")
    wait_for(lambda: client.failed == ["out of memory"])
    client.worker.submit(1)
    wait_for(lambda: len(client.shown) == 2)


def test_closing_in_the_middle_of_an_image_shows_nothing_more(client):
    client.gate.clear()
    client.worker.submit(0)
    wait_for(lambda: client.waiting)
    client.worker.close(0.01)
    client.gate.set()
    wait_for(lambda: not client.worker._thread.is_alive())
    assert (client.shown, client.failed) == ([], [])
