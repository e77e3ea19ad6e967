"""Requests to the service: connections that are kept, repetitions, bounded answers."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import AsyncIterable
from copy import copy
from typing import TypeVar, cast

from .._decode import decode
from .._errors import (NEEDS_TLS, APIError, NotFoundError, ProtocolError, SandboxesError, TransportError, api_error,
                       connect_error)
from .._http1 import Body, Head, Origin, chunk, common_headers, request_head, split_head
from .._operations import Call, Operation, Upgrade
from .._proxy import Proxy, ProxyOption, proxy_for
from .._retry import Repetitions
from .._websocket import Handshake
from .connection import AsyncConnection, sleep

T = TypeVar("T")

MAX_ANSWER = 64 << 20
"""The most bytes of an answer with JSON."""
MAX_ERROR = 64 << 10
WRITTEN = 256 << 10
KEPT = 8
KEPT_FOR = 20.0


class AsyncResponse:
    """An answer whose body is read as it comes."""

    def __init__(self, http: AsyncHTTP, connection: AsyncConnection, method: str, head: Head) -> None:
        self.head = head
        self._http = http
        self._connection = connection
        self._body = Body(method, head)
        self._open = True

    async def piece(self, timeout: float | None) -> bytes:
        """Some bytes of the body, or none at its end. A body that is cut is a TransportError."""
        while True:
            data = self._body.take(self._connection.buffer)
            if data or self._body.done:
                return data
            try:
                more = await self._connection.read(timeout)
            except OSError as error:
                self.close()
                raise TransportError(f"the answer broke off: {str(error) or type(error).__name__}", sent=True) from error
            if not more:
                self.close()
                if self._body.until_close:
                    return b""
                raise TransportError("the answer broke off", sent=True)
            self._connection.buffer += more

    async def read(self, limit: int, timeout: float) -> bytes:
        """The whole body, of at most so many bytes."""
        data = bytearray()
        while piece := await self.piece(timeout):
            data += piece
            if len(data) > limit:
                raise ProtocolError(f"the answer is larger than {limit} bytes")
        return bytes(data)

    def close(self) -> None:
        """Ends the answer; a connection on which nothing is left of it is kept."""
        if not self._open:
            return
        self._open = False
        if self._body.done and self.head.keeps:
            self._http.keep(self._connection)
        else:
            self._connection.close()


class AsyncHTTP:
    """Sends requests to one service."""

    def __init__(self, url: str, key: str | None, timeout: float, tls: ssl.SSLContext | None,
                 proxy: ProxyOption = None) -> None:
        self.origin = Origin(url)
        self._proxy = proxy_for(self.origin, proxy)
        self._timeout = timeout
        self._deadline = math.inf
        self._headers = list(common_headers(self.origin, key).items())
        authorities = tls or ssl.create_default_context() if self.origin.tls or self._proxy and self._proxy.tls else None
        self._tls = authorities if self.origin.tls else None
        self._proxy_tls = authorities if self._proxy and self._proxy.tls else None
        self._kept: list[tuple[AsyncConnection, float]] = []
        self._closed = False

    def within(self, limit: float) -> AsyncHTTP:
        """The same service, for requests that are over, successful or not, within so many seconds together."""
        hurried = copy(self)
        hurried._kept, hurried._deadline = [], time.monotonic() + limit
        return hurried

    @property
    def timeout(self) -> float:
        """How many seconds the service may take to answer a request that is sent now."""
        return min(self._timeout, max(0.001, self._deadline - time.monotonic()))

    def close(self) -> None:
        """Closes the connections that are kept."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        while (kept := self._pop()) is not None:
            kept[0].close()

    def _pop(self) -> tuple[AsyncConnection, float] | None:
        try:
            return self._kept.pop()
        except IndexError:  # another thread may have taken the last
            return None

    def keep(self, connection: AsyncConnection) -> None:
        """Takes a connection back."""
        if self._closed or len(self._kept) >= KEPT:
            connection.close()
        else:
            self._kept.append((connection, time.monotonic()))

    async def call(self, operation: Call[T], prefix: str = "", *, wait: float = 0,
                   content: list[bytes | AsyncIterable[bytes]] | None = None) -> T:
        """Sends a request and reads its answer. `wait` is how much longer than others the answer may take."""
        repetitions = Repetitions(operation, self._deadline)
        whole = content is None or all(isinstance(part, bytes) for part in content)
        while True:
            try:
                response = await self._exchange(repetitions.next(operation), prefix, self.timeout + wait, content)
                try:
                    data = await response.read(MAX_ANSWER, self.timeout)
                finally:
                    response.close()
                return decode(operation.answer, data)
            except NotFoundError as error:
                known = error.code.endswith("NOT_FOUND")  # what a proxy on the way answers says nothing
                if known and repetitions.cut and operation.method == "DELETE" and operation.answer is type(None):
                    return cast(T, None)  # the attempt before removed it, and only its answer was lost
                raise
            except SandboxesError as error:
                if not whole and not (isinstance(error, TransportError) and not error.sent):
                    raise  # pieces that were read are gone
                pause = repetitions.pause(error)
            await sleep(pause)

    async def open(self, operation: Operation, prefix: str = "") -> AsyncResponse:
        """Sends a request whose answer is read as it comes."""
        repetitions = Repetitions(operation, self._deadline)
        while True:
            try:
                return await self._exchange(repetitions.next(operation), prefix, self.timeout, None)
            except SandboxesError as error:
                pause = repetitions.pause(error)
            await sleep(pause)

    async def open_once(self, operation: Operation, prefix: str = "") -> AsyncResponse:
        """As open, without repetitions: for a stream that resumes."""
        return await self._exchange(operation, prefix, self.timeout, None)

    async def upgrade(self, operation: Upgrade, prefix: str) -> AsyncConnection:
        """Makes a new connection a WebSocket."""
        handshake = Handshake()
        connection = await self._connect(tunnel=True)  # many proxies forward no upgrade
        try:
            head = await self._send(connection, operation, prefix, self.timeout, None, handshake.headers)
            if head.status != 101:
                await self._refuse(AsyncResponse(self, connection, operation.method, head))
            handshake.check(head)
        except APIError:
            raise  # the connection may be kept
        except BaseException:
            connection.close()
            raise
        return connection

    async def _exchange(self, operation: Operation, prefix: str, timeout: float,
                        content: list[bytes | AsyncIterable[bytes]] | None) -> AsyncResponse:
        # The service may close a kept connection just when a request is sent, so one that
        # must not be sent twice gets a new connection.
        connection = (self._take() if operation.repeatable else None) or await self._connect()
        try:
            head = await self._send(connection, operation, prefix, timeout, content, [])
            response = AsyncResponse(self, connection, operation.method, head)
            if not 200 <= head.status < 300:
                await self._refuse(response)
            if head.media_type != operation.accept and operation.accept == "text/event-stream":
                raise ProtocolError(f"the answer is not an event stream, but {head.media_type!r}")
        except TransportError:
            connection.close()
            self._drop()  # what broke this connection broke the others too
            raise
        except APIError:
            raise  # the connection may be kept
        except BaseException:
            connection.close()
            raise
        return response

    def _take(self) -> AsyncConnection | None:
        while (kept := self._pop()) is not None:
            connection, since = kept
            if time.monotonic() - since < KEPT_FOR and connection.open_and_silent:
                return connection
            connection.close()
        return None

    async def _connect(self, tunnel: bool = False) -> AsyncConnection:
        """A new connection to the service; with `tunnel` one that any protocol may be spoken on."""
        proxy, origin = self._proxy, self.origin
        if proxy is None:
            try:
                return await AsyncConnection.open(origin.name, origin.port, self._tls, self.timeout)
            except OSError as error:
                raise connect_error(origin.url, error) from error
        try:
            connection = await AsyncConnection.open(proxy.name, proxy.port, self._proxy_tls, self.timeout)
        except OSError as error:
            raise connect_error(f"the proxy {proxy.url} of {proxy.source}", error) from error
        if not tunnel and self._tls is None:
            connection.asks = proxy
            return connection
        try:
            await self._tunnel(connection, proxy)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _tunnel(self, connection: AsyncConnection, proxy: Proxy) -> None:
        """Has a proxy connect a connection to the service."""
        where = f"the proxy {proxy.url} of {proxy.source}"
        try:
            await connection.write(request_head("CONNECT", self.origin.authority,
                                                [("Host", self.origin.authority), *proxy.headers]), self.timeout)
            head = await self._head(connection, self.timeout, where)
        except OSError as error:
            raise TransportError(f"{where} did not answer: {str(error) or type(error).__name__}", sent=False) from error
        if not 200 <= head.status < 300:
            raise proxy.refusal(head.status)
        if self._tls is None:
            return
        if connection.buffer:
            raise ProtocolError(f"{where} sent data before the service could")
        try:
            await connection.start_tls(self._tls, self.origin.name, self.timeout)
        except OSError as error:
            raise connect_error(self.origin.url, error) from error

    async def _send(self, connection: AsyncConnection, operation: Operation, prefix: str, timeout: float,
                    content: list[bytes | AsyncIterable[bytes]] | None, extra: list[tuple[str, str]]) -> Head:
        fields = self._headers + operation.header_fields() + extra
        body = operation.body
        if content is not None:
            fields.append(("Content-Type", operation.content_type))
            if all(isinstance(part, bytes) for part in content):
                body = b"".join(cast(list[bytes], content))
        if body is not None:
            fields.append(("Content-Length", str(len(body))))
        elif content is not None:
            fields.append(("Transfer-Encoding", "chunked"))
        elif operation.method != "GET":
            fields.append(("Content-Length", "0"))
        target, proxy = self.origin.prefix + prefix + operation.target(), connection.asks
        if proxy is not None:
            target, fields = f"http://{self.origin.host}{target}", fields + proxy.headers
        head = request_head(operation.method, target, fields)
        refused: TransportError | None = None
        try:
            await self._write(connection, head + (body or b""), timeout)
            if body is None and content is not None:
                await self._send_content(connection, content, timeout)
        except TransportError as error:
            # The service may refuse a body before it has all of it, and the answer says why.
            refused, timeout = error, 1
        try:
            answer = await self._head(connection, timeout, self.origin.url)
        except OSError as error:
            lost = f"{self.origin.url} did not answer: {str(error) or type(error).__name__}"
            raise refused or TransportError(lost, sent=True) from error
        if proxy is not None and answer.status == 407:
            raise proxy.refusal(answer.status)
        if refused is not None:
            answer.headers["connection"] = "close"  # half a request is on it
        return answer

    async def _send_content(self, connection: AsyncConnection, content: list[bytes | AsyncIterable[bytes]],
                            timeout: float) -> None:
        for part in content:
            if isinstance(part, bytes):
                await self._write(connection, chunk(part), timeout)
                continue
            async for piece in part:
                if piece:
                    await self._write(connection, chunk(piece), timeout)
        await self._write(connection, chunk(b""), timeout)

    async def _write(self, connection: AsyncConnection, data: bytes, timeout: float) -> None:
        """Sends data. Unlike those of a file that is sent, errors of the connection are a TransportError."""
        try:
            for start in range(0, len(data), WRITTEN):  # the timeout is for a part, however large the whole is
                await connection.write(data[start : start + WRITTEN], timeout)
        except OSError as error:
            raise TransportError(f"{self.origin.url} did not take the request: {str(error) or type(error).__name__}",
                                 sent=True) from error

    async def _head(self, connection: AsyncConnection, timeout: float, where: str) -> Head:
        deadline = time.monotonic() + timeout
        while True:
            head = split_head(connection.buffer)
            if head is not None and (head.status >= 200 or head.status == 101):
                return head
            if connection.buffer.startswith((b"\x15\x03", b"\x16\x03")):  # an alert, or a handshake
                raise ProtocolError(f"{where}: {NEEDS_TLS}")
            if head is None:
                data = await connection.read(max(0.001, deadline - time.monotonic()))
                if not data:
                    raise ConnectionResetError("the connection was closed before the answer")
                connection.buffer += data

    async def _refuse(self, response: AsyncResponse) -> None:
        """Raises the error that an answer is."""
        head, data = response.head, bytearray()
        try:
            while len(data) < MAX_ERROR and (piece := await response.piece(self.timeout)):
                data += piece
        finally:
            response.close()
        raise api_error(head.status, bytes(data[:MAX_ERROR]), head.get("X-Request-ID")[:128], head.get("Retry-After"))
