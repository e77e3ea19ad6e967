"""Connections of asyncio."""

from __future__ import annotations

import asyncio
import ssl
from typing import BinaryIO

from .._http1 import Origin

PIECE = 64 << 10


class AsyncConnection:
    """One TCP or TLS connection. Its errors are OSError, a timeout is TimeoutError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.buffer = bytearray()
        """What was read and not yet taken."""

    @classmethod
    async def open(cls, origin: Origin, tls: ssl.SSLContext | None, timeout: float) -> AsyncConnection:
        """Connects within so many seconds."""
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(origin.name, origin.port, ssl=tls, limit=PIECE)
        return cls(reader, writer)

    async def read(self, timeout: float | None) -> bytes:
        """Some bytes, or none at the end of the connection."""
        async with asyncio.timeout(timeout):
            return await self._reader.read(PIECE)

    async def write(self, data: bytes, timeout: float) -> None:
        """Sends all of the data."""
        self._writer.write(data)
        async with asyncio.timeout(timeout):
            await self._writer.drain()

    @property
    def open_and_silent(self) -> bool:
        """Whether the other side has neither closed an idle connection nor sent anything."""
        return not (self.buffer or self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Closes the connection at once."""
        self._writer.transport.abort()


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


async def read_file(file: BinaryIO) -> bytes:
    """The next bytes of a local file, without blocking the event loop."""
    return await asyncio.to_thread(file.read, PIECE)
