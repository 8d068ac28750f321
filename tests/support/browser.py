"""Drives a headless Chromium over the DevTools protocol."""

import asyncio
import base64
import contextlib
import io
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request

import numpy as np
from PIL import Image

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist",
    "--remote-debugging-port=0", "--hide-scrollbars",
)  # fmt: skip


class NotAttachedError(Exception):
    """The page is being replaced by another page."""


class Page:
    """A browser page, with the errors on its console, the exceptions of its scripts, and the addresses it requested."""

    def __init__(self, socket, loop):
        self._socket, self._loop, self._calls = socket, loop, 0
        self.errors, self.requests = [], []

    def call(self, method, **parameters):
        """Calls a method of the DevTools protocol, and returns its result."""
        return self._loop.run_until_complete(self._call(method, parameters))

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression; None if it is undefined."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self):
        """Returns the page as an array [h, w, 3] uint8."""
        for _ in range(600):  # a minute
            with contextlib.suppress(NotAttachedError):
                png = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
                break
            time.sleep(0.1)
        return np.array(Image.open(io.BytesIO(png)).convert("RGB"))

    def wait_for(self, condition, seconds=120):
        """Waits until a condition on the screenshot holds; returns False after a timeout."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition(self.screenshot()):
                return True
            time.sleep(2)  # screenshots use CPU time that the page needs
        return False

    async def _call(self, method, parameters):
        self._calls += 1
        await self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(await self._socket.recv())
            if message.get("id") == self._calls:
                if "Not attached" in message.get("error", {}).get("message", ""):
                    raise NotAttachedError
                assert "error" not in message, message
                return message["result"]
            if is_error(message):
                self.errors.append(message["params"])
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])


PHONE = (
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Mobile "
    "Safari/537.36"
)
"""User agent of a phone."""


def is_error(message):
    """Returns whether an event is an error on the console or, after `Log.enable`, a browser error such as a missing
    file."""
    method, parameters = message.get("method"), message.get("params")
    if method == "Log.entryAdded":
        return parameters["entry"]["level"] == "error"
    return method == "Runtime.exceptionThrown" or (
        method == "Runtime.consoleAPICalled" and parameters["type"] == "error"
    )


@contextlib.contextmanager
def open_page(url, width=800, height=600, phone=False):
    """Opens a page in a new browser, which emulates a phone if `phone` is set."""
    import websockets

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        stack.callback(process.communicate)
        stack.callback(process.kill)
        for line in process.stderr:
            if "DevTools listening on" in line:
                port = line.split("127.0.0.1:")[1].split("/")[0]
                break
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as response:
            pages = json.load(response)
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        socket = loop.run_until_complete(websockets.connect(address, max_size=None, ping_interval=None))
        stack.callback(lambda: loop.run_until_complete(socket.close()))
        page = Page(socket, loop)
        page.call("Runtime.enable")
        page.call("Network.enable", maxTotalBufferSize=0, maxResourceBufferSize=0)
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        if phone:
            page.call("Emulation.setTouchEmulationEnabled", enabled=True)
            page.call("Emulation.setUserAgentOverride", userAgent=PHONE)
        page.call("Page.navigate", url=url)
        yield page
