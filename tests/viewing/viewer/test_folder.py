"""What pages may write and read."""

import pytest

from tests.support.viewer_sessions import control, viewed
from tsplat import ArgumentError
from tsplat.viewing.viewer.callbacks import escape_markdown
from tsplat.viewing.viewer.folder import Folder, NameTakenError

pytest.importorskip("viser", reason="needs the extra viewer")


@pytest.mark.parametrize(
    "name", ["", "..", ".", "../a.ply", "/tmp/a.ply", "b/a.ply", "b\\a.ply", "C:a.ply", ".bashrc", "a\n.ply", "a" * 201]
)
def test_names_outside_of_the_folder(tmp_path, name):
    with pytest.raises(ArgumentError, match="the name of a file, without a folder"), Folder(tmp_path).writing(name):
        pass


def test_files_are_replaced_only_on_request(tmp_path):
    folder = Folder(tmp_path)
    with folder.writing("a.ply") as path:
        path.write_text("a")
        with pytest.raises(ArgumentError, match=r"a.ply: it is being written"), folder.writing("a.ply", replace=True):
            pass
    with pytest.raises(NameTakenError, match=r"a.ply exists"), folder.writing("a.ply"):
        pass
    with folder.writing("a.ply", replace=True) as path:
        assert path == tmp_path / "a.ply"
    (tmp_path / "link").symlink_to("/tmp/absent")
    (tmp_path / "frames").mkdir()
    for name in ("link", "frames"):
        with pytest.raises(ArgumentError, match="a folder or a link"), folder.writing(name, replace=True):
            pass


def test_what_is_elsewhere_is_not_told(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for path in (inside, outside):
        path.mkdir()
        (path / "a.ply").write_text("a")
    (inside / "link").symlink_to(outside)
    folder = Folder(inside, [outside / "b"])
    assert folder.readable("a.ply") == inside / "a.ply"
    assert folder.readable(str(outside / "b" / "c.ply")) == outside / "b" / "c.ply"
    for name in ("../out/a.ply", "../out/absent.ply", "link/a.ply", str(outside / "a.ply"), "/etc/passwd", "", "a\0"):
        with pytest.raises(ArgumentError) as error:
            folder.readable(name)
        assert str(error.value) == f"expected a path in {inside}, found {name[:80]!r}"


def test_page_is_asked_before_a_file_is_replaced(client, tmp_path, monkeypatch):
    from tsplat.viewing.viewer.session import Session

    monkeypatch.chdir(tmp_path)
    session = Session(client, [viewed()])
    path = tmp_path / "cropped.ply"
    path.write_text("precious")
    (replace,) = [c for c in client.gui.controls.values() if c.label == "Replace"]
    control(client, "Export").use()
    assert path.read_text() == "precious"
    assert "**cropped.ply exists; to replace it, click Replace cropped.ply**" in client.statuses
    assert (replace.visible, replace.label) == (True, "Replace cropped.ply")
    replace.use()
    assert path.read_bytes()[:3] == b"ply"
    assert not replace.visible
    path.write_text("precious")
    replace.use()  # a client that does not wait for the question
    control(client, "Model file").use("../outside.ply")
    control(client, "Export").use()
    assert not (tmp_path.parent / "outside.ply").exists()
    assert path.read_text() == "precious"
    session.close()


def test_messages_contain_no_markup():
    text = "a <img src=x onerror=alert(1)> [b](javascript:c) `d` 1 < 2\n\n<!-- e -->"
    assert (
        escape_markdown(text) == "a &lt;img src=x onerror=alert(1)> \\[b\\](javascript:c) \\`d\\` 1 < 2 &lt;!-- e -->"
    )
