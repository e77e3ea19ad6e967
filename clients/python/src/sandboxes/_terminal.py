"""The messages of terminals. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from ._decode import decode
from ._errors import ProtocolError
from ._gen.execd import TerminalNews
from ._websocket import BINARY, TEXT, Message


@dataclass(frozen=True, slots=True)
class TerminalOutput:
    """Output of the program."""

    data: bytes


@dataclass(frozen=True, slots=True)
class TerminalReplay:
    """What was seen before is void: clear the screen. The next `size` bytes of output are the past."""

    size: int


@dataclass(frozen=True, slots=True)
class TerminalExit:
    """The program has ended. The last event."""

    exit_code: int | None
    """128 and the number of the signal when one ended it."""


TerminalEvent = TerminalOutput | TerminalReplay | TerminalExit


def read_message(message: Message) -> TerminalEvent | None:
    """The event that a message is; None for one of an unknown type."""
    if message.opcode == BINARY:
        return TerminalOutput(message.data)
    if message.opcode != TEXT:
        raise ProtocolError("a message of the terminal is malformed")
    news = decode(TerminalNews, message.data)
    match news.type:
        case "replay":
            return TerminalReplay(news.bytes or 0)
        case "exit":
            return TerminalExit(news.exit_code)
        case _:
            return None
