"""The standard input of a command."""

from __future__ import annotations

from contextlib import suppress

from .._errors import APIError, ConflictError, NotFoundError, ProtocolError, SandboxesError, TransportError
from .._gen import execd
from .._gen.execd import CommandStdin
from .._retry import Resumption
from .connection import sleep
from .daemon import AsyncDaemon
from .files import Data, pieces
from .streams import GIVE_UP

PIECE = 256 << 10
"""How many bytes one request has at most."""


class AsyncStdin:
    """What a command reads: `command.stdin`, for one that was started with `stdin=True`.

    One task or thread may write. `write` returns when the command's pipe has taken the bytes, so a slow command
    slows its writer down. A request whose connection was cut is sent again, and its bytes arrive once. After one that
    was given up, such as by a cancellation, it is not known which of its at most 256 KiB the command has: the next
    call sends it to its end first. So do not write them again.
    """

    def __init__(self, daemon: AsyncDaemon, id: str, offset: int) -> None:
        self._daemon = daemon
        self._id = id
        self._offset = offset
        self._closed = False
        self._pending = b""
        """What was sent last, from the offset on, when there was no answer that says how much of it was taken."""

    async def write(self, data: bytes | str) -> None:
        """Writes bytes, or text as UTF-8. BrokenPipeError: the command has closed its standard input or has ended."""
        if isinstance(data, str):
            data = data.encode()
        for start in range(0, len(data), PIECE):
            await self._send(data[start : start + PIECE], end=False)

    async def aclose(self) -> None:
        """Closes it: the command reads an end of file."""
        if not self._closed:
            with suppress(BrokenPipeError):
                await self._send(b"", end=True)

    async def feed(self, data: Data) -> None:
        """Writes all of the data, and closes. Succeeds when the command reads no further."""
        try:
            if isinstance(data, (bytes, str)):
                await self.write(data)
            else:
                async for piece in pieces(data):
                    await self.write(piece)
            await self.aclose()
        except (BrokenPipeError, NotFoundError):
            pass

    async def _send(self, data: bytes, *, end: bool) -> None:
        if self._pending:  # other bytes at the same offset would be taken for these
            await self._complete(self._pending, end=False)
        await self._complete(data, end=end)

    async def _complete(self, data: bytes, *, end: bool) -> None:
        while True:
            if self._closed:
                raise BrokenPipeError(f"the standard input of command {self._id} is closed")
            state = await self._request(data, end=end)
            taken = state.offset - self._offset
            if not 0 <= taken <= len(data):
                raise ProtocolError(f"the standard input of command {self._id} is at {state.offset} bytes: another client writes, too")
            self._offset, self._closed = state.offset, state.closed
            self._pending, data = self._pending[taken:], data[taken:]
            if not data and (self._closed or not end):
                return

    async def _request(self, data: bytes, *, end: bool) -> CommandStdin:
        """Sends one request, and again while the connection is cut."""
        operation = execd.write_command_stdin(self._id, self._offset, "application/octet-stream", end=end or None)
        resumption = Resumption(GIVE_UP)
        while True:
            try:
                return await self._daemon.call(operation, content=[data])
            except BaseException as error:
                refused = isinstance(error, APIError) and error.status < 500
                if not refused and not (isinstance(error, TransportError) and not error.sent):
                    self._pending = data
                if not isinstance(error, SandboxesError):
                    raise
                conflict = isinstance(error, ConflictError) and error.code == "CONFLICT"
                pause = None if conflict else resumption.pause(error)
                if pause is None:
                    raise
            await sleep(pause)
