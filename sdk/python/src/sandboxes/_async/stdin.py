"""The standard input of a command."""

from __future__ import annotations

from dataclasses import replace

from .._errors import ConflictError, NotFoundError, ProtocolError, SandboxesError
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
    slows its writer down. A request whose connection was cut is sent again, and its bytes arrive once.
    """

    def __init__(self, daemon: AsyncDaemon, id: str, offset: int) -> None:
        self._daemon = daemon
        self._id = id
        self._offset = offset
        self._closed = False

    async def write(self, data: bytes | str) -> None:
        """Writes bytes, or text as UTF-8. BrokenPipeError: the command has closed its standard input or has ended."""
        if isinstance(data, str):
            data = data.encode()
        for start in range(0, len(data), PIECE):
            await self._send(data[start : start + PIECE], end=False)

    async def aclose(self) -> None:
        """Closes it: the command reads an end of file."""
        if not self._closed:
            await self._send(b"", end=True)

    async def feed(self, data: Data) -> None:
        """Writes all of the data, and closes. A command that reads no further is no error."""
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
        while True:
            if self._closed:
                raise BrokenPipeError(f"the standard input of command {self._id} is closed")
            state = await self._request(data, end=end)
            taken = state.offset - self._offset
            if not 0 <= taken <= len(data):
                raise ProtocolError(f"the standard input of command {self._id} is at {state.offset} bytes: another client writes, too")
            self._offset, self._closed, data = state.offset, state.closed, data[taken:]
            if not data and (self._closed or not end):
                return

    async def _request(self, data: bytes, *, end: bool) -> CommandStdin:
        """Sends one request, and again while the connection is cut."""
        operation = execd.write_command_stdin(self._id, self._offset, "application/octet-stream", end=end or None)
        resumption = Resumption(GIVE_UP)
        while True:
            try:
                return await self._daemon.call(replace(operation, idempotent=True), content=[data])
            except SandboxesError as error:
                conflict = isinstance(error, ConflictError) and error.code == "CONFLICT"
                pause = None if conflict else resumption.pause(error)
                if pause is None:
                    raise
            await sleep(pause)
