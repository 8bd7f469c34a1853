"""Rows as JSON documents: what `penstock read` prints, and values of topics with this format."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Encode: TypeAlias = Callable[[Any], Any]


def documents_of(batch: pa.RecordBatch) -> list[str]:
    """Each row as an object of its columns."""
    columns = encoded_columns(batch, [encoder(field.type) for field in batch.schema])
    names: Sequence[str] = batch.schema.names
    return [
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
        for row in zip(*columns, strict=True)
    ]


def encoded_columns(batch: pa.RecordBatch, encoders: list[Encode | None]) -> list[list[Any]]:
    """Each column as values that JSON has."""
    columns: list[list[Any]] = []
    for index, encode in enumerate(encoders):
        values: list[Any] = batch.column(index).to_pylist()
        if encode is not None:
            values = [None if value is None else encode(value) for value in values]
        columns.append(values)
    return columns


def encoder(kind: pa.DataType) -> Encode | None:
    """What makes a value of that type fit for JSON; None if it is. `append` reads it all back:
    moments as ISO 8601, decimals as text (exact), BINARY as base64, NaN as text."""
    if isinstance(kind, pa.TimestampType) or pa.types.is_date(kind):
        return _iso
    if pa.types.is_decimal(kind):
        return str
    if pa.types.is_floating(kind):
        return _finite
    if pa.types.is_binary(kind):
        return _base64
    if isinstance(kind, pa.MapType):
        return _map_encoder(encoder(kind.key_type), encoder(kind.item_type))
    if isinstance(kind, pa.ListType):
        return _list_encoder(encoder(kind.value_type))
    if isinstance(kind, pa.StructType):
        return _struct_encoder({field.name: encoder(field.type) for field in kind})
    return None


def _iso(value: Any) -> str:
    return str(value.isoformat())


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _apply(encode: Encode | None, value: Any) -> Any:
    return value if encode is None or value is None else encode(value)


def _list_encoder(encode: Encode | None) -> Encode:
    return lambda values: [_apply(encode, value) for value in values]


def _struct_encoder(encoders: dict[str, Encode | None]) -> Encode:
    return lambda value: {name: _apply(encoders[name], item) for name, item in value.items()}


def _map_encoder(encode_key: Encode | None, encode_item: Encode | None) -> Encode:
    return lambda pairs: {
        _key_text(_apply(encode_key, key)): _apply(encode_item, item) for key, item in pairs
    }


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)
