"""HTTP/1.1, as this client needs it: heads of requests and answers, and the framing of bodies. No I/O.

The standard library has no asynchronous HTTP, and with one implementation for both faces they behave alike.
"""

from __future__ import annotations

from typing import Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from ._errors import ProtocolError

MAX_HEAD = 64 << 10
CRLF = b"\r\n"


class Head:
    """The status and the headers of an answer."""

    def __init__(self, block: bytes) -> None:
        status, *lines = block.decode("latin-1").split("\r\n")
        parts = status.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not (len(parts[1]) == 3 and parts[1].isdecimal()):
            raise ProtocolError("the answer is not HTTP/1.1")
        self.minor = parts[0].removeprefix("HTTP/1.")
        self.status = int(parts[1])
        self.headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise ProtocolError("the answer has a malformed header")
            name, value = name.lower(), value.strip(" \t")
            self.headers[name] = self.headers[name] + ", " + value if name in self.headers else value

    def get(self, name: str) -> str:
        """A header, or nothing."""
        return self.headers.get(name.lower(), "")

    @property
    def media_type(self) -> str:
        """The media type without its parameters."""
        return self.get("Content-Type").partition(";")[0].strip().lower()

    @property
    def keeps(self) -> bool:
        """Whether the connection may be used again after the body."""
        return self.minor != "0" and "close" not in self.get("Connection").lower()


def split_head(buffer: bytearray) -> Head | None:
    """Takes a complete head from the buffer."""
    end = buffer.find(b"\r\n\r\n")
    if end > MAX_HEAD or (end < 0 and len(buffer) > MAX_HEAD):
        raise ProtocolError(f"the head of the answer is larger than {MAX_HEAD} bytes")
    if end < 0:
        return None
    block = bytes(buffer[:end])
    del buffer[: end + 4]
    return Head(block)


class Body:
    """The framing of one body. What is fed comes out without it."""

    def __init__(self, method: str, head: Head) -> None:
        self._chunked = "transfer-encoding" in head.headers
        self._in_trailer = False
        self._left: int | None = None  # of the body, or of a chunk
        if self._chunked:
            if head.get("Transfer-Encoding").lower() != "chunked":
                raise ProtocolError("the answer has a transfer encoding that is not chunked")
        elif method == "HEAD" or head.status in (204, 304) or head.status < 200:
            self._left = 0
        elif "content-length" in head.headers:
            length = head.get("Content-Length")
            if not length.isdecimal() or len(length) > 18:
                raise ProtocolError("the answer has a malformed Content-Length")
            self._left = int(length)
        self.done = self._left == 0

    @property
    def until_close(self) -> bool:
        """Whether the end of the connection is the end of the body."""
        return not self._chunked and self._left is None

    def take(self, buffer: bytearray) -> bytes:
        """Takes from the buffer what belongs to the body."""
        if not self._chunked:
            data = self._piece(buffer)
            self.done = self._left == 0
            return data
        pieces: list[bytes] = []
        while not self.done:
            if self._left:
                if not buffer:
                    break
                pieces.append(self._piece(buffer))
                continue
            line = self._line(buffer)
            if line is None:
                break
            self._on_line(line)
        return b"".join(pieces)

    def _piece(self, buffer: bytearray) -> bytes:
        size = len(buffer) if self._left is None else min(self._left, len(buffer))
        data = bytes(buffer[:size])
        del buffer[:size]
        if self._left is not None:
            self._left -= size
        return data

    def _on_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.done = not line
        elif self._left == 0:  # the line after a chunk
            if line:
                raise ProtocolError("the answer has a malformed chunk")
            self._left = None
        else:
            size = line.partition(b";")[0].strip()
            if not size or len(size) > 15 or size.strip(b"0123456789abcdefABCDEF"):
                raise ProtocolError("the answer has a malformed chunk")
            self._left = int(size, 16) or None
            self._in_trailer = self._left is None

    def _line(self, buffer: bytearray) -> bytes | None:
        end = buffer.find(CRLF)
        if end < 0:
            if len(buffer) > MAX_HEAD:
                raise ProtocolError("the answer has a malformed chunk")
            return None
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        return line


def chunk(data: bytes) -> bytes:
    """One chunk of a body whose length is not known; the empty one is the last."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def request_head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The head of a request."""
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers:
        if any(ord(character) < 32 and character != "\t" or ord(character) == 127 for character in value):
            raise ValueError(f"header {name}: must not have control characters")
        lines.append(f"{name}: {value}")
    try:
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("a header has characters that HTTP does not allow") from None


class Origin:
    """Where a service is: from its URL."""

    def __init__(self, url: str) -> None:
        parts: SplitResult = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL of the service must begin with http:// or https:// and name a host, not {url!r}")
        if parts.query or parts.fragment or parts.username:
            raise ValueError("the URL of the service must have no query, no fragment and no user")
        self.tls = parts.scheme == "https"
        self.name = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.host = parts.netloc
        self.authority = f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"
        """Where a proxy is to connect to."""
        self.url = f"{parts.scheme}://{parts.netloc}{self.prefix}"


def common_headers(origin: Origin, key: str | None) -> Mapping[str, str]:
    """The headers of every request."""
    headers = {"Host": origin.host, "User-Agent": "sandboxes-python"}
    if key:
        headers["SERVICE-API-KEY"] = key
    return headers
