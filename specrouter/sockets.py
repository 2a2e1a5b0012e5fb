"""Options for sockets."""

from __future__ import annotations

import socket


def keepalive_options() -> list[tuple[int, int, int]]:
    """A machine that lost its power says nothing: after half a minute of silence the kernel asks, then gives up."""
    options = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
    known = [(getattr(socket, name), value) for name, value in options.items() if hasattr(socket, name)]
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in known),
    ]
