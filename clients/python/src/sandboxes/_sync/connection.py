"""Connections that block."""

from __future__ import annotations

import selectors
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO, Callable

from .._proxy import Proxy
from .._tls import TLSInTLS

PIECE = 64 << 10

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # any number of descriptors, where there is poll


class Connection:
    """One TCP or TLS connection. Its errors are OSError, a timeout is TimeoutError.

    One thread may read while another writes. TLS objects of Python do not allow that by themselves, so the
    socket never blocks, and threads wait outside of the lock.
    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket: socket.socket | TLSInTLS = opened
        self._lock = threading.Lock()
        self.buffer = bytearray()
        """What was read and not yet taken."""
        self.asks: Proxy | None = None
        """The proxy that is asked for the URLs of requests, and answers in the service's place."""

    @classmethod
    def open(cls, name: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> Connection:
        """Connects within so many seconds."""
        opened = socket.create_connection((name, port), timeout)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                opened = tls.wrap_socket(opened, server_hostname=name)
            opened.setblocking(False)
        except BaseException:
            opened.close()
            raise
        return cls(opened)

    def start_tls(self, tls: ssl.SSLContext, name: str, timeout: float) -> None:
        """Goes on with TLS, also inside of the TLS of a proxy."""
        outer = self._socket
        assert isinstance(outer, socket.socket)
        outer.settimeout(timeout)
        if isinstance(outer, ssl.SSLSocket):
            self._socket = TLSInTLS(outer, tls, name)
        else:
            self._socket = tls.wrap_socket(outer, server_hostname=name)
        self._socket.setblocking(False)

    def read(self, timeout: float | None) -> bytes:
        """Some bytes, or none at the end of the connection."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                with self._lock:
                    return self._socket.recv(PIECE)
            except (BlockingIOError, ssl.SSLWantReadError):
                event = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                event = selectors.EVENT_WRITE
            self._wait(event, deadline)

    def write(self, data: bytes, timeout: float) -> None:
        """Sends all of the data."""
        deadline = time.monotonic() + timeout
        rest = memoryview(data)
        while rest:
            try:
                with self._lock:
                    rest = rest[self._socket.send(rest[:PIECE]) :]
                continue
            except (BlockingIOError, ssl.SSLWantWriteError):
                event = selectors.EVENT_WRITE
            except ssl.SSLWantReadError:
                event = selectors.EVENT_READ
            self._wait(event, deadline)

    def _wait(self, event: int, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        with _Selector() as selector:
            try:
                selector.register(self._socket, event)
            except ValueError:
                raise ConnectionAbortedError("the connection was closed") from None
            if (left is not None and left <= 0) or not selector.select(left):
                raise TimeoutError("the other side did not answer in time")

    @property
    def open_and_silent(self) -> bool:
        """Whether the other side has neither closed an idle connection nor sent anything."""
        if self.buffer:
            return False
        with _Selector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return not selector.select(0)

    def close(self) -> None:
        """Closes the connection at once, and ends a read of another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self._socket.close()


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


def read_file(file: BinaryIO) -> bytes:
    """The next bytes of a local file or pipe, as soon as there are some."""
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    _held = sys.stdin, sys.__stdin__  # the end of the program would close them, and abort while their lock is held
    return read(PIECE)


class Beside:
    """Work that is done beside a block, and is of no use after it.

    When it fails, `on_failure` ends what the block waits for, and the end of the block raises its error. A thread
    cannot be ended: work that waits for its input then goes on waiting.
    """

    def __init__(self, work: Callable[[], None], on_failure: Callable[[], None]) -> None:
        self._work = work
        self._on_failure = on_failure
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._failed = error
            with suppress(Exception):  # the first error counts
                self._on_failure()

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._failed is not None and error is None:
            raise self._failed
