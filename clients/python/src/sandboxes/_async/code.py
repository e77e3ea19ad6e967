"""Cells of code in Jupyter kernels in a sandbox."""

from __future__ import annotations

from types import TracebackType
from typing import Callable

from .._errors import ProtocolError
from .._gen import execd
from .._gen.execd import CodeContext, StreamEvent
from .._operations import EventStream
from .._options import new_key
from .._output import Collector, Execution, OnText, Output, Result
from .daemon import AsyncDaemon
from .http import AsyncResponse


class AsyncCell:
    """A cell that was started.

    Iterating gives its output and results as they come, until it ends; `wait` gives all of it. It goes on when
    this client does not.
    """

    def __init__(self, daemon: AsyncDaemon, id: str, response: AsyncResponse | None, on_stdout: OnText | None = None,
                 on_stderr: OnText | None = None, on_result: Callable[[Result], None] | None = None) -> None:
        self.id = id
        self._daemon = daemon
        self._collector = Collector(id, on_stdout, on_stderr, on_result)
        self._events = daemon.output(f"the output of execution {id}", self._resume, response)

    def _resume(self, after: str | None) -> EventStream[StreamEvent]:
        return execd.stream_execution(self.id, last_event_id=after)

    def __aiter__(self) -> AsyncCell:
        return self

    async def __aenter__(self) -> AsyncCell:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection. The cell goes on."""
        await self._events.aclose()

    async def __anext__(self) -> Output | Result:
        async for event in self._events:
            seen = self._collector.add(event, self._events.last_size)
            if seen is not None:
                return seen
        raise StopAsyncIteration

    async def wait(self) -> Execution:
        """Reads to the end of the cell. What an iteration has read before is in the execution, too."""
        async for _ in self:
            pass
        if not self._collector.ended:
            raise RuntimeError("the cell's output was closed")
        return self._collector.execution()

    async def interrupt(self) -> None:
        """Interrupts this cell alone; one that waits for its turn never begins."""
        await self._daemon.call(execd.interrupt_code(self.id))


class AsyncCode:
    """Cells of code: `sandbox.code`. The image must have Jupyter kernels."""

    def __init__(self, daemon: AsyncDaemon) -> None:
        self._daemon = daemon

    async def run(self, code: str, *, language: str | None = None, context: CodeContext | str | None = None,
                  stateless: bool = False, on_stdout: OnText | None = None, on_stderr: OnText | None = None,
                  on_result: Callable[[Result], None] | None = None) -> Execution:
        """Executes a cell to its end.

        The cell sees the variables of the cells before it in its context (or the one with that id); without one, in
        the default context of the language, which is python by default. All clients of the sandbox share that one.
        With `stateless` it gets a fresh kernel. A cell that raises is no exception here: see `error`.
        """
        cell = await self.start(code, language=language, context=context, stateless=stateless, on_stdout=on_stdout, on_stderr=on_stderr,
                                on_result=on_result)
        async with cell:
            return await cell.wait()

    async def start(self, code: str, *, language: str | None = None, context: CodeContext | str | None = None,
                    stateless: bool = False, on_stdout: OnText | None = None, on_stderr: OnText | None = None,
                    on_result: Callable[[Result], None] | None = None) -> AsyncCell:
        """Starts a cell, as `run` does."""
        id = context.id if isinstance(context, CodeContext) else context
        if stateless and id is not None:
            raise ValueError("stateless: must not be given with a context")
        shared = True if id is None and not stateless else None
        choice = execd.ContextChoice(id=id, language=language, default=shared)
        response = await self._daemon.open(execd.run_code(execd.CodeRequest(code=code, context=choice), idempotency_key=new_key()))
        execution = response.head.get("X-Execution-ID")
        if not execution:
            response.close()
            raise ProtocolError("the answer has no X-Execution-ID")
        return AsyncCell(self._daemon, execution, response, on_stdout, on_stderr, on_result)

    async def connect(self, id: str, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None,
                      on_result: Callable[[Result], None] | None = None) -> AsyncCell:
        """A cell that runs or has ended, with its output from the beginning."""
        return AsyncCell(self._daemon, id, None, on_stdout, on_stderr, on_result)

    async def interrupt(self, context: CodeContext | str) -> None:
        """Interrupts the running cell of a context."""
        await self._daemon.call(execd.interrupt_code(context.id if isinstance(context, CodeContext) else context))

    async def create_context(self, language: str = "python") -> CodeContext:
        """Starts a kernel that keeps its variables."""
        return await self._daemon.call(execd.create_context(execd.ContextRequest(language=language), idempotency_key=new_key()))

    async def list_contexts(self, language: str) -> list[CodeContext]:
        """The contexts of a language."""
        return await self._daemon.call(execd.list_contexts(language))

    async def get_context(self, id: str) -> CodeContext:
        """One context."""
        return await self._daemon.call(execd.get_context(id))

    async def delete_context(self, context: CodeContext | str) -> None:
        """Ends a context and its kernel."""
        await self._daemon.call(execd.delete_context(context.id if isinstance(context, CodeContext) else context))

    async def delete_contexts(self, language: str) -> None:
        """Ends all contexts of a language."""
        await self._daemon.call(execd.delete_contexts(language))
