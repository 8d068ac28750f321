"""A client of the viewer without a browser: it speaks viser's protocol over a WebSocket."""

import io
import time

import numpy as np
from PIL import Image


class ViewerClient:
    """A client whose window has a size; the first movement opens its session.

    Attributes:
        images: The images that it received: time by `time.perf_counter`, format, and bytes of the file.
        status: The newest line of the viewer about the image.
    """

    def __init__(self, port, width=640, height=480):
        import viser
        from websockets.sync.client import connect

        self._size = width, height
        self._socket = connect(
            f"ws://127.0.0.1:{port}", subprotocols=[f"viser-v{viser.__version__}"], max_size=None, compression=None
        )
        self.images, self.status = [], ""

    def move(self, eye, target, up, fov):
        """Moves the camera; vertical field of view in radians. Returns the time."""
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

    def receive(self, seconds):
        """Receives messages for some time."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            try:
                self._take(self._socket.recv(timeout=left))
            except TimeoutError:
                return

    def wait_for_rest(self, since=0.0, seconds=60.0):
        """Waits for the image at rest after a time; returns it as [h, w, 3] uint8, and the time when it came."""
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if self.images and self.images[-1][1] == "png" and self.images[-1][0] > since:
                # One that was on its way may be followed by the last.
                n_images = len(self.images)
                self.receive(1.0)
                if len(self.images) == n_images:
                    when, _, content = self.images[-1]
                    return decode(content), when
            self.receive(0.05)
        raise TimeoutError(f"no image at rest; the viewer says: {self.status}")

    def close(self):
        """Disconnects as a browser does."""
        self._socket.close()

    def vanish(self):
        """Ends the connection without a word, as when a computer is switched off."""
        self._socket.socket.close()

    def _take(self, message):
        import msgspec
        import zstandard

        size, compressed = (int.from_bytes(message[i : i + 8], "little") for i in (0, 8))
        content = zstandard.ZstdDecompressor().decompress(message[16 : 16 + compressed], size)
        for entry in msgspec.msgpack.decode(content)["messages"]:
            if entry["type"] == "BackgroundImageMessage" and entry["rgb_data"] is not None:
                self.images.append((time.perf_counter(), entry["format"], bytes(entry["rgb_data"])))
            text = entry.get("updates", {}).get("_markdown", "") if entry["type"] == "GuiUpdateMessage" else ""
            self.status = text or self.status


def decode(content):
    """[h, w, 3] uint8 of an image file."""
    return np.array(Image.open(io.BytesIO(content)).convert("RGB"))
