"""The kinds of fields in what this package writes as JSON. Each check returns what it was given, or
raises a ValueError that shows it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


def fields_of(text: str | bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    return fields


def plain(record: object) -> dict[str, Any]:
    """The fields of one of this package's dataclasses, in their order. None of them can be changed:
    unlike `dataclasses.asdict`, which takes ten times as long, this copies nothing."""
    names: tuple[str, ...] = type(record).__match_args__  # type: ignore[attr-defined]
    return {name: getattr(record, name) for name in names}


def optional(fields: Mapping[str, Any], name: str, check: Callable[[object], T], default: T) -> T:
    """A field that another version does not write, in which case it means `default`. One that is
    there is checked."""
    return check(fields[name]) if name in fields else default


def number(value: object) -> int:
    """Of a member, an epoch, a term: from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number of this protocol")
    return value


def numbers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    return tuple(number(each) for each in value)


def clock(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{value!r} is not a clock")


def seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value
