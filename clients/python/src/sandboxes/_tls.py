"""TLS inside of the TLS of a proxy, which the standard library has for asyncio only."""

from __future__ import annotations

import ssl

PIECE = 64 << 10


class TLSInTLS:
    """What is used of a socket, over one that has TLS already. The errors are those of that socket."""

    def __init__(self, outer: ssl.SSLSocket, tls: ssl.SSLContext, name: str) -> None:
        """Shakes hands; the outer socket blocks meanwhile."""
        self._outer = outer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._inner = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._unsent = b""
        self._accepted = 0  # bytes of the caller that are encrypted, and not sent yet
        while True:
            try:
                self._inner.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
        self._flush()

    def _flush(self) -> None:
        while data := self._unsent or self._outgoing.read(PIECE):
            self._unsent = data
            self._unsent = data[self._outer.send(data) :]

    def _receive(self) -> None:
        data = self._outer.recv(PIECE)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def recv(self, size: int) -> bytes:
        """Some bytes, or none at the end."""
        while True:
            try:
                return self._inner.read(size)
            except ssl.SSLWantReadError:
                self._receive()
            except ssl.SSLZeroReturnError:
                return b""

    def send(self, data: memoryview) -> int:
        """Sends some bytes and returns how many. After an error that says to wait it is to be called with the same."""
        if not self._accepted:
            self._accepted = self._inner.write(data)
        self._flush()
        sent, self._accepted = self._accepted, 0
        return sent

    def setblocking(self, flag: bool) -> None:
        """Whether reads and writes wait."""
        self._outer.setblocking(flag)

    def fileno(self) -> int:
        """The descriptor of the outer socket."""
        return self._outer.fileno()

    def shutdown(self, how: int) -> None:
        """Ends the outer connection."""
        self._outer.shutdown(how)

    def close(self) -> None:
        """Closes the outer socket."""
        self._outer.close()
