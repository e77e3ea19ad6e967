"""What is missing of a followed log that has ended. No I/O."""

from __future__ import annotations

KEPT_BYTES = 64 << 10
KEPT_LINES = 1000
"""What the service keeps of an ended sandbox's log: its last lines, with at most so many bytes."""
SETTLED = 10.0
"""For how many seconds a sandbox may seem to go on after its log has ended with it."""


class LogPart:
    """How much was read of a log, and the end of that."""

    def __init__(self) -> None:
        self.size = 0
        self.end = bytearray()
        self._newlines = 0

    def add(self, piece: bytes) -> None:
        """Adds what was read next."""
        self.size += len(piece)
        self._newlines += piece.count(b"\n")
        self.end += piece
        del self.end[:-KEPT_BYTES]

    @property
    def lines(self) -> int:
        """How many lines were read. The last one may have no newline."""
        return self._newlines + (self.size > 0 and not self.end.endswith(b"\n"))


def missing(delivered: LogPart, kept: LogPart, *, whole: bool) -> bytes | None:
    """What was not delivered of an ended sandbox's log; None if that is not known.

    `kept` is what the service keeps of it. `whole` says that delivery began at its beginning.
    """
    complete = kept.size < KEPT_BYTES and kept.lines < KEPT_LINES
    if whole and complete and delivered.size <= kept.size and kept.end.startswith(delivered.end):
        return bytes(kept.end[delivered.size :])
    # Of a whole log it proves nothing that the kept one ends with the little that was delivered.
    if delivered.end.endswith(kept.end) or not whole and kept.end.endswith(delivered.end):
        return b""
    return None
