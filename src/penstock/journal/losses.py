"""What Arrow converts without a word although something is lost, found before or after it does.

Fields of nested values that the schema lacks, which it drops; missing values of nested NOT NULL
fields, which it makes null; fractions, which it cuts off where Python values become whole numbers.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WHOLE: Final = frozenset({int, type(None)})


@dataclass(frozen=True, slots=True)
class Loss:
    """What would be lost: in which row, if that is known, and at which path below its column."""

    row: int | None
    path: tuple[str, ...]
    reason: str


_UNKNOWN: Final = "there is no such field; evolve the collection to have it, or drop it"
_MISSING: Final = "has no value, but is NOT NULL"


def loss_by_type(given: pa.DataType, wanted: pa.DataType) -> Loss | None:
    """A field of the given type that the wanted one lacks."""
    return next((Loss(None, path, _UNKNOWN) for path in _unknown_paths(given, wanted)), None)


def _unknown_paths(given: pa.DataType, wanted: pa.DataType) -> Iterator[tuple[str, ...]]:
    if isinstance(given, pa.StructType) and isinstance(wanted, pa.StructType):
        for field in given:
            index = wanted.get_field_index(field.name)
            if index < 0:
                yield (field.name,)
            else:
                below = _unknown_paths(field.type, wanted.field(index).type)
                yield from ((field.name, *path) for path in below)
    elif isinstance(given, pa.MapType) and isinstance(wanted, pa.MapType):
        yield from _unknown_paths(given.key_type, wanted.key_type)
        yield from _unknown_paths(given.item_type, wanted.item_type)
    elif isinstance(given, pa.ListType | pa.LargeListType) and isinstance(wanted, pa.ListType):
        yield from _unknown_paths(given.value_type, wanted.value_type)


def loss_in_values(values: Sequence[Any], wanted: pa.DataType) -> Loss | None:
    """The first of these Python values that would not arrive whole."""
    if not _can_lose(wanted) or (pa.types.is_integer(wanted) and set(map(type, values)) <= _WHOLE):
        return None
    for row, value in enumerate(values):
        for path, reason in _losses(value, wanted):
            return Loss(row, path, reason)
    return None


def _can_lose(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.MapType):
        return _can_lose(kind.key_type) or _can_lose(kind.item_type)
    if isinstance(kind, pa.ListType):
        return _can_lose(kind.value_type)
    return (
        isinstance(kind, pa.StructType) or pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    )


def _losses(value: Any, wanted: pa.DataType) -> Iterator[tuple[tuple[str, ...], str]]:
    """Values of another shape than the type's are left for Arrow to refuse."""
    if isinstance(wanted, pa.StructType):
        for name, part in value.items() if isinstance(value, Mapping) else ():
            index = wanted.get_field_index(name) if isinstance(name, str) else -1
            if index < 0:
                yield (str(name),), _UNKNOWN
            else:
                below = _losses(part, wanted.field(index).type)
                yield from (((name, *path), reason) for path, reason in below)
    elif isinstance(wanted, pa.MapType):
        pairs = value.items() if isinstance(value, Mapping) else value
        for pair in pairs if value is not None and not isinstance(value, str) else ():
            if isinstance(pair, tuple) and len(pair) == 2:
                yield from _losses(pair[0], wanted.key_type)
                yield from _losses(pair[1], wanted.item_type)
    elif isinstance(wanted, pa.ListType):
        for part in value if isinstance(value, list | tuple | set | np.ndarray) else ():
            yield from _losses(part, wanted.value_type)
    elif reason := _cut_off(value, wanted):
        yield (), f"value {str(value)[:60]!r} does not fit {wanted}: it would lose {reason}"


def _cut_off(value: Any, wanted: pa.DataType) -> str | None:
    if type(value) in _WHOLE or isinstance(value, str | bytes):
        return None
    if pa.types.is_date(wanted) and isinstance(value, datetime.datetime):
        return "its time of day" if value.time() != datetime.time() else None
    if pa.types.is_timestamp(wanted) and getattr(value, "nanosecond", None):
        return "its nanoseconds"
    if pa.types.is_integer(wanted) or pa.types.is_temporal(wanted):
        try:
            return "its fraction" if int(value) != value else None
        except (TypeError, ValueError, OverflowError):
            return None
    return None


def without_required(kind: pa.DataType) -> pa.DataType:
    """The type with all nested fields nullable: Arrow refuses nulls in others, but in its own way,
    and where a list is sliced also for what is not in the slice."""
    if isinstance(kind, pa.MapType):
        return pa.map_(without_required(kind.key_type), without_required(kind.item_type))
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(without_required(kind.value_type)))
    if isinstance(kind, pa.StructType):
        return pa.struct([(field.name, without_required(field.type)) for field in kind])
    return kind


def loss_of_required(array: pa.Array[Any], wanted: pa.DataType) -> Loss | None:
    """The first row in which a NOT NULL field of a nested value has no value."""
    found = min(_nulls(array, wanted, np.arange(len(array)), ()), default=None)
    return None if found is None else Loss(*found, _MISSING)


def _nulls(
    array: pa.Array[Any],
    wanted: pa.DataType,
    rows: np.ndarray[Any, np.dtype[np.int64]],
    path: tuple[str, ...],
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The first row of each required field that is missing; `rows` are those of the values."""
    if isinstance(array, pa.StructArray) and isinstance(wanted, pa.StructType):
        there = pc.is_valid(array).to_numpy(zero_copy_only=False)
        for field, child in zip(wanted, array.flatten(), strict=True):
            below = (*path, field.name)
            if not field.nullable:
                missing = there & pc.is_null(child).to_numpy(zero_copy_only=False)
                if missing.any():
                    yield int(rows[missing][0]), below
            yield from _nulls(child, field.type, rows, below)
    elif isinstance(array, pa.ListArray | pa.MapArray):
        offsets = array.offsets.to_numpy()
        parents = rows[np.repeat(np.arange(len(array)), np.diff(offsets))]
        within = slice(int(offsets[0]), int(offsets[-1])) if len(array) else slice(0)
        if isinstance(array, pa.MapArray) and isinstance(wanted, pa.MapType):
            yield from _nulls(array.keys[within], wanted.key_type, parents, path)
            yield from _nulls(array.items[within], wanted.item_type, parents, path)
        elif isinstance(wanted, pa.ListType):
            yield from _nulls(array.values[within], wanted.value_type, parents, path)
