"""Shell commands in a sandbox."""

from __future__ import annotations

from types import TracebackType
from typing import Mapping, NamedTuple, TypeAlias

from .._errors import ProtocolError
from .._gen import execd
from .._gen.execd import CommandStatus, StreamEvent
from .._operations import EventStream
from .._options import Duration, milliseconds, new_key
from .._output import Collector, CommandResult, OnText, Output
from .connection import AsyncBeside
from .daemon import AsyncDaemon
from .files import Data
from .http import MAX_ANSWER, AsyncResponse
from .stdin import AsyncStdin

# A class with a method list has no other name for the type.
CommandList: TypeAlias = list[CommandStatus]


class CommandLogs(NamedTuple):
    """What a command printed after a cursor, standard output and standard error as they came."""

    text: str
    cursor: int
    """For the next request. A last line without a newline is not counted, and comes again."""
    dropped: int
    """How many bytes of output are missing after it: those beyond the limit of the output, or that could not be stored."""


class AsyncCommand:
    """A command that was started.

    Iterating gives its output, piece by piece and exactly as it was written, until it ends; `wait` gives the
    result. It goes on when this client does not.
    """

    def __init__(self, daemon: AsyncDaemon, id: str, response: AsyncResponse | None,
                 on_stdout: OnText | None = None, on_stderr: OnText | None = None, written: int = 0) -> None:
        self.id = id
        self._stdin = AsyncStdin(daemon, id, written)
        self._daemon = daemon
        self._collector = Collector(id, on_stdout, on_stderr)
        self._events = daemon.output(f"the output of command {id}", self._resume, response)

    def _resume(self, after: str | None) -> EventStream[StreamEvent]:
        return execd.stream_command(self.id, last_event_id=after)

    def __aiter__(self) -> AsyncCommand:
        return self

    async def __aenter__(self) -> AsyncCommand:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection. The command goes on."""
        await self._events.aclose()

    async def __anext__(self) -> Output:
        async for event in self._events:
            output = self._collector.add(event)
            if isinstance(output, Output):
                return output
        raise StopAsyncIteration

    async def wait(self) -> CommandResult:
        """Reads the output to its end. What an iteration has read before is in the result, too."""
        async for _ in self:
            pass
        if not self._collector.ended:
            raise RuntimeError("the command's output was closed")
        return self._collector.command_result()

    @property
    def stdin(self) -> AsyncStdin:
        """Its standard input, for a command that was started with `stdin=True`."""
        return self._stdin

    async def interrupt(self) -> None:
        """Ends the command: a termination signal to its processes and, two seconds later, a kill."""
        await self._daemon.call(execd.interrupt_command(self.id))

    async def status(self) -> CommandStatus:
        """How the command is doing."""
        return await self._daemon.call(execd.get_command_status(self.id))

    async def logs(self, cursor: int | None = None) -> CommandLogs:
        """The output so far, after a cursor."""
        response = await self._daemon.open(execd.get_command_logs(self.id, cursor=cursor))
        try:
            text = await response.read(MAX_ANSWER, self._daemon.http.timeout)
        finally:
            response.close()
        tail = response.head.get("EXECD-COMMANDS-TAIL-CURSOR")
        dropped = response.head.get("EXECD-COMMANDS-DROPPED-BYTES") or "0"
        for number in tail.removeprefix("-"), dropped:
            if not number.isdecimal() or len(number) > 18:
                raise ProtocolError("the headers of the answer have no cursor, or no number of missing bytes")
        return CommandLogs(text.decode("utf-8", "replace"), int(tail), int(dropped))


class AsyncCommands:
    """Shell commands: `sandbox.commands`."""

    def __init__(self, daemon: AsyncDaemon) -> None:
        self._daemon = daemon

    async def run(self, command: str, *, cwd: str | None = None, envs: Mapping[str, str] | None = None,
                  uid: int | None = None, gid: int | None = None, timeout: Duration | None = None,
                  stdin: Data | None = None,
                  on_stdout: OnText | None = None, on_stderr: OnText | None = None) -> CommandResult:
        """Runs a command to its end.

        A command that fails is no exception: see `exit_code`, or call `check()` on the result. `timeout` is how
        many seconds the command may run. `stdin` is what it reads, like the content of a file; when it cannot be
        read, the command is interrupted. `on_stdout` and `on_stderr` get text as it comes.
        """
        started = await self.start(command, cwd=cwd, envs=envs, uid=uid, gid=gid, timeout=timeout,
                                   stdin=stdin is not None, on_stdout=on_stdout, on_stderr=on_stderr)
        async with started:
            if stdin is None:
                return await started.wait()
            data = stdin
            async with AsyncBeside(lambda: started.stdin.feed(data), started.interrupt):
                return await started.wait()

    async def start(self, command: str, *, background: bool = False, cwd: str | None = None,
                    envs: Mapping[str, str] | None = None, uid: int | None = None, gid: int | None = None,
                    timeout: Duration | None = None, stdin: bool = False, on_stdout: OnText | None = None,
                    on_stderr: OnText | None = None) -> AsyncCommand:
        """Starts a command. In the background no connection is kept until its output is asked for.

        With `stdin` the command reads what `command.stdin` writes, until that is closed.
        """
        request = execd.CommandRequest(command=command, background=background or None, cwd=cwd, envs=envs,
                                       uid=uid, gid=gid, timeout=milliseconds(timeout), stdin=stdin or None)
        if background:
            accepted = await self._daemon.call(execd.run_command(request, idempotency_key=new_key()))
            return AsyncCommand(self._daemon, accepted.id, None, on_stdout, on_stderr)
        response = await self._daemon.open(execd.run_command_stream(request, idempotency_key=new_key()))
        id = response.head.get("X-Command-ID")
        if not id:
            response.close()
            raise ProtocolError("the answer has no X-Command-ID")
        return AsyncCommand(self._daemon, id, response, on_stdout, on_stderr)

    async def list(self, *, running: bool | None = None) -> CommandList:
        """The commands that run and the last that have ended, whoever started them, in the order of their starts.

        `running` chooses one of the two. The daemon bounds the list and shortens long command lines.
        """
        return await self._daemon.call(execd.list_commands(running=running))

    async def connect(self, id: str, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None) -> AsyncCommand:
        """A command that runs or has ended, with its output from the beginning."""
        status = await self._daemon.call(execd.get_command_status(id))
        written = status.stdin.offset if status.stdin is not None else 0
        return AsyncCommand(self._daemon, id, None, on_stdout, on_stderr, written)
