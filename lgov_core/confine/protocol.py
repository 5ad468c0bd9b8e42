"""What a box and its broker say to each other: one JSON object a message, with its length in front, over TCP."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

#: Of a message, in bytes. An entry's texts are cut to 64 KiB each before.
MAX_MESSAGE: Final = 4 << 20
_LENGTH: Final = struct.Struct("!I")


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message. Raises `OSError`."""
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message. Raises `OSError` when the connection ends, and `ValueError` for what is not a message."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MAX_MESSAGE:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(_exactly(connection, length))
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return message  # pyright: ignore[reportUnknownVariableType]


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("the connection ended")
        data += part
    return bytes(data)
