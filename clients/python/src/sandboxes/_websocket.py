"""The client's side of WebSocket (RFC 6455) after and during its handshake. No I/O."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import Iterator, NamedTuple

from ._errors import ProtocolError
from ._http1 import Head

MAX_MESSAGE = 16 << 20

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Message(NamedTuple):
    """A complete message. That of CLOSE has the status and the reason."""

    opcode: int
    data: bytes


class Handshake:
    """The headers that ask for a WebSocket, and the check of the answer."""

    def __init__(self) -> None:
        self._key = base64.b64encode(os.urandom(16)).decode()
        self.headers = [
            ("Connection", "Upgrade"), ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", self._key),
        ]

    def check(self, head: Head) -> None:
        """Refuses an answer that is no WebSocket."""
        digest = hashlib.sha1((self._key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        if (head.get("Upgrade").lower() != "websocket"
                or head.get("Sec-WebSocket-Accept") != base64.b64encode(digest).decode()
                or head.get("Sec-WebSocket-Extensions")):
            raise ProtocolError("the answer is not the WebSocket that was asked for")


def frame(opcode: int, data: bytes) -> bytes:
    """One message as one frame, masked as clients must."""
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    mask = os.urandom(4)
    keys = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + (int.from_bytes(data, "big") ^ keys).to_bytes(size, "big")


class MessageParser:
    """Makes messages of the bytes that a server sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._opcode = 0
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that end in the data."""
        self._buffer += data
        while (parsed := self._frame()) is not None:
            final, opcode, payload = parsed
            if opcode >= CLOSE:
                if not final or len(payload) > 125:
                    raise ProtocolError("a WebSocket control frame is malformed")
                yield Message(opcode, payload)
                continue
            if (opcode == 0) == (self._opcode == 0):
                raise ProtocolError("a WebSocket message is malformed")
            self._opcode = opcode or self._opcode
            self._parts += payload
            if len(self._parts) > MAX_MESSAGE:
                raise ProtocolError(f"a WebSocket message is larger than {MAX_MESSAGE} bytes")
            if final:
                message = Message(self._opcode, bytes(self._parts))
                self._opcode = 0
                self._parts.clear()
                yield message

    def _frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        if buffer[0] & 0x70 or buffer[1] & 0x80 or buffer[0] & 0x0F not in (0, TEXT, BINARY, CLOSE, PING, PONG):
            raise ProtocolError("a WebSocket frame is malformed")
        size, start = buffer[1], 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buffer) < 2 + width:
                return None
            size, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if size > MAX_MESSAGE:
            raise ProtocolError(f"a WebSocket message is larger than {MAX_MESSAGE} bytes")
        if len(buffer) < start + size:
            return None
        payload = bytes(buffer[start : start + size])
        final, opcode = bool(buffer[0] & 0x80), buffer[0] & 0x0F
        del buffer[: start + size]
        return final, opcode, payload
