"""The Avro schema of a frame's columns, as Spark's `to_avro` derives one. Pure.

Every column may be null, and is null by default: so a frame with one column more, or one less, has
a schema that a registry takes for compatible.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.formats.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

TOP: Final = "topLevelRecord"
"""What Spark calls it."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


def avro_schema_of(columns: pa.Schema) -> str:
    """As JSON text, the same for the same columns."""
    return json.dumps(_record(list(columns), TOP, ""))


def _record(fields: Iterable[pa.Field[Any]], name: str, namespace: str) -> dict[str, Any]:
    inner = f"{namespace}.{name}" if namespace else name
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        record["namespace"] = namespace
    record["fields"] = [
        {"name": _checked(field.name), "type": _or_null(field, inner), "default": None}
        for field in fields
    ]
    return record


def _or_null(field: pa.Field[Any], namespace: str) -> list[Any]:
    return ["null", _type(field.type, field.name, namespace)]


def _type(kind: pa.DataType, name: str, namespace: str) -> Any:
    match kind:
        case pa.StructType():
            return _record(list(kind), name, namespace)
        case pa.ListType():
            return {"type": "array", "items": ["null", _type(kind.value_type, name, namespace)]}
        case pa.MapType() if kind.key_type in (pa.string(), pa.large_string()):
            return {"type": "map", "values": ["null", _type(kind.item_type, name, namespace)]}
        case pa.Decimal128Type():
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": kind.precision,
                "scale": kind.scale,
            }
        case pa.TimestampType(unit="us"):
            local = "local-" if kind.tz is None else ""
            return {"type": "long", "logicalType": f"{local}timestamp-micros"}
        case _ if kind in _PLAIN:
            return _PLAIN[kind]
    raise SchemaError(f"column {name!r} is {kind}, which Avro has not: cast it in the query")


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise SchemaError(
            f"column {name!r} cannot be a name in Avro: those have letters, digits and '_', and "
            "begin with no digit. Rename it in the query"
        )
    return name
