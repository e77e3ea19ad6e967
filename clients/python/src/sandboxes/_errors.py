"""The errors of this package. All are a SandboxesError."""

from __future__ import annotations

import json
import ssl
from typing import Any, cast

from ._gen import lifecycle


class SandboxesError(Exception):
    """Anything that went wrong between this client, the service and a sandbox."""


class TransportError(SandboxesError):
    """The service could not be reached, or a connection broke before the answer was complete.

    `sent` says whether the request may have had its effect, `permanent` whether it fails the same way when it is
    sent again: the URL or a certificate has to change first.
    """

    def __init__(self, message: str, *, sent: bool, permanent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.permanent = permanent


class ProtocolError(SandboxesError):
    """An answer is not as its contract says, or larger than this client reads."""


class StreamError(SandboxesError):
    """A stream ended before its end and could not be resumed."""


class WaitTimeout(SandboxesError, TimeoutError):
    """A state did not come in time. The sandbox exists, and so does the snapshot of it that was waited for."""

    def __init__(self, message: str, sandbox_id: str) -> None:
        super().__init__(message)
        self.sandbox_id = sandbox_id


class SandboxFailed(SandboxesError):
    """A sandbox will not have the state that was waited for: it is Failed or Terminated, or could not be resumed or
    rolled back."""

    def __init__(self, sandbox_id: str, state: str, reason: str, message: str) -> None:
        super().__init__(printable(f"sandbox {sandbox_id} is {state} ({reason}): {message}"))
        self.sandbox_id = sandbox_id
        self.state = state
        self.reason = reason
        self.message = message


class SnapshotFailed(SandboxesError):
    """A snapshot could not be made, or is being deleted. Nothing of its files is kept."""

    def __init__(self, snapshot_id: str, state: str, reason: str, message: str) -> None:
        super().__init__(printable(f"snapshot {snapshot_id} is {state} ({reason}): {message}"))
        self.snapshot_id = snapshot_id
        self.state = state
        self.reason = reason
        self.message = message


class CommandFailed(SandboxesError):
    """A command that was to succeed did not end with exit code 0.

    `reason` is why, where that is known: `OOM_KILLED`, the kernel ended it because memory ran out.
    """

    def __init__(self, message: str, exit_code: int | None, reason: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason


class APIError(SandboxesError):
    """An answer that is an error.

    `code` is for machines (docs/errors.md lists them), `message` for people. `request_id` finds the
    request in the service's log. `retry_after` is in seconds.
    """

    def __init__(self, status: int, code: str, message: str, request_id: str = "", retry_after: float | None = None) -> None:
        super().__init__(f"{status} {code}: {message}" + (f" (request {request_id})" if request_id else ""))
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retry_after = retry_after


class UnauthorizedError(APIError):
    """401: the key is missing or wrong."""


class ForbiddenError(APIError):
    """403: the key does not allow this, or the sandbox's kernel refuses it."""


class NotFoundError(APIError):
    """404: there is no such sandbox, file, command or context."""


class ConflictError(APIError):
    """409: the current state does not allow this."""


class RateLimitedError(APIError):
    """429: the key has used up its rate limit."""


class UnavailableError(APIError):
    """502, 503 or 504: the service or the sandbox cannot answer now."""


_KINDS: dict[int, type[APIError]] = {
    401: UnauthorizedError, 403: ForbiddenError, 404: NotFoundError, 409: ConflictError,
    429: RateLimitedError, 502: UnavailableError, 503: UnavailableError, 504: UnavailableError,
}


def printable(text: str) -> str:
    """A text without control characters: what is in a sandbox can choose messages, which people print."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text)


_STATUSES = {"INVALID_REQUEST_BODY": 400, "FORBIDDEN": 403, "CONFLICT": 409, "SERVICE_UNAVAILABLE": 503}


def fork_error(error: lifecycle.Error | None) -> APIError:
    """Why a sandbox of a fork was not made, as the error that a create would have been."""
    code, message = ("", "") if error is None else (error.code, error.message)
    status = _STATUSES.get(code, 500)
    return _KINDS.get(status, APIError)(status, printable(code[:100]) or "UNKNOWN", printable(message[:2000]) or "no message")


NEEDS_TLS = "the server speaks TLS: the URL should begin with https://, not http://"


def connect_error(where: str, error: OSError) -> TransportError:
    """Why there is no connection."""
    reason, permanent = str(error) or "it did not answer in time", False
    if isinstance(error, ssl.SSLCertVerificationError):
        reason, permanent = f"the certificate of the server is not trusted: {printable(error.verify_message)}", True
    elif isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        reason, permanent = "the server does not speak TLS: the URL should begin with http://, not https://", True
    elif isinstance(error, ssl.SSLError):
        reason = f"the TLS handshake failed: {(error.reason or 'it was cut').lower().replace('_', ' ')}"
    return TransportError(f"{where} cannot be reached: {reason}", sent=False, permanent=permanent)


_PLAIN_TO_TLS = (b"HTTP request to an HTTPS server", b"HTTP request was sent to HTTPS port", b"speaking plain HTTP to an SSL-enabled server")
"""What servers that expect TLS answer without it: of Go, nginx and Apache."""


def api_error(status: int, body: bytes, request_id: str, retry_after: str) -> APIError:
    """The error that an answer is, whoever made it: a proxy on the way may answer with a page."""
    code, message = "", ""
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        found = cast(dict[str, Any], value)
        code, message = str(found.get("code", "")), str(found.get("message", ""))
    if not message and 300 <= status < 400:
        message = "the answer is a redirect, which is not followed"
    if not message and status == 400 and any(text in body for text in _PLAIN_TO_TLS):
        message = NEEDS_TLS
    after = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 10 else None
    return _KINDS.get(status, APIError)(
        status, printable(code[:100]) or "UNKNOWN", printable(message[:2000]) or "no message", printable(request_id), after)
