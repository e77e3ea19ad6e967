"""Reads Server-Sent Events. No I/O."""

from __future__ import annotations

from typing import Iterator, NamedTuple

from ._errors import ProtocolError

MAX_EVENT = 64 << 20
"""The most bytes that one event may have. Pictures of cells come in one."""


class Event(NamedTuple):
    """One event. The id is empty when the stream gave none."""

    id: str
    data: bytes


class EventParser:
    """Makes events of bytes. An event that has not ended when the stream does is none."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data = bytearray()  # one for all lines: many small objects take more than the bound
        self._id = ""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end in the chunk."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line = chunk[start:end]
            if self._line:
                line = bytes(self._line + line)
                self._line.clear()
            start = end + 1
            event = self._on_line(line.removesuffix(b"\r"))
            if event is not None:
                yield event
        self._line += chunk[start:]
        if len(self._line) + len(self._data) > MAX_EVENT:
            raise ProtocolError(f"an event of the stream is larger than {MAX_EVENT} bytes")

    def _on_line(self, line: bytes) -> Event | None:
        if not line:
            if not self._data:
                return None
            self._data.pop()  # the newline of the last line
            event = Event(self._id, bytes(self._data))
            self._data.clear()
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")[:128]
        return None
