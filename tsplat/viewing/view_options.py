"""Options of viewers: the address, and the display of training."""

import dataclasses
from typing import Literal

ADDRESS, PORT = "127.0.0.1", 8080

DrawnBy = Literal["server", "browser"]
"""Where the images of a page are drawn: by tsplat on the server, or by WebGL in the browser."""


@dataclasses.dataclass(frozen=True)
class ViewOptions:
    """Options of a viewer that shows models or training in web browsers.

    Attributes:
        address: Address to listen on; 0.0.0.0 also accepts other computers.
        port: Port to listen on; the next free one if it is taken.
        host_name: Host name of a proxy through which the page is reached. The viewer accepts it as `Host`, and as the
            only other `Origin`.
        open: Open the page in a web browser on this computer.
        paused: Start training paused, before its first step.
        stay: Keep the page open after the last step of training, until Ctrl-C.
    """

    address: str = ADDRESS
    port: int = PORT
    host_name: str = ""
    open: bool = False
    paused: bool = False
    stay: bool = False
