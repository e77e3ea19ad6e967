"""Interactive programs in a sandbox."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Mapping, Sequence, TypeAlias

from .._errors import SandboxesError, StreamError, TransportError
from .._gen import execd
from .._gen.execd import Terminal as TerminalInfo
from .._operations import encode
from .._options import Duration, milliseconds, new_key
from .._retry import Resumption
from .._terminal import TerminalEvent, TerminalExit, read_message
from .._websocket import BINARY, CLOSE, PING, PONG, TEXT, MessageParser, frame
from .connection import AsyncConnection, sleep
from .daemon import AsyncDaemon
from .streams import GIVE_UP

TerminalInfos: TypeAlias = list[TerminalInfo]

PING_AFTER = 20.0
"""After how many seconds of silence the daemon gets a ping; after twice as many the connection is taken as cut."""


class AsyncAttachment:
    """A viewer of a terminal: an iterator over what it shows, to its end.

    The first event is a TerminalReplay, followed by the past. A cut connection is replaced, and another
    TerminalReplay comes. One task or thread may iterate while another sends.
    """

    def __init__(self, daemon: AsyncDaemon, id: str) -> None:
        self._daemon = daemon
        self._id = id
        self._connection: AsyncConnection | None = None
        self._parser = MessageParser()
        self._pending: deque[TerminalEvent] = deque()
        self._resumption = Resumption(GIVE_UP)
        self._pinged = False
        self._ended = False

    def __aiter__(self) -> AsyncAttachment:
        return self

    async def __aenter__(self) -> AsyncAttachment:
        if self._connection is None:
            await self.attach()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    async def attach(self) -> None:
        """Opens the connection."""
        self._parser = MessageParser()
        self._pinged = False
        self._connection = await self._daemon.upgrade(execd.attach_terminal(self._id))

    async def aclose(self) -> None:
        """Detaches. The program goes on."""
        self._ended = True
        self._cut()

    def _cut(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def send(self, data: bytes | str) -> None:
        """Types. A TransportError says that the connection broke, and the input may not have arrived."""
        await self._send(BINARY, data.encode() if isinstance(data, str) else data)

    async def resize(self, rows: int, cols: int) -> None:
        """Gives the terminal another size, for all viewers."""
        await self._send(TEXT, encode(execd.TerminalControl(type="resize", rows=rows, cols=cols)))

    async def _send(self, opcode: int, data: bytes) -> None:
        connection = self._connection
        if connection is None:
            raise TransportError("the terminal is not attached", sent=False)
        try:
            await connection.write(frame(opcode, data), self._daemon.http.timeout)
        except OSError as error:
            connection.close()
            raise TransportError(f"the connection to the terminal broke: {error}", sent=True) from error

    async def __anext__(self) -> TerminalEvent:
        while not self._pending:
            if self._ended:
                raise StopAsyncIteration
            await self._more()
        event = self._pending.popleft()
        self._resumption.progress()
        if isinstance(event, TerminalExit):
            await self.aclose()
        return event

    async def _more(self) -> None:
        try:
            if self._connection is None:
                await self.attach()
            await self._read()
            return
        except SandboxesError as error:
            self._cut()
            if self._ended:
                return
            pause = self._resumption.pause(error)
            if pause is None:
                self._ended = True
                raise StreamError(f"the terminal {self._id} was cut off and cannot be attached again: {error}") from error
        await sleep(pause)

    async def _read(self) -> None:
        connection = self._connection
        if connection is None:
            return  # detached meanwhile
        # What came with the answer to the handshake is there already.
        data = bytes(connection.buffer)
        connection.buffer.clear()
        try:
            data = data or await connection.read(PING_AFTER)
        except TimeoutError:
            if self._pinged:
                raise TransportError("the sandbox did not answer a ping", sent=True) from None
            self._pinged = True
            await self._send(PING, b"")
            return
        except OSError as error:
            raise TransportError(f"the connection to the terminal broke: {error}", sent=True) from error
        if not data:
            raise TransportError("the connection to the terminal was closed", sent=True)
        self._pinged = False
        for message in self._parser.feed(data):
            if message.opcode == CLOSE:
                raise TransportError("the daemon closed the connection", sent=True)
            if message.opcode == PING:
                await self._send(PONG, message.data)
            elif message.opcode != PONG and (event := read_message(message)) is not None:
                self._pending.append(event)


class AsyncTerminal:
    """A terminal of a sandbox."""

    def __init__(self, daemon: AsyncDaemon, id: str) -> None:
        self.id = id
        self._daemon = daemon

    def attach(self) -> AsyncAttachment:
        """A viewer. It attaches when it is entered, or the first event is asked for."""
        return AsyncAttachment(self._daemon, self.id)

    async def info(self) -> TerminalInfo:
        """How the terminal is doing."""
        return await self._daemon.call(execd.get_terminal(self.id))

    async def delete(self) -> None:
        """Hangs up: SIGHUP and, two seconds later, a kill."""
        await self._daemon.call(execd.kill_terminal(self.id))


class AsyncTerminals:
    """Interactive programs on pseudo-terminals: `sandbox.terminals`."""

    def __init__(self, daemon: AsyncDaemon) -> None:
        self._daemon = daemon

    async def create(self, command: str | None = None, args: Sequence[str] | None = None, *, cwd: str | None = None,
                     envs: Mapping[str, str] | None = None, uid: int | None = None, gid: int | None = None,
                     timeout: Duration | None = None, rows: int | None = None, cols: int | None = None) -> AsyncTerminal:
        """Starts a program on a terminal; without a command, the image's shell.

        `timeout` is after how many seconds it is hung up.
        """
        request = execd.TerminalRequest(command=command, args=args, cwd=cwd, envs=envs, uid=uid, gid=gid,
                                        timeout=milliseconds(timeout), rows=rows, cols=cols)
        return AsyncTerminal(self._daemon, (await self._daemon.call(execd.start_terminal(request, idempotency_key=new_key()))).id)

    async def connect(self, id: str) -> AsyncTerminal:
        """A terminal that exists."""
        terminal = AsyncTerminal(self._daemon, id)
        await terminal.info()
        return terminal

    async def list(self) -> TerminalInfos:
        """The terminals that run and the last that have ended, oldest first."""
        return await self._daemon.call(execd.list_terminals())
