"""When a request is repeated, and when a stream is opened again. No I/O."""

from __future__ import annotations

import math
import random
import time
from typing import TypeVar

from ._errors import APIError, ConflictError, RateLimitedError, SandboxesError, TransportError, UnavailableError
from ._operations import Operation

R = TypeVar("R", bound=Operation)

LONGEST_PAUSE = 2.0
LONGEST_RETRY_AFTER = 30.0
REPETITIONS = 4
TAKE_BACK = 5.0
"""For how many seconds at most a create that was interrupted goes on, to delete what it made."""


def _pause(seconds: float, error: SandboxesError) -> float:
    after = error.retry_after if isinstance(error, APIError) else None
    return max(seconds * random.uniform(0.5, 1), min(after or 0, LONGEST_RETRY_AFTER))


class Repetitions:
    """The repetitions of one request: a few, and only of one that has had no effect or may have it twice."""

    def __init__(self, operation: Operation, deadline: float = math.inf) -> None:
        self._repeatable = operation.repeatable
        self._deadline = deadline
        self._count = 0
        self._begun = 0.0
        self._since: float | None = None  # when it was first sent, of the times that it may have arrived
        self.cut = False
        """Whether an earlier attempt may have had its effect."""

    def next(self, operation: R) -> R:
        """The request as it is to be sent now."""
        self._begun = time.monotonic()
        return operation if self._since is None else operation.aged(math.ceil(1000 * (self._begun - self._since)))

    def pause(self, error: SandboxesError) -> float:
        """How many seconds to wait after an error. Raises the error when the request is not to be repeated."""
        pause = _pause(0.1 * 2**self._count, error)
        if self._count >= REPETITIONS or not self._may(error) or time.monotonic() + pause > self._deadline:
            raise error
        self._count += 1
        self.cut = self.cut or isinstance(error, TransportError) and error.sent
        if self._since is None and (self.cut or isinstance(error, UnavailableError)):
            self._since = self._begun
        return pause

    def _may(self, error: SandboxesError) -> bool:
        match error:
            case RateLimitedError():
                return True
            case ConflictError():
                return error.retry_after is not None  # soon the state will allow it
            case TransportError(permanent=True):
                return False
            case TransportError(sent=False):
                return True
            case TransportError() | UnavailableError():
                return self._repeatable
            case _:
                return False


class Resumption:
    """The attempts to resume one stream: at once, then with growing pauses, for a limited time without an event."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._pause = 0.0
        self._deadline: float | None = None

    def progress(self) -> None:
        """An event has arrived."""
        self._pause, self._deadline = 0.0, None

    def pause(self, error: SandboxesError) -> float | None:
        """How many seconds to wait after an error, or None to give up."""
        temporary = isinstance(error, (TransportError, UnavailableError, RateLimitedError, ConflictError))
        if self._deadline is None:
            self._deadline = time.monotonic() + self._limit
        if not temporary or isinstance(error, TransportError) and error.permanent or time.monotonic() >= self._deadline:
            return None
        seconds = _pause(self._pause, error)
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or 0.05)
        return seconds
