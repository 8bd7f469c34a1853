"""A schema out of a file's first rows, for `append --create`."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.cli.sources import RefusedRowsError
from penstock.cli.values import converter
from penstock.ddl import normal_schema
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.sources import RawRows

_TEXT_TYPES: Final = (
    pa.bool_(),
    pa.int64(),
    pa.float64(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
)
"""What text may stand for, the narrowest first."""
_JSON_TEXT_TYPES: Final = (pa.date32(), pa.timestamp("us", tz="UTC"))
_BOOLEAN_WORDS: Final = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
"""0 and 1 are numbers, unless somebody says otherwise with a schema."""


def infer_schema(raw: RawRows, key: Sequence[str]) -> pa.Schema:
    """The schema of these rows; its key columns are NOT NULL."""
    if isinstance(raw.rows, pa.RecordBatch):
        found = raw.rows.schema
    else:
        kinds = {name: _kind(raw, name, values) for name, values in raw.rows.items()}
        found = pa.schema(list(kinds.items()))
    for column in key:
        if column not in found.names:
            raise ConfigurationError(
                f"{raw.source.name}: there is no key column {column!r}; "
                f"it has {', '.join(found.names)}"
            )
    return normal_schema(pa.schema([field.with_nullable(field.name not in key) for field in found]))


def _kind(raw: RawRows, name: str, values: list[Any]) -> pa.DataType:
    present = [value for value in values if value is not None and value != ""]
    if not present:
        return pa.string()
    if all(isinstance(value, str) for value in present):
        return _kind_of_text(
            present, _TEXT_TYPES if raw.source.format == "csv" else _JSON_TEXT_TYPES
        )
    try:
        kind = pa.array([_plain(value) for value in present]).type
    except (pa.ArrowException, OverflowError) as error:
        raise RefusedRowsError(
            raw.source.name,
            name,
            f"no one type fits its values ({str(error).splitlines()[0]}); create the collection "
            "with a schema first: penstock journals create",
        ) from None
    return _without_unknowns(kind)


def _kind_of_text(values: list[str], candidates: Sequence[pa.DataType]) -> pa.DataType:
    for kind in candidates:
        if pa.types.is_boolean(kind) and not _BOOLEAN_WORDS.issuperset(values):
            continue
        if pa.types.is_integer(kind) and any(_is_padded(value) for value in values):
            return pa.string()  # 00123 is a code, and would lose its zeros
        convert = converter(kind)
        try:
            for value in values:
                convert(value)
            pa.array([convert(value) for value in values], type=kind)
        except (ValueError, pa.ArrowException, OverflowError):
            continue
        return kind
    return pa.string()


def _is_padded(text: str) -> bool:
    digits = text.lstrip("+-")
    return len(digits) > 1 and digits.startswith("0") and digits.isdigit()


def _plain(value: Any) -> Any:
    """Numbers with a point are DOUBLE unless a schema says DECIMAL."""
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _without_unknowns(kind: pa.DataType) -> pa.DataType:
    """Types of which only nulls were seen become STRING."""
    if pa.types.is_null(kind):
        return pa.string()
    if isinstance(kind, pa.ListType):
        return pa.list_(_without_unknowns(kind.value_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([(field.name, _without_unknowns(field.type)) for field in kind])
    return kind
