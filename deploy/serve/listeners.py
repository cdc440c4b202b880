"""How a port is closed without resetting a connection that a client has already made."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which Python's socket module doesn't name."""
_SOL_SOCKET = 1
# A socket filter (linux/filter.h): of TCP's flags (byte 13) SYN without ACK is dropped, all else let through.
_FILTER = (
    (0x30, 0, 0, 13),  # load the byte
    (0x54, 0, 0, 0x12),  # SYN and ACK of it
    (0x15, 0, 1, 0x02),  # if it is SYN alone: the next line, else the one after it
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep
)


def take_no_more(listener: socket.socket) -> None:
    """Let a listening socket make no new connections, while those that the kernel has made wait to be accepted.

    Closing it resets what it has not accepted, and a client under way never hears why. With the filter, new clients
    are not answered for a moment, ask again, and find the port closed: they have sent no request by then. Where there
    is no such filter - it is Linux's - the moment remains.
    """
    if sys.platform != "linux":
        return
    lines = b"".join(struct.pack("HBBI", *line) for line in _FILTER)
    buffer = ctypes.create_string_buffer(lines, len(lines))
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(buffer))
    with contextlib.suppress(OSError):
        listener.setsockopt(_SOL_SOCKET, _ATTACH_FILTER, program)
