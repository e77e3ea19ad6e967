"""Connections of asyncio."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO, Callable, Coroutine

from .._proxy import Proxy

PIECE = 64 << 10


class AsyncConnection:
    """One TCP or TLS connection. Its errors are OSError, a timeout is TimeoutError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.buffer = bytearray()
        """What was read and not yet taken."""
        self.asks: Proxy | None = None
        """The proxy that is asked for the URLs of requests, and answers in the service's place."""

    @classmethod
    async def open(cls, name: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> AsyncConnection:
        """Connects within so many seconds."""
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(name, port, ssl=tls, limit=PIECE)
        return cls(reader, writer)

    async def start_tls(self, tls: ssl.SSLContext, name: str, timeout: float) -> None:
        """Goes on with TLS, also inside of the TLS of a proxy."""
        async with asyncio.timeout(timeout):
            await self._writer.start_tls(tls, server_hostname=name)

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
    """The next bytes of a local file or pipe, as soon as there are some, without blocking the event loop."""
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()

    def settle(data: bytes, error: BaseException | None) -> None:
        if future.done():  # it was cancelled
            return
        if error is None:
            future.set_result(data)
        else:
            future.set_exception(error)

    def work() -> None:
        _held = sys.stdin, sys.__stdin__  # the end of the program would close them, and abort while their lock is held
        data, failed = b"", None
        try:
            data = read(PIECE)
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, data, failed)

    # A read of a pipe or a terminal cannot be ended, and the end of the program waits for the threads of to_thread.
    threading.Thread(target=work, daemon=True).start()
    return await future


class AsyncBeside:
    """Work that is done beside a block, and is of no use after it.

    When it fails, `on_failure` ends what the block waits for, and the end of the block raises its error.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]],
                 on_failure: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._on_failure = on_failure
        self._failed: Exception | None = None

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception as error:
            self._failed = error
            with suppress(Exception):  # the first error counts
                await self._on_failure()

    async def __aenter__(self) -> AsyncBeside:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self._task.cancel()  # does nothing when it is done
        await asyncio.wait([self._task])
        if self._failed is not None and error is None:
            raise self._failed
