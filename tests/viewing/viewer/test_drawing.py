"""Models that pages draw themselves: what pages load and report, and when the server draws."""

import re
import threading
import types

import pytest

from tests.support.viewer_sessions import control, viewed
from tests.support.waiting import wait_for
from tsplat import ArgumentError
from tsplat.viewing.viewer import LiveTraining, Viewer, drawing
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


def shown(session):
    """The message that the page shows; empty if none."""
    message = session._panel._message
    return message.content if message.visible else ""


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
    others = (("Show", "alpha"), ("SH degree", 0), ("Resolution", "half"), ("eps2d", 0.5), ("near_plane", 0.0))
    for label, value in others:
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
    # The problem stays until the page draws.
    monkeypatch.undo()
    control(client, "SH degree").use(0)
    control(client, "SH degree").use(1)
    assert shown(session) == "**the server draws: nothing is visible**"
    choose(client, "this browser")
    load(session)
    wait_for(lambda: shown(session) == "")


def test_last_choice_counts_however_long_preparing_takes(session, client, monkeypatch):
    threads = []
    later = types.SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(
        drawing, "threading", types.SimpleNamespace(Thread=lambda **options: threads.append(options) or later)
    )
    session._note_graphics("webgl")
    choose(client, "this browser")
    chosen = session.drawing._chosen
    assert chosen is session._panel.model
    choose(client, "the server")
    assert session.drawing._chosen is None
    for thread in threads:
        thread["target"](*thread["args"])
    assert [thread["args"] for thread in threads] == [(chosen,)]
    assert session.drawing._chosen is None and number(session) == 0


def test_failure_of_a_model_that_is_no_longer_chosen(session, client, models, monkeypatch):
    write, failed = drawing.page_files, []

    def page_files(model):
        if model is models[0]:
            control(client, "Model").use("without views")
            failed.append(model)
            raise ArgumentError("nothing is visible")
        return write(model)

    monkeypatch.setattr(drawing, "page_files", page_files)
    session._note_graphics("webgl")
    choose(client, "this browser")
    load(session)
    assert failed == models[:1]
    session._stop_drawing(models[0], "too late")  # another choice was made while the failure was reported
    assert control(client, "Drawn by").value == "this browser" and session._is_drawn
    assert not any("the server draws" in text for text in texts(client))


def test_model_chosen_during_the_report_of_another_one_is_not_loaded(session, client, models):
    session._note_graphics("webgl")
    choose(client, "this browser")
    wait_for(lambda: number(session))
    thread = threading.Thread(target=session.drawing.choose, args=(models[1],))

    class Files(dict):
        """Files of the first model; the second one is chosen while the report is compared with them."""

        def __len__(self):
            if thread.ident is None:
                thread.start()
                thread.join(0.1)
            return super().__len__()

    session.drawing._files = Files(session.drawing._files)
    session.drawing._receive(f"loaded-{number(session)}")
    thread.join(60)
    assert session.drawing._chosen is models[1] and not session.drawing._loaded


def test_messages_of_others_stay(session, client, monkeypatch):
    preparing = threading.Event()
    write = drawing.page_files
    monkeypatch.setattr(drawing, "page_files", lambda model: preparing.wait(60) and write(model))
    session._note_graphics("webgl")
    choose(client, "this browser")
    assert shown(session).startswith("Preparing the model")
    preparing.set()
    load(session)
    wait_for(lambda: shown(session) == "")
    # A warning that comes meanwhile.
    preparing.clear()
    control(client, "Model").use("without views")
    assert shown(session).startswith("Preparing the model")
    session.show_message("2 Gaussians are invalid")
    preparing.set()
    load(session)
    assert shown(session) == "2 Gaussians are invalid"
    # An error that was there before.
    session._callbacks.fail("disk full", "export")
    control(client, "Model").use("model")
    assert shown(session) == "**disk full**"
    load(session)
    assert shown(session) == "**disk full**"


def test_error_of_an_image_ends_when_the_page_draws(session, client, models, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(models[0].renderer, "render", fail)
    client.camera.move((0, 0, -4))
    wait_for(lambda: shown(session) == "**out of memory**")
    session._note_graphics("webgl")
    choose(client, "this browser")
    load(session)
    wait_for(lambda: shown(session) == "")
    session._worker._fail("out of memory")  # of an image that was asked for before
    assert shown(session) == ""


@pytest.mark.parametrize("draw", ["browser"])
def test_browser_draws_at_first_if_asked_for(session):
    report(session, "webgl")
    load(session)


@pytest.mark.parametrize("draw", ["browser"])
@pytest.mark.parametrize(("graphics", "words"), [("software", "runs without a GPU"), ("missing", "has no WebGL 2")])
def test_sentence_without_webgl(session, client, graphics, words):
    report(session, graphics)
    wait_for(lambda: any(words in text for text in texts(client)))
    assert not control(client, "Drawn by").visible and number(session) == 0


@pytest.mark.parametrize("draw", ["browser"])
def test_models_that_are_not_sent(session, client, monkeypatch):
    assert drawing.drawing_problem(viewed()) is None
    monkeypatch.setattr(drawing, "DRAWN_MAX", 59)
    report(session, "webgl")
    words = "the server draws: 60 Gaussians are more than browsers draw, 59"
    wait_for(lambda: any(words in text for text in texts(client)))
    assert not control(client, "Drawn by").visible and number(session) == 0
    monkeypatch.setattr(drawing, "DRAWN_MAX", 60)  # as if the next one were smaller
    control(client, "Model").use("without views")
    assert control(client, "Drawn by").visible
    load(session)


def test_model_in_training_is_drawn_by_the_server(client, models):
    training = LiveTraining(models[0].gaussians, 10, backend="torch")
    session = Session(client, models[:1], training, draw="browser")
    try:
        session._note_graphics("webgl")
        assert shown(session) == "the server draws: browsers do not draw a model that is being trained"
        assert not control(client, "Drawn by").visible and number(session) == 0
    finally:
        session.close()
        training.close()


def test_unknown_choice_is_refused(models):
    with pytest.raises(ArgumentError, match="draw: expected one of 'server', 'browser', found 'webgl'"):
        Viewer(models, draw="webgl")


def test_paths_of_others_are_not_answered(session):
    key = session.drawing.key
    for path in ("/", "/drawn/", f"/drawn/{key}x/webgl", f"/{key}/webgl", "/drawn/webgl", f"/drawn/{key}/0/scene.sog"):
        assert session.drawing.answer(path) is None
    assert report(session, "9/scene.sog") is None
    assert session._graphics == "missing"
