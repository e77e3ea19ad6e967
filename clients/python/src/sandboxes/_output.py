"""Makes exact bytes and results of the events of commands and cells. No I/O."""

from __future__ import annotations

import base64
import binascii
import codecs
from dataclasses import dataclass, field
from typing import Any, Callable, Literal, Mapping, cast

from ._errors import CommandFailed, ProtocolError
from ._gen.execd import StreamError as ErrorDetails
from ._gen.execd import StreamEvent

KEPT_OUTPUT = 64 << 20
"""The most bytes of standard output, of standard error, and of all results' JSON that are kept."""

OOM_KILLED = "OOM_KILLED"

OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output, exactly as it was written."""

    stream: Literal["stdout", "stderr"]
    data: bytes

    @property
    def text(self) -> str:
        """The piece as text. Bytes that are not UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Result:
    """A value or something to show, in one or several formats."""

    data: Mapping[str, Any]
    """MIME types and their content: text as it is, images in base64, JSON types as JSON."""

    def _text(self, kind: str) -> str | None:
        value = self.data.get(kind)
        return value if isinstance(value, str) else None

    def _image(self, kind: str) -> bytes | None:
        value = self._text(kind)
        try:
            return None if value is None else base64.b64decode(value)
        except binascii.Error:
            raise ProtocolError(f"the {kind} of a result is not base64") from None

    @property
    def text(self) -> str | None:
        """The value as plain text."""
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        """The value as HTML, as tables of pandas have it."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """The value as Markdown."""
        return self._text("text/markdown")

    @property
    def latex(self) -> str | None:
        """The value as LaTeX."""
        return self._text("text/latex")

    @property
    def svg(self) -> str | None:
        """The picture as SVG."""
        return self._text("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """The picture as PNG."""
        return self._image("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """The picture as JPEG."""
        return self._image("image/jpeg")

    @property
    def json(self) -> Any:
        """The value as JSON."""
        return self.data.get("application/json")

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, Any]:
        return self.data  # a notebook shows it as the sandbox did


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, and what it printed."""

    id: str
    exit_code: int | None
    """None when its timeout ended the command."""
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    error: str | None
    """The kind of error, `CommandExecError` or `CommandTimeoutError`; None with exit code 0."""
    duration: float
    """How many seconds the command ran."""
    truncated: bool
    """Whether there was more output than a result, or the daemon before it, keeps."""
    reason: str | None = None
    """Why it failed, where that is known: `OOM_KILLED`, the kernel ended it because memory ran out."""

    @property
    def stdout(self) -> str:
        """Standard output as text. Bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text. Bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    def check(self) -> CommandResult:
        """Raises CommandFailed unless the exit code is 0."""
        if self.exit_code != 0:
            how = "its timeout ended it" if self.exit_code is None else f"exit code {self.exit_code}"
            if self.reason == OOM_KILLED:
                how += ", memory ran out (OOM_KILLED)"
            said = self.stderr.strip()[-2000:]
            raise CommandFailed(f"the command failed: {how}" + (f": {said}" if said else ""), self.exit_code,
                                self.reason)
        return self


@dataclass(frozen=True, slots=True)
class CodeError:
    """What a cell raised, or why it has no kernel any more."""

    name: str
    value: str
    traceback: list[str]

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name


@dataclass(frozen=True, slots=True)
class Execution:
    """How a cell ended, and what it printed and showed."""

    id: str
    results: list[Result]
    stdout: str
    stderr: str
    error: CodeError | None
    count: int | None
    """The number of the cell in its kernel."""
    duration: float
    """How many seconds the cell ran."""
    truncated: bool
    """Whether there was more output, or there were more results, than an execution, or the daemon
    before it, keeps."""
    reason: str | None = None
    """Why it failed, where that is known: `OOM_KILLED`, its interpreter was ended because memory ran out."""

    @property
    def text(self) -> str | None:
        """The last value as plain text."""
        return next((result.text for result in reversed(self.results) if result.text is not None), None)


class _Kept:
    """One stream of output: its first bytes, and a callback that gets all of it as text."""

    def __init__(self, callback: OnText | None) -> None:
        self.data = bytearray()
        self.truncated = False
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes, final: bool = False) -> None:
        room = KEPT_OUTPUT - len(self.data)
        self.data += data[:room]
        self.truncated = self.truncated or len(data) > room
        if self._callback is not None and (text := self._decoder.decode(data, final)):
            self._callback(text)


class Collector:
    """Collects the events of one command or cell."""

    def __init__(self, id: str, on_stdout: OnText | None = None, on_stderr: OnText | None = None,
                 on_result: Callable[[Result], None] | None = None) -> None:
        self._id = id
        self._streams = {"stdout": _Kept(on_stdout), "stderr": _Kept(on_stderr)}
        self._on_result = on_result
        self._results: list[Result] = []
        self._size = 0
        self._count: int | None = None
        self._last: StreamEvent | None = None
        self._truncated = False

    @property
    def ended(self) -> bool:
        """Whether the last event is here."""
        return self._last is not None

    def add(self, event: StreamEvent, size: int = 0) -> Output | Result | None:
        """The output or the result in the event, if any. Its JSON has `size` bytes."""
        if event.execution_count is not None:
            self._count = event.execution_count
        match event.type:
            case "stdout" | "stderr":
                output = Output(event.type, output_of(event))
                self._streams[event.type].add(output.data)
                return output
            case "result":
                return self._on_event_result(event, size)
            case "status":
                self._truncated = True  # it says that the daemon has cut output
            case "execution_complete" | "error":
                self._last = event
                for stream in self._streams.values():
                    stream.add(b"", final=True)
            case _:
                pass
        return None

    def _on_event_result(self, event: StreamEvent, size: int) -> Result:
        result = Result(event.results or {})
        self._size += size
        if self._size <= KEPT_OUTPUT:
            self._results.append(result)
        else:
            self._truncated = True
        if self._on_result is not None:
            self._on_result(result)
        return result

    @property
    def _truncation(self) -> bool:
        return self._truncated or any(stream.truncated for stream in self._streams.values())

    def command_result(self) -> CommandResult:
        """The result of a command that has ended."""
        last = cast(StreamEvent, self._last)
        return CommandResult(
            id=self._id, exit_code=last.exit_code, error=last.error.ename if last.error else None,
            stdout_bytes=bytes(self._streams["stdout"].data), stderr_bytes=bytes(self._streams["stderr"].data),
            duration=(last.execution_time or 0) / 1000, truncated=self._truncation, reason=last.reason,
        )

    def execution(self) -> Execution:
        """The result of a cell that has ended."""
        last = cast(StreamEvent, self._last)
        return Execution(
            id=self._id, results=self._results, count=self._count, error=_code_error(last.error),
            stdout=self._streams["stdout"].data.decode("utf-8", "replace"),
            stderr=self._streams["stderr"].data.decode("utf-8", "replace"),
            duration=(last.execution_time or 0) / 1000, truncated=self._truncation, reason=last.reason,
        )


def _code_error(error: ErrorDetails | None) -> CodeError | None:
    return None if error is None else CodeError(error.ename, error.evalue, list(error.traceback))


def output_of(event: StreamEvent) -> bytes:
    """The exact bytes of an output event.

    An event is a line without its newline, except that an empty line is the newline itself and that a partial
    line has none. Bytes that are not UTF-8 come in `raw`.
    """
    data = event.raw or (event.text or "").encode()
    return data if event.partial or data == b"\n" else data + b"\n"
