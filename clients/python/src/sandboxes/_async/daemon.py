"""Requests to the daemon of one sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Callable, TypeVar

from .._gen import execd
from .._operations import Call, EventStream, Operation, Upgrade, fill
from .._options import DAEMON_PORT
from .connection import AsyncConnection
from .http import AsyncHTTP, AsyncResponse
from .streams import AsyncDownload, AsyncEvents

T = TypeVar("T")


class AsyncDaemon:
    """The daemon in a sandbox, through the service.

    The service's own path to a port is used and not the port's endpoint: it works wherever the service can be
    reached, with the service's key alone, and stays the same when the sandbox is resumed.
    """

    def __init__(self, http: AsyncHTTP, sandbox_id: str) -> None:
        self.http = http
        self.prefix = fill("/v1/sandboxes/{}/proxy/{}", sandbox_id, DAEMON_PORT)

    async def call(self, operation: Call[T], *, content: list[bytes | AsyncIterable[bytes]] | None = None) -> T:
        """Sends a request and reads its answer."""
        return await self.http.call(operation, self.prefix, content=content)

    async def open(self, operation: Operation) -> AsyncResponse:
        """Sends a request whose answer is read as it comes."""
        return await self.http.open(operation, self.prefix)

    async def upgrade(self, operation: Upgrade) -> AsyncConnection:
        """Opens a WebSocket."""
        return await self.http.upgrade(operation, self.prefix)

    def events(self, what: str, kind: type[T], request: Callable[[str | None], EventStream[T]], *,
               last: Callable[[T], bool] = lambda _: False, resumable: bool = True,
               response: AsyncResponse | None = None) -> AsyncEvents[T]:
        """A stream of events."""
        return AsyncEvents(self.http, self.prefix, what, kind, request, last=last,
                           resumable=resumable, response=response)

    def output(self, what: str, request: Callable[[str | None], EventStream[execd.StreamEvent]],
               response: AsyncResponse | None = None) -> AsyncEvents[execd.StreamEvent]:
        """The events of a command or a cell."""
        return self.events(what, execd.StreamEvent, request, response=response,
                           last=lambda event: event.type in ("execution_complete", "error"))

    def download(self, path: str, start: int, end: int | None) -> AsyncDownload:
        """The bytes of a file."""
        return AsyncDownload(self.http, self.prefix, path, start, end)
