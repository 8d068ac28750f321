"""Options of viewers: the address, and the display of a training."""

import dataclasses
from typing import Literal

ADDRESS, PORT = "127.0.0.1", 8080

DrawnBy = Literal["server", "browser"]
"""The program that draws the images of a page: tsplat on the server, or WebGL in the browser."""


@dataclasses.dataclass(frozen=True)
class ViewOptions:
    """Options of a viewer that shows models, or a training, in web browsers.

    Attributes:
        address: Address to listen at; 0.0.0.0 lets other computers in.
        port: Port to listen at, or the next free one.
        host_name: Name of a proxy through which others see the page. Requests may have it as `Host`, and only its own
            pages as `Origin`.
        open: Open the page in a web browser on this computer.
        paused: Wait for the page before the first step of a training.
        stay: After the last step of a training, keep the page open until Ctrl-C.
    """

    address: str = ADDRESS
    port: int = PORT
    host_name: str = ""
    open: bool = False
    paused: bool = False
    stay: bool = False
