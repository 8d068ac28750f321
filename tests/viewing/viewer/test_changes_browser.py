"""Two web browsers, on a desktop and on a phone, that change controls at random at the same time."""

import contextlib

import numpy as np
import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, open_controls
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.viewing.viewer import Viewer, server

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

CHANGES = 500

SCRIPT = """
window.change = async (n, seed) => {
  const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  const pick = (list) => list[Math.floor(random() * list.length)];
  const find = (query) => [...document.querySelectorAll(query)].filter((e) => e.getBoundingClientRect().width);
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const press = (e, key) => e.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  // Those take long, or leave the page, or belong to viser.
  const others = ['', 'Preview', 'Save video', 'Full screen', 'Screenshot', 'Upload a file'];
  for (let i = 0; i < n; i++) {
    if (i % 10 === 0) {
      pick(find('[role=tab]')).click();
      await wait(50);
    }
    const isOurs = (e) => e.tagName !== 'BUTTON' || !others.includes(e.innerText.trim());
    const e = pick(find('button, input, [role=slider]').filter(isOurs));
    if (!e) continue;
    if (e.role === 'slider') press(e, pick(['ArrowRight', 'ArrowLeft', 'Home', 'End']));
    else if (e.readOnly) {
      e.click();
      await wait(20);
      pick(find('[role=option]'))?.click();
    } else if (e.tagName === 'INPUT' && e.type !== 'checkbox') {
      const value = pick(['0', '0.5', '1', '3', '-2', '1e6', 'a.ply', 'b.json', 'c', '']);
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(e, value);
      for (const kind of ['input', 'focusout']) e.dispatchEvent(new Event(kind, { bubbles: true }));
    } else e.click();
    if (random() < 0.1) press(document.body, pick(['p', 'n']));
    await wait(5);
  }
};
"""


def test_two_browsers_change_controls(monkeypatch, tmp_path, capfd):
    """Each makes half of 500 changes; then both show what tsplat renders for them."""
    updates = []

    def note(client, message, tell):
        if client is not None and b"GuiUpdateMessage" in message:
            updates.append(client.client_id)
        return allows(client, message, tell)

    allows = server.allows
    monkeypatch.setattr(server, "allows", note)
    viewer = Viewer([viewed(), viewed("without views", with_views=False)], port=18990, folder=tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(viewer.close)
        pages = [stack.enter_context(open_page(viewer.url + "?fixedDpr=1", **SIZES[size])) for size in SIZES]
        wait_for(lambda: len(viewer._sessions) == 2)
        for page in pages:
            open_controls(page)
            page.evaluate(SCRIPT)
        for seed, page in enumerate(pages):
            page.evaluate(f"window.changed = change({CHANGES // 2}, {seed}); 0")
        for page in pages:
            page.call("Runtime.evaluate", expression="changed", awaitPromise=True)
        assert len(viewer._sessions) == 2
        # Not every change has another value, and some follow so fast that they are one.
        assert min(updates.count(client_id) for client_id in viewer._sessions) > CHANGES / 10
        for session in list(viewer._sessions.values()):
            restore(session)
            width, found = session._client.camera.image_width, []
            page = pages[list(SIZES).index("phone" if width == SIZES["phone"]["width"] else "desktop")]

            def matches(image, session=session, found=found):
                expected = session._render(session._request(), None).image
                found.append(float(np.abs(image[140:390, :380].astype(float) - expected[140:390, :380]).mean()))
                return found[-1] < 3

            assert page.wait_for(matches), (width, found)
        assert [page.errors for page in pages] == [[], []]
    assert capfd.readouterr().err == ""


def restore(session):
    """Settings that fit together, and nothing drawn over the image."""
    panel = session._panel
    values = [
        (panel._show, "rgb"), (panel._fixed, False), (panel._near, 0.01), (panel._far, 1e10),
        (panel._resolution, "full"), (session._crop._crop, False), (session._cameras._shown, "none"),
        (session._cameras._mode, "off"), (session._video._path, False),
    ]  # fmt: skip
    for handle, value in values:
        handle.value = value
    for action in (session._cameras._show_frusta, session._video._draw, session._reset_view):
        session._callbacks.run(action)
