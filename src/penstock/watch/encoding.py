"""The state as JSON, and back. Pure.

What has another format, or another shape, is refused with a sentence that says so: whoever looks
at a feed of another release should know that, and not see half of it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import CorruptStorageError
from penstock.sealed import DamagedFileError, seal_text, sealed_json, unsealed_json
from penstock.watch.state import FORMAT, FeedState, SparkBatch

if TYPE_CHECKING:
    from collections.abc import Collection

T = TypeVar("T")

_OLD_STATE = ("format", *(one.name for one in dataclasses.fields(FeedState)))
_OLD_BATCHES = ("format", "batches")
_WAY_OUT = "nothing but what is shown depends on it, and the next start of the feed writes it anew"

_PLAIN = frozenset({int, float, str, bool, types.NoneType})


class StateFormatError(CorruptStorageError):
    """A state file is of another release, or it is no state. Use the release that the feed runs
    with."""


def encode_state(state: FeedState) -> bytes:
    text = json.dumps({"format": FORMAT, **plain(state)}, separators=(",", ":"))
    return seal_text(text.encode())


def decode_state(text: bytes, name: str = "the state") -> FeedState:
    """`name` stands in errors."""
    return _made(FeedState, state_table(text, name), name)


def state_table(text: bytes, name: str = "the state") -> dict[str, Any]:
    """The members of a state, not yet put together."""
    return _table(text, name, _OLD_STATE)


def encode_batches(batches: typing.Iterable[SparkBatch]) -> bytes:
    return sealed_json({"format": FORMAT, "batches": [plain(each) for each in batches]})


def decode_batches(text: bytes, name: str = "Spark's batches") -> tuple[SparkBatch, ...]:
    table = _table(text, name, _OLD_BATCHES)
    found = table.get("batches")
    if not isinstance(found, list):
        raise StateFormatError(f"{name} has no list of batches")
    return tuple(_made(SparkBatch, each, name) for each in found)


def plain(value: Any) -> Any:
    """Of dataclasses and tuples, what JSON has."""
    if dataclasses.is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [each if type(each) in _PLAIN else plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def _table(text: bytes, name: str, old_members: Collection[str]) -> dict[str, Any]:
    try:
        table = unsealed_json(name, text, old_members, _WAY_OUT)
    except DamagedFileError as damage:
        raise StateFormatError(str(damage)) from damage
    if "format" not in table:
        raise StateFormatError(f"{name} is not the state of a feed")
    if table["format"] != FORMAT:
        raise StateFormatError(
            f"{name} has format {table['format']!r}, and this release knows {FORMAT}: look at it "
            "with the release that the feed runs with"
        )
    return table


def _made(kind: type[T], table: Any, name: str) -> T:
    try:
        made: T = made_of(kind, table)
    except (KeyError, TypeError, ValueError) as error:
        raise StateFormatError(f"{name} is not what it says it is: {error!r}") from error
    return made


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def made_of(kind: Any, value: Any) -> Any:
    """A value of this type, from JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError(f"{kind} is not made of {value!r}")
        return kind(**{name: made_of(hint, value[name]) for name, hint in _hints(kind).items()})  # type: ignore[operator, arg-type]
    if origin is types.UnionType:
        if value is None and types.NoneType in arguments:
            return None
        return made_of(next(each for each in arguments if each is not types.NoneType), value)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        return tuple(made_of(arguments[0], each) for each in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not a table")
        return value
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is none of {', '.join(arguments)}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
