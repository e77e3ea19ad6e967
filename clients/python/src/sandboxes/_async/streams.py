"""Streams that resume by themselves."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Callable, Generic, TypeVar

from .._decode import decode
from .._errors import ProtocolError, SandboxesError, StreamError, TransportError
from .._gen import execd
from .._operations import EventStream
from .._retry import Resumption
from .._sse import Event, EventParser
from .connection import sleep
from .http import AsyncHTTP, AsyncResponse

T = TypeVar("T")

SILENCE = 30.0
"""After how many seconds without a byte a stream of events is taken as cut: they have pings."""
GIVE_UP = 60.0
"""For how many seconds without an event it is tried to resume a stream."""


class AsyncEvents(Generic[T]):
    """The events of a stream. A cut connection is replaced; nothing is lost and nothing comes twice.

    It is an iterator, and a context manager that closes the connection. The stream begins when it is entered
    or the first event is asked for. Pings are left out. What cannot be resumed raises StreamError.
    """

    def __init__(self, http: AsyncHTTP, prefix: str, what: str, kind: type[T],
                 request: Callable[[str | None], EventStream[T]], *,
                 last: Callable[[T], bool] = lambda _: False,
                 resumable: bool = True, response: AsyncResponse | None = None) -> None:
        """`request` makes the request for what comes after the event with an id, or for all.

        `last` says whether nothing comes after an event. An answer that ends before was cut.
        `response` is an answer that has begun.
        """
        self._http = http
        self._prefix = prefix
        self._what = what
        self._kind = kind
        self._request = request
        self._last = last
        self._resumable = resumable
        self._response = response
        self._begun = response is not None
        self._parser = EventParser()
        self._pending: deque[Event] = deque()
        self._resumption = Resumption(GIVE_UP)
        self._ended = False
        self.last_event_id: str | None = None
        """The id of the last event that was read."""
        self.last_size = 0
        """How many bytes the JSON of that event had."""
        self.deadline: float | None = None
        """When to raise TimeoutError while no event comes, in the time of time.monotonic()."""

    def __aiter__(self) -> AsyncEvents[T]:
        return self

    async def __aenter__(self) -> AsyncEvents[T]:
        if not self._begun:
            await self._begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection. What the stream is about goes on."""
        self._ended = True
        self._cut()

    async def __anext__(self) -> T:
        while True:
            while self._pending:
                value = self._read(self._pending.popleft())
                if value is not None:
                    return value
            if self._ended:
                raise StopAsyncIteration
            if self._begun:
                await self._more()
            else:
                await self._begin()

    def _read(self, event: Event) -> T | None:
        """The value of an event, or None for a ping."""
        value = decode(self._kind, event.data)
        self._resumption.progress()
        self.last_size = len(event.data)
        if event.id:
            self.last_event_id = event.id
        if self._last(value):
            self._ended = True
            self._pending.clear()
            self._cut()
        return None if getattr(value, "type", "") == "ping" else value

    async def _begin(self) -> None:
        self._response = await self._http.open(self._request(None), self._prefix)
        self._begun = True

    async def _more(self) -> None:
        """Reads more events, or opens the stream again."""
        try:
            if self._response is None:
                self._response = await self._http.open_once(self._request(self.last_event_id), self._prefix)
            data = await self._response.piece(self._patience())
            if not data:
                raise TransportError("it ended too early", sent=True)
            self._pending.extend(self._parser.feed(data))
            return
        except SandboxesError as error:
            self._cut()
            self._patience()
            pause = self._resumption.pause(error) if self._resumable else None
            if pause is None:
                self._ended = True
                raise StreamError(f"{self._what} broke off and cannot be resumed: {error}") from error
        await sleep(pause)

    def _patience(self) -> float:
        """How many seconds to wait for the next byte."""
        if self.deadline is None:
            return SILENCE
        left = self.deadline - time.monotonic()
        if left <= 0:
            self._ended = True
            raise TimeoutError(f"{self._what} had nothing more in time")
        return min(SILENCE, left)

    def _cut(self) -> None:
        self._parser = EventParser()
        if self._response is not None:
            self._response.close()
            self._response = None


class AsyncDownload:
    """The bytes of a file as they come. A cut connection is replaced, unless the file has changed meanwhile.

    It is an iterator over pieces, and a context manager that closes the connection.
    """

    def __init__(self, http: AsyncHTTP, prefix: str, path: str, start: int, end: int | None) -> None:
        self._http = http
        self._prefix = prefix
        self._path = path
        self._next = start
        self._end = end
        self._tag: str | None = None
        self._response: AsyncResponse | None = None
        self._begun = False
        self._ended = False
        self._resumption = Resumption(GIVE_UP)

    def __aiter__(self) -> AsyncDownload:
        return self

    async def __aenter__(self) -> AsyncDownload:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection."""
        self._ended = True
        self._cut()

    async def __anext__(self) -> bytes:
        while not self._ended:
            try:
                data = await self._piece()
                if data:
                    self._next += len(data)
                    self._resumption.progress()
                    return data
                self._ended = True
                self._cut()
            except SandboxesError as error:
                self._cut()
                if not self._begun:
                    raise
                pause = self._resumption.pause(error) if self._tag else None
                if pause is None:
                    self._ended = True
                    raise StreamError(f"the download of {self._path} broke off and cannot be resumed: {error}") from error
                await sleep(pause)
        raise StopAsyncIteration

    async def _piece(self) -> bytes:
        if self._response is None:
            request = execd.download_file(self._path, range=self._range(), if_range=self._tag)
            if not self._begun:
                self._response = await self._http.open(request, self._prefix)
                self._tag, self._begun = self._response.head.get("ETag") or None, True
            else:
                self._response = await self._http.open_once(request, self._prefix)
            if self._range() is not None and self._response.head.status != 206:
                raise ProtocolError("the answer is not the range that was asked for: the file may have changed")
        return await self._response.piece(self._http.timeout)

    def _range(self) -> str | None:
        if self._next == 0 and self._end is None:
            return None
        return f"bytes={self._next}-" + ("" if self._end is None else str(self._end - 1))

    def _cut(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
