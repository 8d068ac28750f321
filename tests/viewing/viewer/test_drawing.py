"""Models that pages draw themselves: what pages load and report, and when the server draws."""

import re

import pytest

from tests.support.viewer_sessions import control, viewed
from tests.support.waiting import wait_for
from tsplat import ArgumentError
from tsplat.viewing.viewer import drawing
from tsplat.viewing.viewer.session import Session

pytest.importorskip("viser", reason="needs the extra viewer")


@pytest.fixture
def draw():
    return "server"


@pytest.fixture
def session(client, models, draw):
    session = Session(client, models, draw=draw)
    wait_for(lambda: client.images and client.images[-1][1] == "png")
    yield session
    session.close()


def report(session, word):
    """What the page sends, and what it gets."""
    return session.drawing.answer(f"/drawn/{session.drawing.key}/{word}")


def number(session):
    """The number of the drawn model that the page is to load; 0 for none."""
    return int(re.search(r'data-number="(\d*)"', session.drawing._html.content)[1] or 0)


def load(session):
    """Loads and draws what the page is to draw."""
    wait_for(lambda: number(session))
    kind, page = report(session, f"{number(session)}/")
    assert kind.startswith("text/html") and b'"follows": true' in page and b"scene.sog" in page
    kind, model = report(session, f"{number(session)}/scene.sog")
    assert kind == "application/octet-stream" and model[:2] == b"PK"
    report(session, f"loaded-{number(session)}")
    wait_for(lambda: session._is_drawn)


def texts(client):
    contents = (getattr(control, "content", "") for control in client.gui.controls.values())
    return [text for text in contents if isinstance(text, str)]


def choose(client, value):
    control(client, "Drawn by").use(value)


def test_browser_draws_what_it_can(session, client):
    assert not control(client, "Drawn by").visible
    assert report(session, "webgl") == ("text/plain", b"")
    wait_for(lambda: control(client, "Drawn by").visible)
    assert number(session) == 0  # the server draws until another choice is made
    choose(client, "this browser")
    load(session)
    wait_for(lambda: client.images[-1][0] is None)  # the server's image, which would cover the page's, is gone
    assert any("60 Gaussians, drawn by this browser" in text for text in texts(client))
    # Other cameras cost the server nothing; what the page cannot show is drawn by the server.
    n = len(client.images)
    client.camera.move((0, 0, -4))
    assert len(client.images) == n and session._is_drawn
    for label, value in (("Show", "alpha"), ("SH degree", 0), ("Resolution", "half"), ("eps2d", 0.5)):
        before, n = control(client, label).value, len(client.images)
        control(client, label).use(value)
        wait_for(lambda n=n: len(client.images) > n and client.images[-1][0] is not None)
        control(client, label).use(before)
        wait_for(lambda: client.images[-1][0] is None and session._is_drawn)
    control(client, "Background").use((255, 0, 0))
    assert 'data-background="1.0 0.0 0.0"' in session.drawing._html.content and session._is_drawn
    choose(client, "the server")
    wait_for(lambda: client.images[-1][1] == "png")
    assert number(session) == 0


def test_other_model_is_loaded_anew(session, client):
    report(session, "webgl")
    wait_for(lambda: control(client, "Drawn by").visible)
    choose(client, "this browser")
    load(session)
    first = number(session)
    control(client, "Model").use("without views")
    wait_for(lambda: number(session) > first)
    assert not session._is_drawn
    assert report(session, f"{first}/scene.sog") is None
    report(session, f"loaded-{first}")  # comes late
    load(session)


def test_page_that_fails_is_replaced_by_the_server(session, client):
    report(session, "webgl")
    wait_for(lambda: control(client, "Drawn by").visible)
    choose(client, "this browser")
    wait_for(lambda: number(session))
    report(session, f"failed-{number(session)}")
    wait_for(lambda: number(session) == 0)
    assert control(client, "Drawn by").value == "the server"
    wait_for(lambda: any("the server draws: this browser cannot show the model" in text for text in texts(client)))


def test_model_that_cannot_be_written(session, client, monkeypatch):
    def fail(_):
        raise ArgumentError("nothing is visible")

    monkeypatch.setattr(drawing, "followed_page", fail)
    report(session, "webgl")
    wait_for(lambda: control(client, "Drawn by").visible)
    choose(client, "this browser")
    wait_for(lambda: any("the server draws: nothing is visible" in text for text in texts(client)))
    assert control(client, "Drawn by").value == "the server" and number(session) == 0


@pytest.mark.parametrize("draw", ["browser"])
def test_browser_draws_at_first_if_asked_for(session):
    report(session, "webgl")
    load(session)


@pytest.mark.parametrize("draw", ["browser"])
@pytest.mark.parametrize(("graphics", "words"), [("software", "has no GPU"), ("missing", "has no WebGL 2")])
def test_sentence_without_webgl(session, client, graphics, words):
    report(session, graphics)
    wait_for(lambda: any(words in text for text in texts(client)))
    assert not control(client, "Drawn by").visible and number(session) == 0


@pytest.mark.parametrize("draw", ["browser"])
def test_models_that_are_not_sent(session, client, monkeypatch):
    assert drawing.can_draw(viewed()) is None
    monkeypatch.setattr(drawing, "DRAWN_MAX", 59)
    report(session, "webgl")
    words = "the server draws: 60 Gaussians are more than the 59 that browsers get"
    wait_for(lambda: any(words in text for text in texts(client)))
    assert not control(client, "Drawn by").visible and number(session) == 0


def test_paths_of_others_are_not_answered(session):
    key = session.drawing.key
    for path in ("/", "/drawn/", f"/drawn/{key}x/webgl", f"/{key}/webgl", "/drawn/webgl", f"/drawn/{key}/0/scene.sog"):
        assert session.drawing.answer(path) is None
    assert report(session, "9/scene.sog") is None
    assert session._graphics == "missing"
