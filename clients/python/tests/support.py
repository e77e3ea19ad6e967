"""What the tests share: sandboxes of a real service, a proxy that cuts, and a scripted service."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Callable, Mapping, cast
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


class Exchange(BaseHTTPRequestHandler):
    """One request to a scripted service."""

    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        cast(ScriptedService, self.server).script(self)

    do_GET = do_POST = do_DELETE = _serve

    def answer(self, status: int, value: object) -> None:
        """Answers with JSON."""
        self.stream(status, "application/json", json.dumps(value).encode())

    def events(self, *events: object) -> None:
        """Answers with a stream of events, which ends after them."""
        pieces = (b"data: %b\n\n" % json.dumps(event).encode() for event in events)
        self.stream(200, "text/event-stream", *pieces)

    def stream(self, status: int, kind: str, *pieces: bytes, headers: Mapping[str, str] = {}) -> None:
        """Answers with pieces."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (*filter(None, pieces), b""):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing."""


class ScriptedService(ThreadingHTTPServer):
    """Stands in for a service, for failures that a real one does not produce on demand."""

    def __init__(self, script: Callable[[Exchange], None]) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.script = script
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of a client that has left."""


def snapshot_of(state: str) -> dict[str, object]:
    """A snapshot of the sandbox `box` as a service describes it."""
    moment = "2026-01-02T15:04:05Z"
    status = {"state": state, "reason": "NO_ROOM", "message": "full", "lastTransitionAt": moment}
    return {"id": "s", "sandboxId": "box", "kind": "filesystem", "status": status, "image": {"uri": "x"}, "size": 1,
            "exclusiveSize": 1, "freezeMs": 1.5, "createdAt": moment}


def described(state: str) -> dict[str, object]:
    """The sandbox `box` as a service describes it."""
    moment = "2026-01-02T15:04:05Z"
    status = {"state": state, "reason": "", "message": "", "lastTransitionAt": moment}
    return {"id": "box", "image": {"uri": "x"}, "entrypoint": ["x"], "metadata": {},
            "status": status, "expiresAt": moment, "createdAt": moment}
