"""Two web browsers, on a desktop and on a phone, that change controls at random at the same time."""

import contextlib
import json
import os

import numpy as np
import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, open_controls
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.errors import ArgumentError, UnsupportedError
from tsplat.viewing.viewer import Viewer, callbacks, server

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

CHANGES = int(os.environ.get("TSPLAT_CHANGES", 100))
"""Changes of both pages together."""

SCALE = 2
"""Width and height of a page's pixel relative to one of the image. Few pixels take few seconds."""

LONG = {"Preview", "Save video"}
"""Buttons that keep a page busy for seconds."""

SCRIPT = """
window.change = async (n, seed, ids) => {
  const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  const pick = (list) => list[Math.floor(random() * list.length)];
  const find = (query, root = document) => [...root.querySelectorAll(query)].filter((e) => e.getClientRects().length);
  const named = (query, ...names) => find(query).filter((e) => names.includes(e.innerText.trim()));
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const press = (e, key) => e.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  // Only controls of tsplat, not those of viser. Fields of colors have a button, but that picks from the screen.
  const elements = (id) => {
    const row = document.querySelector(`label[for="${id}"]`)?.closest('.mantine-Flex-root');
    if (!row) return find(`button[id="${id}"]`);
    const inputs = find('input, [role=slider]', row);
    return inputs.length ? inputs : find('button', row);
  };
  for (let i = 0; i < n; i++) {
    if (i % 10 === 0) {
      pick(named('[role=tab]', 'View', 'Cameras', 'Crop', 'Video')).click();
      await wait(100);
      pick(named('.mantine-Paper-root', 'Rasterization', 'Keyframes as a file'))?.click();
    }
    await wait(55); // viser sends a page's newest change every 50 ms
    const e = pick(pick(ids.map(elements).filter((list) => list.length)));
    if (e.role === 'slider') press(e, pick(['ArrowRight', 'ArrowLeft', 'Home', 'End']));
    else if (e.ariaHasPopup === 'listbox') {
      e.click();
      await wait(20);
      pick(find('[role=option]'))?.click();
    } else if (e.tagName === 'INPUT' && e.type !== 'checkbox') {
      const values = e.inputMode ? ['0', '0.5', '1', '3', '-2', '1e6', ''] : ['a.ply', 'b.json', 'c', '#204060', ''];
      const value = pick(values);
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(e, value);
      for (const kind of ['input', 'focusout']) e.dispatchEvent(new Event(kind, { bubbles: true }));
    } else e.click();
    if (random() < 0.1) press(document.body, pick(['p', 'n']));
  }
};
"""

HIDE_NOTES = """
const style = document.createElement('style');
style.textContent = '.mantine-Notifications-root { display: none }';
document.head.append(style);
"""
"""Hides what viser says over the image, such as that it is drawn without a GPU."""


def test_two_browsers_change_controls(monkeypatch, tmp_path, capfd):
    """Each makes half of the changes; no error is unexpected, and both show what tsplat renders for them."""
    changed, errors = [], []

    def note_change(client, message, tell):
        if client is not None and b"GuiUpdateMessage" in message:
            changed.append((client.client_id, next(id for id in handles(client) if id.encode() in message)))
        return allows(client, message, tell)

    def note_error(error):
        errors.append(error)
        return describe(error)

    allows, describe = server.allows, callbacks.describe_error
    monkeypatch.setattr(server, "allows", note_change)
    monkeypatch.setattr(callbacks, "describe_error", note_error)
    viewer = Viewer([viewed(), viewed("without views", with_views=False)], port=18990, folder=tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(viewer.close)
        pages = {}
        for size in (dict(width=640, height=480), SIZES["phone"] | dict(height=640)):
            page = stack.enter_context(open_page(f"{viewer.url}?fixedDpr={1 / SCALE}", **size))
            wait_for(lambda: len(viewer._sessions) > len(pages))
            pages[max(viewer._sessions)] = page
            open_controls(page)
            page.evaluate(SCRIPT)
            page.evaluate(HIDE_NOTES)
        values = {}
        for client_id, page in pages.items():
            ours = handles(viewer._sessions[client_id]._client)
            # The list of keyframes has other options in the end.
            inputs = [h for h in ours.values() if hasattr(h, "on_update") and h.label != "Keyframe"]
            values[client_id] = [(handle, handle.value) for handle in inputs]
            ids = json.dumps([id for id, handle in ours.items() if handle.label not in LONG])
            page.evaluate(f"window.changed = change({CHANGES // 2}, {99_991 * (client_id + 1)}, {ids}); 0")
        for page in pages.values():
            result = page.call("Runtime.evaluate", expression="changed", awaitPromise=True)
            assert "exceptionDetails" not in result, result
        assert viewer._sessions.keys() == pages.keys()
        for client_id, page in pages.items():
            ids = [id for i, id in changed if i == client_id]
            # Not every change has another value.
            assert len(ids) > CHANGES / 5 and len(set(ids)) > 10
            assert page.errors == []
            assert_shows(page, viewer._sessions[client_id], values[client_id])
    assert [error for error in errors if not isinstance(error, (ArgumentError, UnsupportedError, OSError))] == []
    assert capfd.readouterr().err == ""


def handles(client):
    return client.gui._gui_input_handle_from_uuid


def assert_shows(page, session, values):
    """With the values of controls as at first, and nothing drawn over the image."""
    for handle, value in values:
        handle.value = value
    for action in (session._cameras._show_frusta, session._video._draw, session._reset_view):
        session._callbacks.run(action)
    found = []

    def matches(image):
        """Whether means of blocks are the same in the upper left part, which is without controls."""
        expected = session._render(session._request(), None).image
        assert expected.std() > 10
        found.append(np.abs(means(image, 20 * SCALE)[3:6, :7] - means(expected, 20)[3:6, :7]).mean())
        return found[-1] < 3

    assert page.wait_for(matches), found


def means(image, size):
    """Returns the means [h / size, w / size, 3] of the square blocks of an image [h, w, 3]."""
    height, width = (side // size for side in image.shape[:2])
    return image[: height * size, : width * size].reshape(height, size, width, size, 3).mean((1, 3))
