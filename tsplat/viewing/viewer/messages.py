"""Checks the messages of pages: only a few types are allowed, with limits on numbers, texts and sizes."""

import io
import math
from collections.abc import Callable
from typing import Any, TypedDict

from ...config import MAGNITUDE_MAX
from ...scalars import to_float
from .folder import TRANSFER_MAX
from .renderer import SIDE_MAX

TEXT_MAX = 4096
"""Maximum length of texts."""

MESSAGE_BYTES = 1 << 16
"""Maximum size of messages, except those with a part of a file."""

PART_BYTES = 1 << 19
"""Size of the parts in which viser's pages upload files."""

PART_MESSAGE_BYTES = PART_BYTES + (1 << 12)
"""Maximum size of a message with a part of a file."""

RENDER_MAX = 4096
"""Maximum width and height of images that pages render; actual ones are tiny."""


Check = Callable[[Any], bool]


class _Part(TypedDict):
    """Schema of a part of a file, the only large message."""

    type: str
    source_component_uuid: str
    transfer_uuid: str
    part_index: int
    content: bytes


def allows(client: Any, message: Any, show_message: Callable[[str], object]) -> bool:
    """Returns whether a message may be passed to viser. `client` has sent it; None before its first camera.

    The message is as received from the network: bytes of msgpack, if it is valid. If a control gets an invalid value,
    `show_message` is called with a message for the user.
    """
    import msgspec

    if not isinstance(message, bytes):
        return False
    try:
        large = len(message) > MESSAGE_BYTES
        content: Any = msgspec.msgpack.decode(message, type=_Part if large else Any)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    kind = content.pop("type", None) if isinstance(content, dict) else None
    if kind == "GuiUpdateMessage":
        return client is not None and _is_gui_update(client, content, show_message)
    fields = set(MESSAGES[kind].split()) if isinstance(kind, str) and kind in MESSAGES else None
    if fields is None or not content.keys() <= fields or content.keys() < fields - {"owner"}:
        return False
    if (large and kind != "FileTransferPart") or not all(FIELDS[name](value) for name, value in content.items()):
        return False
    return "transfer_uuid" not in content or (client is not None and _is_upload(client, content, show_message))


def _is_upload(client: Any, content: dict[str, Any], show_message: Callable[[str], object]) -> bool:
    """Returns whether an upload, or a part of it, is for a control that accepts files, and is not too large."""
    uploads, uuid = client.gui._current_file_upload_states, content["transfer_uuid"]
    if "content" in content:
        upload = uploads.get(uuid)
        return bool(upload and upload["transferred_bytes"] + len(content["content"]) <= upload["total_bytes"])
    handle, size = client.gui._gui_input_handle_from_uuid.get(content["source_component_uuid"]), content["size_bytes"]
    if not hasattr(handle, "on_upload") or uuid in uploads or content["part_count"] != -(-size // PART_BYTES):
        return False
    total = size + sum(upload["total_bytes"] for upload in uploads.values())
    if total > TRANSFER_MAX:
        expected = f"uploads of at most {TRANSFER_MAX:,} bytes together"
        show_message(f"**{content['filename']}: expected {expected}, found {total:,}**")
    return bool(total <= TRANSFER_MAX)


def _is_gui_update(client: Any, content: dict[Any, Any], show_message: Callable[[str], object]) -> bool:
    uuid, updates = content.get("uuid"), content.get("updates")
    if content.keys() != {"uuid", "updates"} or not isinstance(uuid, str) or not isinstance(updates, dict):
        return False
    handle = client.gui._gui_input_handle_from_uuid.get(uuid)
    if handle is None or updates.keys() != {"value"} or not handle.visible:
        return False
    expected = find_problem(handle, updates["value"])
    if expected is not None:
        show_message(f"**{handle.label}: expected {expected}**")
    return expected is None


def find_problem(handle: Any, value: Any) -> str | None:
    """Returns a description of the values that a control accepts; None if it accepts `value`."""
    current = handle.value
    options = getattr(handle, "options", None)
    if options is not None:
        return None if isinstance(value, str) and value in options else "one of its options"
    if isinstance(current, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(current, str):
        return None if isinstance(value, str) and len(value) <= TEXT_MAX else f"at most {TEXT_MAX} characters"
    if isinstance(current, tuple):
        if isinstance(current[0], int):  # a color
            return None if _list(len(current), _number(0, 255))(value) else "numbers from 0 to 255"
        return None if _list(len(current), _is_coordinate)(value) else f"numbers of at most {MAGNITUDE_MAX:g}"
    low, high = (getattr(handle, name, None) for name in ("min", "max"))
    low, high = -MAGNITUDE_MAX if low is None else low, MAGNITUDE_MAX if high is None else high
    if isinstance(current, (int, float)):
        return None if _number(low, high)(value) else f"a number from {low:g} to {high:g}"
    return "no value"


def _is_number(value: Any) -> bool:
    return to_float(value) is not None


def _number(low: float, high: float) -> Check:
    return lambda value: _is_number(value) and low <= value <= high


def _list(length: int, check: Check) -> Check:
    return lambda value: isinstance(value, list) and len(value) == length and all(map(check, value))


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_rotation(value: Any) -> bool:
    return _list(4, _is_coordinate)(value) and abs(math.hypot(*value) - 1) < 0.01


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_MAX


def _is_image(value: Any) -> bool:
    """Returns whether bytes are a small JPEG, or empty, which means that the page could not render."""
    from PIL import Image

    if not isinstance(value, bytes) or not value:
        return value == b""
    try:
        with Image.open(io.BytesIO(value), formats=["JPEG"]) as image:
            return max(image.size) <= RENDER_MAX
    except (OSError, ValueError, SyntaxError):
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


_is_coordinate = _number(-MAGNITUDE_MAX, MAGNITUDE_MAX)
_is_point, _is_position = _list(3, _is_coordinate), _list(2, _is_coordinate)
_is_size = _number(0, SIDE_MAX)  # canvases have no size while a page loads

FIELDS: dict[str, Check] = {
    "wxyz": _is_rotation,
    "fov": lambda value: _is_number(value) and 0 < value < math.pi,
    "payload": _is_image,
    "phase": lambda value: value in ("start", "update", "end"),
    "button": lambda value: value == "left",
    "instance_index": _optional(_is_coordinate),
    "modifier": _optional(_is_text),
    "content": lambda value: isinstance(value, bytes) and len(value) <= PART_BYTES,
    **dict.fromkeys(("near", "far"), _is_number),
    **dict.fromkeys(("image_height", "image_width"), _is_size),
    **dict.fromkeys(
        ("position", "look_at", "up_direction", "ray_origin", "ray_direction", "start_position"), _is_point
    ),
    "end_position": _is_point,
    **dict.fromkeys(("screen_pos", "start_screen_pos", "end_screen_pos"), _is_position),
    **dict.fromkeys(("part_count", "size_bytes", "part_index"), _is_count),
    **dict.fromkeys(("name", "owner", "uuid", "render_uuid", "source_component_uuid", "transfer_uuid"), _is_text),
    **dict.fromkeys(("filename", "mime_type"), _is_text),
}
"""Check of the value of each field, in all messages."""

DRAG = "phase name instance_index start_position start_screen_pos end_position end_screen_pos button modifier owner"
MESSAGES = {
    "ViewerCameraMessage": "wxyz position fov near far image_height image_width look_at up_direction",
    "SceneNodeClickMessage": "name instance_index ray_origin ray_direction screen_pos modifier owner",
    "SceneNodeDragMessage": DRAG,
    "TransformControlsUpdateMessage": "name wxyz position owner",
    "TransformControlsDragStartMessage": "name owner",
    "TransformControlsDragEndMessage": "name owner",
    "CommandTriggerMessage": "uuid",
    "GetRenderResponseMessage": "payload render_uuid",
    "FileTransferStartUpload": "source_component_uuid transfer_uuid filename mime_type part_count size_bytes",
    "FileTransferPart": "source_component_uuid transfer_uuid part_index content",
}
"""Fields of each message of a page, except ``GuiUpdateMessage``, whose value depends on the control."""
