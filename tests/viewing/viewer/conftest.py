"""Fixtures of the viewer's tests: a client without a browser that sees two models."""

import pytest

from tests.support.fake_viser import Client
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for


@pytest.fixture
def models():
    return [viewed(), viewed("without views", with_views=False, sh_degree=0)]


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def session(client, models):
    from tsplat.viewing.viewer.session import Session

    session = Session(client, models)
    wait_for(lambda: client.images and client.images[-1][1] == "png")
    yield session
    session.close()
