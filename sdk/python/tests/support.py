"""What the tests share: sandboxes of a real service, and a TCP proxy that cuts connections."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Callable
from urllib.parse import urlsplit

from sandboxes import Client

PATIENCE = 120.0
"""Bounds every wait, on a machine that is slow and busy, too."""


def image() -> str:
    """The image of the sandboxes; the service is that of $SANDBOX_URL."""
    return os.environ["SANDBOX_IMAGE"]


def create_sandbox() -> str:
    """Makes a sandbox that the tests of a module share."""
    with Client() as client:
        return client.create(image()).id


def delete_sandbox(id: str) -> None:
    """Ends it."""
    with Client() as client:
        client.get(id).delete()


class CuttingProxy:
    """Forwards connections to the service, and resets them after a random number of bytes of the answer.

    Of a request that may not be repeated the head of the answer, with the id to resume with, is let through.
    """

    def __init__(self, seed: int, least: int, most: int) -> None:
        upstream = urlsplit(os.environ["SANDBOX_URL"])
        self._upstream = (upstream.hostname or "", upstream.port or 80)
        self._random = random.Random(seed)
        self._least, self._most = least, most
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lock = threading.Lock()
        self.cuts = 0
        self.cutting = False
        self.lost = 0
        """How many of the next answers are lost altogether."""
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._upstream) as server:
            first = client.recv(1 << 16)
            server.sendall(first)
            self._start(self._requests, client, server)
            self._answers(client, server, first.startswith(b"GET "))

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket, repeatable: bool) -> None:
        left: int | None = None
        buffered, whole_head = b"", repeatable
        while data := server.recv(1 << 16):
            with self._lock:
                if self.lost > 0:
                    self.lost -= 1
                    left, whole_head = 0, True
                elif self.cutting and left is None:
                    left = self._random.randint(self._least, self._most)
            if not whole_head:
                buffered += data
                end = buffered.find(b"\r\n\r\n")
                if end < 0:
                    continue
                client.sendall(buffered[: end + 4])
                data, whole_head = buffered[end + 4 :], True
            if left is not None and len(data) >= left:
                client.sendall(data[:left])
                self._reset(client)
                return
            client.sendall(data)
            if left is not None:
                left -= len(data)

    def _reset(self, client: socket.socket) -> None:
        with self._lock:
            self.cuts += 1
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RD)  # the other thread's read would keep the socket open
        client.close()


def deadline() -> float:
    """When a wait that begins now is over."""
    return time.monotonic() + PATIENCE
