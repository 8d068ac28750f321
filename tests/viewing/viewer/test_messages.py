"""Messages of pages: which of them reach viser, and floods of hostile ones."""

import io
import math
import random
import threading
import types

import msgspec
import numpy as np
import pytest
from PIL import Image

from tests.support.viewer_client import ViewerClient
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat import ArgumentError
from tsplat.scene import look_at
from tsplat.viewing.viewer import Pose, Renderer, Settings, Viewer
from tsplat.viewing.viewer.callbacks import Callbacks
from tsplat.viewing.viewer.folder import TRANSFER_MAX
from tsplat.viewing.viewer.messages import MESSAGE_BYTES, PART_BYTES, allows

pytest.importorskip("viser", reason="needs the extra viewer")

NAN, INF = math.nan, math.inf
CAMERA = {
    "type": "ViewerCameraMessage", "wxyz": [1.0, 0.0, 0.0, 0.0], "position": [0.0, 0.0, -3.0], "fov": 0.8,
    "near": 0.01, "far": 1000.0, "image_height": 48, "image_width": 64, "look_at": [0.0, 0.0, 0.0],
    "up_direction": [0, -1, 0],
}  # fmt: skip


def image_bytes(size, format):
    file = io.BytesIO()
    Image.new("RGB", size).save(file, format)
    return file.getvalue()


def passes(message, client=None, notes=None):
    return allows(client, msgspec.msgpack.encode(message), [].append if notes is None else notes.append)


def test_cameras():
    assert passes(CAMERA)
    assert passes(CAMERA | {"image_height": 0, "image_width": 16384})
    hostile = [
        ("image_width", [200_000, 10**9, -1, NAN, INF, 2**63, "64", None, True, [64]]),
        ("fov", [0, -1, math.pi, 4.0, NAN, "1"]),
        ("wxyz", [[0, 0, 0, 0], [NAN, 0, 0, 0], [1, 0, 0], [2, 0, 0, 0], [1e300] * 4, 1]),
        ("position", [[NAN, 0, 0], [INF, 0, 0], [1e13, 0, 0], [0, 0], [[0], 0, 0], {}]),
        ("look_at", [[0, 0, -INF], "abc"]),
        ("near", [NAN]),
        ("extra", [1]),
    ]
    for name, values in hostile:
        for value in values:
            assert not passes(CAMERA | {name: value}), (name, value)
    assert not passes({name: value for name, value in CAMERA.items() if name != "far"})


def test_other_messages():
    click = {
        "type": "SceneNodeClickMessage", "name": "/cameras/0", "instance_index": None, "ray_origin": [0, 0, 0],
        "ray_direction": [0, 0, 1], "screen_pos": [0.5, 0.5], "modifier": None, "owner": "0",
    }  # fmt: skip
    assert passes(click)
    assert not passes(click | {"name": "a" * 5000})
    jpeg = {"type": "GetRenderResponseMessage", "payload": image_bytes((16, 16), "jpeg"), "render_uuid": "a"}
    assert passes(jpeg)
    assert passes(jpeg | {"payload": b""})
    for payload in (image_bytes((16, 16), "png"), image_bytes((8000, 10), "jpeg"), b"\xff\xd8\xff", "text", None):
        assert not passes(jpeg | {"payload": payload})
    drag = {
        "type": "SceneNodeDragMessage", "phase": "update", "name": "/split", "instance_index": None,
        "start_position": [0, 0, 1], "start_screen_pos": [0.5, 0.5], "end_position": [1, 0, 1],
        "end_screen_pos": [0.7, -0.2], "button": "left", "modifier": None, "owner": "0",
    }  # fmt: skip
    assert passes(drag)
    for name, value in (("phase", "middle"), ("end_screen_pos", [NAN, 0]), ("end_position", [0, 0]), ("button", 1)):
        assert not passes(drag | {name: value})
    arrows = {"name": "/crop_lower", "wxyz": [1, 0, 0, 0], "position": [0, 1, 2], "owner": "0"}
    assert passes({"type": "TransformControlsUpdateMessage", **arrows})
    assert not passes({"type": "TransformControlsUpdateMessage", **arrows, "position": [0, INF, 2]})
    assert not passes({"type": "TransformControlsUpdateMessage", **arrows, "wxyz": [0, 0, 0, 0]})
    assert passes({"type": "TransformControlsDragStartMessage", "name": "/crop_lower", "owner": "0"})
    assert passes({"type": "CommandTriggerMessage", "uuid": "a"})
    assert not passes({"type": "CommandTriggerMessage", "uuid": 5})
    # A tunnel to a public server, uploads to any control, and messages to all clients.
    for kind in ("ShareUrlRequest", "ShareUrlDisconnect", "RunJavascriptMessage", "Message", "GuiUpdateMessage", ""):
        assert not passes({"type": kind})
    assert not passes({"type": "GuiFormDirtyMessage", "uuid": "a"})
    for content in (b"", b"\xff", b"\x91" * 60_000, b"\xdf\xff\xff\xff\xff", "text", msgspec.msgpack.encode([1])):
        assert not allows(None, content, print)


def test_values_of_controls():
    def control(value, **options):
        return types.SimpleNamespace(value=value, label="A", visible=True, **options)

    controls = {
        "slider": control(5, min=0, max=10), "number": control(1.0, min=0.0, max=None), "check": control(False),
        "list": control("a", options=("a", "b")), "text": control("a"), "color": control((0, 0, 0)),
        "vector": control((0.0, 0.0, 0.0)), "hidden": control(False),
    }  # fmt: skip
    controls["hidden"].visible = False
    client = types.SimpleNamespace(gui=types.SimpleNamespace(_gui_input_handle_from_uuid=controls))
    notes = []

    def update(uuid, value, **others):
        message = {"type": "GuiUpdateMessage", "uuid": uuid, "updates": {"value": value, **others}}
        return passes(message, client, notes)

    valid = [
        ("slider", 0), ("slider", 10.0), ("number", 3), ("check", True), ("list", "b"), ("text", "x" * 4096),
        ("color", [0, 255, 7]), ("vector", [0, -1.5, 1e12]),
    ]  # fmt: skip
    assert all(update(*case) for case in valid)
    invalid = [
        ("slider", 11), ("slider", NAN), ("slider", "5"), ("slider", True), ("number", -1), ("number", INF),
        ("number", 1e300), ("number", None), ("check", 1), ("list", "c"), ("list", ["a"]), ("list", {}),
        ("text", "x" * 4097), ("text", 1), ("color", [0, 0, 256]), ("color", [0, 0]), ("color", [NAN] * 3),
        ("vector", [INF, 0, 0]), ("vector", 1), ("hidden", True), ("unknown", 1), (["slider"], 1),
    ]  # fmt: skip
    assert not any(update(*case) for case in invalid)
    assert not update("slider", 5, update_cb=[])  # viser would set any attribute
    assert notes[0] == "**A: expected a number from 0 to 10**"


def test_uploads():
    uploads = {}
    controls = {
        "button": types.SimpleNamespace(value=None, visible=True, on_upload=print),
        "text": types.SimpleNamespace(value="a", visible=True),
    }
    gui = types.SimpleNamespace(_gui_input_handle_from_uuid=controls, _current_file_upload_states=uploads)
    client, notes = types.SimpleNamespace(gui=gui), []
    start = {
        "type": "FileTransferStartUpload", "source_component_uuid": "button", "transfer_uuid": "b", "filename": "c.ply",
        "mime_type": "", "part_count": 2, "size_bytes": PART_BYTES + 1,
    }  # fmt: skip
    part = {
        "type": "FileTransferPart", "source_component_uuid": "button", "transfer_uuid": "b", "part_index": 0,
        "content": bytes(PART_BYTES),
    }  # fmt: skip
    assert passes(start, client)
    assert passes(start | {"part_count": 0, "size_bytes": 0}, client)
    assert not passes(start, None)
    hostile = [
        ("source_component_uuid", ["text", "none", None]), ("filename", [1, "x" * 5000]),
        ("part_count", [0, 1, 3, 10**9, -1, 2.0, True]), ("size_bytes", [-1, 10**12, 2**63, NAN, "1", None]),
    ]  # fmt: skip
    for name, values in hostile:
        for value in values:
            assert not passes(start | {name: value}, client), (name, value)
    size = TRANSFER_MAX + 1
    assert not passes(start | {"size_bytes": size, "part_count": -(-size // PART_BYTES)}, client, notes)
    assert notes == ["**c.ply: expected uploads of at most 1,073,741,824 bytes together, found 1,073,741,825**"]
    # Parts only of a file that is on its way, and not more of it than was said.
    assert not passes(part, client)
    uploads["b"] = {"transferred_bytes": 0, "total_bytes": PART_BYTES + 1}
    assert passes(part, client)
    assert not passes(part | {"content": bytes(PART_BYTES + 1)}, client)
    assert not passes(part | {"transfer_uuid": "other"}, client)
    assert not passes(start, client)
    uploads["b"]["transferred_bytes"] = PART_BYTES
    assert passes(part | {"content": b"1"}, client)
    for content in (b"12", bytes(PART_BYTES), "1", None):
        assert not passes(part | {"content": content}, client)
    assert not passes(start | {"transfer_uuid": "c", "size_bytes": TRANSFER_MAX, "part_count": 2048}, client)
    # Other messages stay small.
    assert not passes(CAMERA | {"extra": bytes(MESSAGE_BYTES)})
    assert not passes({"type": "CommandTriggerMessage", "uuid": "a" * MESSAGE_BYTES})


def test_images_are_bounded():
    pose = Pose(look_at((0, 0, -3), (0, 0, 0)), 0.8, 16384, 16384)
    sizes = []
    renderer = viewed().renderer
    renderer._rasterize = lambda _, camera, *rest: sizes.append((camera.width, camera.height)) or (None, 0, None)
    assert renderer.render(pose, Settings()).is_full
    assert sizes == [(4096, 4096)]
    for size in ((16385, 1), (1, 10**9)):
        with pytest.raises(ArgumentError, match="width, height: expected at most 16384"):
            Pose(pose.viewmat, 0.8, *size)


def test_image_of_a_client_that_has_gone_is_not_rendered():
    renderer = Renderer(viewed().gaussians)
    renderer._rasterize = lambda *_: pytest.fail("rendered")
    with pytest.raises(RuntimeError, match="the request was canceled"):
        renderer.render(Pose(look_at((0, 0, -3), (0, 0, 0)), 0.8, 8, 8), Settings(), is_wanted=lambda: False)


def test_errors_of_files_name_the_file(tmp_path):
    told = []
    Callbacks(told.append).run(lambda: (tmp_path / "none.ply").read_text())
    assert told == [f"**{tmp_path / 'none.ply'}: No such file or directory**"]


def test_callbacks_of_a_client_occupy_one_thread():
    handle, started, gate, ran = types.SimpleNamespace(), threading.Event(), threading.Event(), []
    handle.on_click = lambda callback: setattr(handle, "click", callback)
    callbacks = Callbacks(print)

    def act():
        started.set()
        ran.append(gate.wait(60))

    callbacks.on_click(handle, act)
    thread = threading.Thread(target=handle.click, args=(None,))
    thread.start()
    assert started.wait(60)
    for _ in range(100):
        handle.click(None)  # returns at once
    gate.set()
    thread.join(60)
    assert ran == [True, True]


N_HOSTILE = 300


def hostile(draws, uuids):
    """A random message: noise, a damaged camera or control, or a type that pages do not send."""
    values = [NAN, INF, -1, 0, 10**9, 200_000, 2**63, 1e300, "x" * 5000, None, True, [], {}, [NAN] * 4, "../../etc"]
    kind = draws.randrange(5)
    if kind == 0:
        return draws.randbytes(draws.randrange(200))
    if kind == 1:
        names = draws.sample([name for name in CAMERA if name != "type"], draws.randint(1, 3))
        return msgspec.msgpack.encode(CAMERA | {name: draws.choice(values) for name in names})
    if kind == 2:
        updates = {draws.choice(["value", "value", "update_cb", "props"]): draws.choice(values)}
        return msgspec.msgpack.encode({"type": "GuiUpdateMessage", "uuid": draws.choice(uuids), "updates": updates})
    if kind == 3:
        size = draws.choice([0, 1, 64, 16384])
        return msgspec.msgpack.encode(CAMERA | {"image_height": 1, "image_width": size, "fov": draws.uniform(0.1, 3)})
    types = ["ShareUrlRequest", "FileTransferStartUpload", "GuiFormDirtyMessage", "ResetGuiMessage", "Nothing"]
    return msgspec.msgpack.encode({"type": draws.choice(types), "uuid": "a", "size_bytes": 10**12})


@pytest.mark.slow
def test_hostile_client_does_not_disturb_another(capfd):
    viewer = Viewer([viewed()], port=18680)
    try:
        calm, enemy = ViewerClient(viewer.url, 64, 48), ViewerClient(viewer.url, 64, 48)
        before, _ = calm.wait_for_rest(calm.move((0, 0, -3), (0, 0, 0), (0, -1, 0), 0.8))
        enemy.wait_for_rest(enemy.move((0, 0, -3), (0, 0, 0), (0, -1, 0), 0.8))
        wait_for(lambda: len(viewer._sessions) == 2)
        client = viewer._server.get_clients()[1]
        # Buttons write files, and end nothing here.
        uuids = [uuid for uuid, handle in client.gui._gui_input_handle_from_uuid.items() if handle.value is not False]
        draws = random.Random(0)
        for _ in range(N_HOSTILE):
            enemy._socket.send(hostile(draws, uuids))
        after, _ = calm.wait_for_rest(calm.move((0, 0, -3), (0, 0, 0), (0, -1, 0), 0.8))
        assert np.array_equal(before, after)
        assert len(viewer._sessions) == 2
        enemy.close()
        calm.close()
        wait_for(lambda: not viewer._sessions)
    finally:
        viewer.close()
    assert capfd.readouterr().err == ""
