"""Makes the generated types from JSON. What is in a sandbox may answer anything, so every field is checked."""

from __future__ import annotations

import base64
import binascii
import json
import types
from collections import abc
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, Callable, Literal, Mapping, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ._errors import ProtocolError

T = TypeVar("T")
_Decoder = Callable[[object, str], Any]


def decode(kind: type[T], text: bytes) -> T:
    """Reads JSON of a type. Unknown fields are ignored, and unknown values of a Literal are kept."""
    if kind is type(None):
        return cast(T, None)
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the answer is not JSON: {error}") from None
    return cast(T, _decoder(kind)(value, kind.__name__))


@cache
def _decoder(kind: Any) -> _Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return lambda value, where: value
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _instance(str)
    if origin in (list, abc.Sequence):
        return _list(_decoder(arguments[0]))
    if origin in (dict, abc.Mapping):
        return _dict(_decoder(arguments[1]))
    if is_dataclass(kind):
        return _object(kind)
    if kind is datetime:
        return _datetime
    if kind is bytes:
        return _bytes
    if kind is float:
        return _float
    return _instance(kind)


def _fail(where: str, wanted: str) -> ProtocolError:
    return ProtocolError(f"the answer is not as the contract says: {where}: must be {wanted}")


def _instance(kind: type) -> _Decoder:
    def check(value: object, where: str) -> object:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _fail(where, {str: "a string", int: "an integer", bool: "a boolean"}[kind])
        return value

    return check


def _float(value: object, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _fail(where, "a number")
    return float(value)


def _datetime(value: object, where: str) -> datetime:
    try:
        if isinstance(value, str) and (moment := datetime.fromisoformat(value)).tzinfo is not None:
            return moment
    except ValueError:
        pass
    raise _fail(where, "a time as RFC 3339 writes it")


def _bytes(value: object, where: str) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise _fail(where, "bytes in base64")


def _union(arguments: tuple[Any, ...]) -> _Decoder:
    first = _decoder(next(kind for kind in arguments if kind is not type(None)))
    if type(None) not in arguments:
        return first  # of strings
    return lambda value, where: None if value is None else first(value, where)


def _list(item: _Decoder) -> _Decoder:
    def read(value: object, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise _fail(where, "an array")
        return [item(element, f"{where}[{index}]") for index, element in enumerate(cast(list[object], value))]

    return read


def _dict(item: _Decoder) -> _Decoder:
    def read(value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _fail(where, "an object")
        return {key: item(element, f"{where}[{key[:100]!r}]") for key, element in cast(dict[str, object], value).items()}

    return read


def _object(kind: Any) -> _Decoder:
    names: Mapping[str, str] = getattr(kind, "JSON_NAMES", {})
    hints = get_type_hints(kind)
    members = [(field.name, names.get(field.name, field.name), _decoder(hints[field.name]),
                field.default is MISSING) for field in fields(kind)]

    def read(value: object, where: str) -> Any:
        if not isinstance(value, dict):
            raise _fail(where, "an object")
        source, found = cast(dict[str, object], value), dict[str, Any]()
        for name, key, member, required in members:
            if key in source and (source[key] is not None or required):
                found[name] = member(source[key], f"{where}.{key}")
            elif required:
                raise ProtocolError(f"the answer is not as the contract says: {where}.{key}: is required")
        return kind(**found)

    return read
