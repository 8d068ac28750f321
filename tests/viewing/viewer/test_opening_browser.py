"""Files of the computer that shows the page, opened in a web browser: by a dialog, and dropped on the page."""

import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.training_scenes import make_gaussians
from tests.support.viewer_pages import SIZES, open_controls
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.scene import write_ply
from tsplat.viewing.viewer import Viewer, guard, open_viewed

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]


@pytest.fixture
def viewer(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "TRANSFER_MAX", 20_000)  # that of the page
    viewer = Viewer(
        [viewed()],
        port=18890,
        open_model=lambda path, warn: open_viewed(path, viewed().gaussians.means.device, warn=warn),
        folder=tmp_path / "server",
    )
    yield viewer
    viewer.close()


def drop(page, paths):
    """Drops files as a file manager does: not before the page, which may be busy, has accepted them."""
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}

    def send(*kinds):
        for kind in kinds:
            page.call("Input.dispatchDragEvent", type=kind, x=200, y=200, data=data)

    page.evaluate("window.over = 0; window.ondragover = () => { over += 1; }")
    send("dragEnter", "dragOver")
    wait_for(lambda: page.evaluate("over"), every=0.1)
    send("dragOver", "drop")


@pytest.mark.parametrize("size", SIZES)
def test_files_are_opened(viewer, size, tmp_path):
    for name in ("one.ply", "<img src=x onerror=alert(1)>.ply"):
        write_ply(tmp_path / name, make_gaussians(sh_degree=0))
    (tmp_path / "damaged.ply").write_text("ply\nnot")
    (tmp_path / "large.ply").write_bytes(bytes(20_001))
    with open_page(viewer.url + "?fixedDpr=1", **SIZES[size]) as page:
        wait_for(lambda: viewer._sessions, 60)
        page.evaluate("window.told = []; window.alert = text => told.push(text)")
        open_controls(page)
        (session,) = viewer._sessions.values()
        panel = session._panel

        def is_shown(name):
            return panel.model.name == name and page.evaluate("document.title") == f"{name} · tsplat"

        wait_for(lambda: is_shown("model"), every=0.1)
        page.call("DOM.enable")
        root = page.call("DOM.getDocument")["root"]["nodeId"]
        wait_for(lambda: page.evaluate("Boolean(document.querySelector('input[type=file]'))"))
        node = page.call("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
        page.call("DOM.setFileInputFiles", nodeId=node, files=[str(tmp_path / "one.ply")])
        wait_for(lambda: is_shown("one.ply"), every=0.1)
        drop(page, [tmp_path / "<img src=x onerror=alert(1)>.ply"])
        wait_for(lambda: is_shown("<img src=x onerror=alert(1)>.ply"), every=0.1)
        drop(page, [tmp_path / "damaged.ply"])
        wait_for(lambda: panel._dismiss.visible, every=0.1)
        assert panel._message.content.startswith("**damaged.ply: ")
        told = [
            ([tmp_path / "large.ply"], "large.ply: expected at most 20000 bytes, found 20001"),
            ([tmp_path / "one.ply", tmp_path / "damaged.ply"], "Drop one file at a time, found 2."),
            ([tmp_path], f"{tmp_path.name}: a folder;"),
        ]
        for paths, text in told:
            drop(page, paths)
            wait_for(lambda: page.evaluate("told.length"), every=0.1)
            assert page.evaluate("told.pop()").startswith(text)
        assert page.errors == []
        assert not (tmp_path / "server").exists()
