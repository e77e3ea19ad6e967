"""Descriptions of requests, which the generated calls return, and their JSON."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timezone
from typing import Any, Generic, Mapping, Self, Sequence, TypeVar, cast
from urllib.parse import quote, urlencode

T = TypeVar("T")

Parameter = str | int | bool | datetime | Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request of a contract. Parameters that are None are not sent."""

    method: str
    path: str
    query: tuple[tuple[str, Parameter], ...] = ()
    headers: tuple[tuple[str, Parameter], ...] = ()
    content_type: str = "application/json"
    body: bytes | None = None
    idempotent: bool = False
    """Whether it may be sent twice although its method does not say so."""

    @property
    def accept(self) -> str:
        """The media type of the answer."""
        return "*/*"

    @property
    def repeatable(self) -> bool:
        """Whether a request that was cut may be sent again without having its effect twice."""
        key = any(name == "Idempotency-Key" and value is not None for name, value in self.headers)
        return key or self.idempotent or self.method in ("GET", "PUT", "DELETE")

    def aged(self, milliseconds: int) -> Self:
        """The request with its age, if its contract has a header for that: what repetitions say."""
        headers = tuple((name, milliseconds if name == "Idempotency-Age" else value) for name, value in self.headers)
        return replace(self, headers=headers)

    def target(self) -> str:
        """The path and the query."""
        pairs = [(name, text) for name, value in self.query for text in _texts(value)]
        return self.path + ("?" + urlencode(pairs, quote_via=quote) if pairs else "")

    def header_fields(self) -> list[tuple[str, str]]:
        """The headers of the request that are not those of every request."""
        sent = [(name, text) for name, value in self.headers for text in _texts(value)]
        if self.body is not None:
            sent.append(("Content-Type", self.content_type))
        return [("Accept", self.accept), *sent]


@dataclass(frozen=True, kw_only=True)
class Call(Operation, Generic[T]):
    """A request whose answer is JSON of the type `answer`, or nothing."""

    answer: type[T]

    @property
    def accept(self) -> str:
        return "application/json"


@dataclass(frozen=True, kw_only=True)
class EventStream(Operation, Generic[T]):
    """A request whose answer is a stream of events with JSON of the type `answer`."""

    answer: type[T]

    @property
    def accept(self) -> str:
        return "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteStream(Operation):
    """A request whose answer is plain bytes."""

    media: str = "*/*"
    """The media type to ask for, where the answer has several."""

    @property
    def accept(self) -> str:
        return self.media


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade(Operation):
    """A request that makes the connection a WebSocket."""


def fill(template: str, *values: str | int) -> str:
    """Puts values into the places `{}` of a path, each as one segment."""
    texts = [str(value) for value in values]
    for text in texts:
        if text in ("", ".", ".."):
            raise ValueError(f"{text!r} cannot be a part of a path")
    return template.format(*(quote(text, safe="") for text in texts))


def _texts(value: Parameter) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, datetime):
        return [timestamp(value)]
    if isinstance(value, (str, int)):
        return [str(value)]
    return list(value)


def timestamp(moment: datetime) -> str:
    """A time as RFC 3339 in UTC. One without a time zone is local time."""
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def encode(body: object) -> bytes:
    """JSON of a generated type. Fields that are None are left out."""
    return json.dumps(_plain(body), separators=(",", ":"), allow_nan=False).encode()


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        names: Mapping[str, str] = getattr(value, "JSON_NAMES", {})
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {names.get(name, name): _plain(item) for name, item in pairs if item is not None}
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast(Mapping[str, object], value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in cast(Sequence[object], value)]
    return value
