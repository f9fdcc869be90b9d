"""Decoders of `msgspec.Struct` types, each made once, by one thread at a time.

msgspec reads the fields of a struct type when it is decoded for the first time. If two threads do
so at once, one of them may use a description of the type that the other has only begun to fill in,
and the process crashes.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, TypeVar

import msgspec

from gemmkit.loading import first_use

T = TypeVar("T", bound=msgspec.Struct)

# Of all types, since they contain one another.
_making = threading.RLock()


def from_json(data: bytes | str, kind: type[T]) -> T:
    """A value out of JSON.

    Raises:
        msgspec.DecodeError: not JSON, or (`msgspec.ValidationError`) not a value of this type.
    """
    decoded: T = _json(kind).decode(data)
    return decoded


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """A value out of MessagePack; raises as `from_json`."""
    decoded: T = _msgpack(kind).decode(data)
    return decoded


def from_builtins(value: object, kind: type[T]) -> T:
    """A value out of dicts, lists, strings and numbers.

    Raises:
        msgspec.ValidationError: not a value of this type.
    """
    _json(kind)
    return msgspec.convert(value, kind)


@cache
def _json(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    with first_use(), _making:
        return msgspec.json.Decoder(kind)


@cache
def _msgpack(kind: type[Any]) -> msgspec.msgpack.Decoder[Any]:
    with first_use(), _making:
        return msgspec.msgpack.Decoder(kind)
