"""A viewer client without a browser, which speaks viser's protocol over a WebSocket."""

import io
import socket
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class ViewerClient:
    """A client with a window size and the received images; the first camera movement opens its session."""

    def __init__(self, url: str, width: int = 640, height: int = 480) -> None:
        import viser
        from websockets.sync.client import connect

        self._size = width, height
        self._socket = connect(
            url.replace("http", "ws", 1), subprotocols=[f"viser-v{viser.__version__}"], max_size=None, compression=None
        )
        self.images: list[tuple[float, str, bytes]] = []
        self.status = ""

    def move(self, eye: Sequence[float], target: Sequence[float], up: Sequence[float], fov: float) -> float:
        """Moves the camera and returns the time; `fov` is the vertical field of view in radians."""
        import msgspec
        from viser._messages import ViewerCameraMessage
        from viser.transforms import SO3

        from tsplat.scene import look_at

        rotation = look_at(eye, target, up)[:3, :3].double().numpy().T
        eye, target, up = (tuple(float(value) for value in vector) for vector in (eye, target, up))
        message = ViewerCameraMessage(
            wxyz=tuple(SO3.from_matrix(rotation).wxyz), position=eye, fov=fov, near=0.01, far=1000.0,
            image_width=self._size[0], image_height=self._size[1], look_at=target, up_direction=up,
        )  # fmt: skip
        self._socket.send(msgspec.msgpack.encode(message.as_serializable_dict()))
        return time.perf_counter()

    def receive(self, seconds: float) -> None:
        """Receives messages for a number of seconds."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            try:
                self._take(self._socket.recv(timeout=left))
            except TimeoutError:
                return

    def wait_for_rest(self, since: float = 0.0, seconds: float = 60.0) -> tuple[NDArray[np.uint8], float]:
        """Waits for the final image after a time `since`; returns it as [h, w, 3] uint8, and its arrival time."""
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if self.images and self.images[-1][1] == "png" and self.images[-1][0] > since:
                # An image in transit may be followed by the final one.
                n_images = len(self.images)
                self.receive(1.0)
                if len(self.images) == n_images:
                    when, _, content = self.images[-1]
                    return decode(content), when
            self.receive(0.05)
        raise TimeoutError(f"no image at rest; the viewer says: {self.status}")

    def close(self) -> None:
        """Disconnects like a browser."""
        self._socket.close()

    def vanish(self) -> None:
        """Closes the connection without the protocol's handshake, as if the browser crashed."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)

    def _take(self, message: bytes) -> None:
        import msgspec
        import zstandard

        size, compressed = (int.from_bytes(message[i : i + 8], "little") for i in (0, 8))
        content = zstandard.ZstdDecompressor().decompress(message[16 : 16 + compressed], size)
        for entry in msgspec.msgpack.decode(content)["messages"]:
            if entry["type"] == "BackgroundImageMessage" and entry["rgb_data"] is not None:
                self.images.append((time.perf_counter(), entry["format"], bytes(entry["rgb_data"])))
            text = entry.get("updates", {}).get("_markdown", "") if entry["type"] == "GuiUpdateMessage" else ""
            self.status = text or self.status


def decode(content: bytes) -> NDArray[np.uint8]:
    """Decodes an image file to [h, w, 3] uint8."""
    return np.array(Image.open(io.BytesIO(content)).convert("RGB"))
