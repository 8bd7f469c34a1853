"""Filters that Spark hands down: which of them can be answered here, and their answers.

An answer is exact or not given: what is not certain stays with Spark. As in SQL an answer is
true, false or null, and only true keeps a row. Numbers with a fraction are left to Spark, which
has its own opinion of NaN.
"""

from __future__ import annotations

import datetime
import decimal
import json
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.spark.columns import META

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Path: TypeAlias = tuple[str, ...]

_COMPARES: Final[dict[type[Filter], Any]] = {
    EqualTo: pc.equal,
    EqualNullSafe: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_TEXT_MATCHES: Final[dict[type[Filter], Any]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}
_ORDERED: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
)
"""Kinds that Arrow and Spark compare alike: numbers, moments, and text by its bytes."""


def can_answer(condition: Filter, schema: pa.Schema) -> bool:
    """Whether rows of this schema can be tested here exactly as Spark would."""
    if isinstance(condition, Not):
        return can_answer(condition.child, schema)
    path = _path_of(condition)
    kind = None if path is None else _type_at(path, schema)
    if kind is None:
        return False
    if isinstance(condition, IsNull | IsNotNull):
        return True
    if type(condition) in _TEXT_MATCHES:
        return pa.types.is_string(kind)
    if isinstance(condition, In):
        values = condition.value
        return _comparable(kind) and all(
            value is None or _exact(value, kind) is not None for value in values
        )
    if isinstance(condition, EqualTo | EqualNullSafe):
        return _comparable(kind) and _exact(condition.value, kind) is not None
    if type(condition) in _COMPARES:
        return _is_ordered(kind) and _exact(_value_of(condition), kind) is not None
    return False


def answer(condition: Filter, column: Callable[[Path], pa.Array[Any]]) -> pa.BooleanArray:
    """True, false or null for each row. Only for what `can_answer`."""
    if isinstance(condition, Not):
        return pc.invert(answer(condition.child, column))
    values = column(_path_of(condition) or ())
    if isinstance(condition, IsNull):
        return values.is_null()
    if isinstance(condition, IsNotNull):
        return values.is_valid()
    if (matches := _TEXT_MATCHES.get(type(condition))) is not None:
        return cast("pa.BooleanArray", matches(values, _value_of(condition)))
    if isinstance(condition, In):
        return _is_in(values, condition.value)
    compared = _COMPARES[type(condition)](values, _exact(_value_of(condition), values.type))
    if isinstance(condition, EqualNullSafe):
        compared = pc.fill_null(compared, False)
    return cast("pa.BooleanArray", compared)


def answer_all(conditions: Sequence[Filter], batch: pa.RecordBatch) -> pa.BooleanArray | None:
    """All the conditions together, on a batch as Spark sees it; none if there are no conditions."""
    found: Any = None
    for condition in conditions:
        one = answer(condition, lambda path: _column_at(path, batch))
        found = one if found is None else pc.and_kleene(found, one)
    return cast("pa.BooleanArray | None", found)


def prune(
    conditions: Sequence[Filter],
    journals: Sequence[tuple[str, Mapping[str, str]]],
    schema: pa.Schema,
    partition_by: Sequence[str],
) -> list[str]:
    """The journals (name and labels) that can have rows which fulfil the conditions."""
    names = [name for name, _ in journals]
    known: dict[Path, pa.Array[Any]] = {
        (META, "journal"): pa.array(names, pa.string()),
        ("_journal",): pa.array(names, pa.string()),
    }
    for column in partition_by:
        kind = schema.field(column).type
        values = [label_value(labels[column], kind) for _, labels in journals]
        known[(column,)] = pa.array(values, kind)
    keep: Any = None
    for condition in conditions:
        leaf = condition
        while isinstance(leaf, Not):
            leaf = leaf.child
        if _path_of(leaf) in known:
            one = answer(condition, known.__getitem__)
            keep = one if keep is None else pc.and_kleene(keep, one)
    if keep is None:
        return names
    return [name for name, wanted in zip(names, keep.to_pylist(), strict=True) if wanted]


def label_value(label: str, kind: pa.DataType) -> Any:
    """The value behind a label in a journal's name: the inverse of `encode_label`."""
    if not label.startswith("%_"):
        return urllib.parse.unquote(label)
    text = urllib.parse.unquote(label.removeprefix("%_"))
    if text == "null":
        return None
    if pa.types.is_binary(kind):
        return bytes.fromhex(text.removeprefix("b"))
    if pa.types.is_date32(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(text)
    if pa.types.is_decimal128(kind):
        return decimal.Decimal(text)
    return json.loads(text)


def _is_in(values: pa.Array[Any], wanted: Sequence[Any]) -> pa.BooleanArray:
    """NULL among the wanted values makes "not there" into "unknown", as SQL has it."""
    given = pa.array([value for value in wanted if value is not None], values.type)
    found = pc.is_in(values, value_set=given)
    unknown = pc.is_null(values)
    if len(given) < len(wanted):
        unknown = pc.or_(unknown, pc.invert(found))
    return cast("pa.BooleanArray", pc.if_else(unknown, pa.scalar(None, pa.bool_()), found))


def _exact(value: Any, kind: pa.DataType) -> pa.Scalar[Any] | None:
    """The value as one of the column's type, if it is the same value there."""
    if value is None or isinstance(value, float):
        return None
    try:
        scalar = pa.scalar(value, kind)
        same = type(scalar.as_py()) is type(value) and scalar.as_py() == value
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return scalar if same else None


def _comparable(kind: pa.DataType) -> bool:
    return pa.types.is_boolean(kind) or _is_ordered(kind)


def _is_ordered(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _ORDERED)


def _path_of(condition: Filter) -> Path | None:
    path = getattr(condition, "attribute", None)
    return tuple(path) if path else None


def _value_of(condition: Filter) -> Any:
    return getattr(condition, "value", None)


def _type_at(path: Path, schema: pa.Schema) -> pa.DataType | None:
    index = schema.get_field_index(path[0])
    if index < 0:
        return None
    kind: pa.DataType = schema.field(index).type
    if len(path) == 1:
        return kind
    if path[0] != META or len(path) != 2 or not isinstance(kind, pa.StructType):
        return None
    member = kind.get_field_index(path[1])
    return None if member < 0 else cast("pa.DataType", kind.field(member).type)


def _column_at(path: Path, batch: pa.RecordBatch) -> pa.Array[Any]:
    column = batch.column(path[0])
    # `_meta` itself is never null, so that its members are what they seem.
    return column if len(path) == 1 else cast("pa.StructArray", column).field(path[1])
