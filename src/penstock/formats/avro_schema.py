"""Avro schemas: read from their JSON text, and the columns they become.

Columns are those of Spark's `from_avro`: enums and UUIDs are strings, fixed is BINARY, times of day
are numbers, a union of null and one type is that type, and a union of several is a struct with
`member0`, `member1`, ... of which one is not null.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.formats.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

_DECIMAL_DIGITS_MAX: Final = 38
_UTC: Final = pa.timestamp("us", tz="UTC")
_NTZ: Final = pa.timestamp("us")
_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "null": pa.string(),  # Spark's VOID has no values, and DDL has no such column
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _UTC,
    ("long", "timestamp-micros"): _UTC,
    ("long", "local-timestamp-millis"): _NTZ,
    ("long", "local-timestamp-micros"): _NTZ,
}


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts. `logical` is set where it changes the column."""

    name: str
    column: pa.DataType
    logical: str = ""


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many bytes."""

    size: int
    column: pa.DataType


@dataclass(frozen=True, slots=True)
class Enum:
    """A number that stands for a symbol."""

    symbols: tuple[str, ...]
    default: str | None
    column: pa.DataType


@dataclass(frozen=True, slots=True)
class Items:
    """An array."""

    element: Node
    column: pa.DataType


@dataclass(frozen=True, slots=True)
class Entries:
    """A map: its names are strings."""

    value: Node
    column: pa.DataType


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types. `members` are those of them that are not null, by branch."""

    branches: tuple[Node, ...]
    column: pa.DataType

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(i for i, branch in enumerate(self.branches) if not is_null(branch))


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a record. `default` is JSON, and counts if `has_default`."""

    name: str
    node: Node
    aliases: tuple[str, ...]
    has_default: bool
    default: Any


@dataclass(frozen=True, slots=True)
class Record:
    """Fields one behind the other."""

    fields: tuple[Member, ...]
    column: pa.DataType

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(member.name, member.node.column) for member in self.fields])


Node = Primitive | Fixed | Enum | Items | Entries | Union | Record


def is_null(node: Node) -> bool:
    return isinstance(node, Primitive) and node.name == "null"


def parse_schema(text: str, referenced: Iterable[str] = ()) -> Record:
    """Reads a schema. Its top level is a record: values become rows. `referenced` are schemas that
    define names for it, those first that define names for others of them."""
    names = _Names()
    for other in referenced:
        names.parse(_json(other), "")
    node = names.parse(_json(text), "")
    if not isinstance(node, Record):
        raise SchemaError("an Avro schema for a topic's values is a record at its top level")
    if not node.fields:
        raise SchemaError("an Avro schema for a topic's values has at least one field")
    return node


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaError(f"the Avro schema is not JSON: {error}") from None


class _Names:
    """Reads types from the top down, and knows the names that were defined on the way."""

    def __init__(self) -> None:
        self._defined: dict[str, Node | None] = {}

    def parse(self, raw: Any, namespace: str) -> Node:
        match raw:
            case str():
                return self._named(raw, namespace)
            case list():
                return _union(tuple(self.parse(branch, namespace) for branch in raw))
            case {"type": str(kind)}:
                return self._complex(kind, raw, namespace)
            case {"type": inner}:
                return self.parse(inner, namespace)
        raise SchemaError(f"an Avro schema has no type {str(raw)[:80]!r}")

    def _named(self, name: str, namespace: str) -> Node:
        if name in _PRIMITIVES:
            return Primitive(name, _PRIMITIVES[name])
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._defined:
            raise SchemaError(f"the Avro schema names a type {name!r} that it does not define")
        node = self._defined[full]
        if node is None:
            raise SchemaError(
                f"the Avro type {full!r} contains itself: it has no end, and so no columns"
            )
        return node

    def _complex(self, kind: str, raw: dict[str, Any], namespace: str) -> Node:
        match kind:
            case "array":
                element = self.parse(_part(raw, "items"), namespace)
                return Items(element, pa.list_(pa.field("element", element.column)))
            case "map":
                value = self.parse(_part(raw, "values"), namespace)
                return Entries(value, pa.map_(pa.string(), value.column))
            case "record" | "error":
                return self._record(raw, namespace)
            case "enum":
                symbols = tuple(_part(raw, "symbols"))
                return self._define(raw, namespace, Enum(symbols, raw.get("default"), pa.string()))
            case "fixed":
                size = int(_part(raw, "size"))
                column = _decimal(raw) if raw.get("logicalType") == "decimal" else pa.binary()
                return self._define(raw, namespace, Fixed(size, column))
            case _ if kind in _PRIMITIVES:
                return _primitive(kind, raw)
            case _:
                return self._named(kind, namespace)

    def _record(self, raw: dict[str, Any], namespace: str) -> Node:
        full, inner = _full_name(raw, namespace)
        self._defined[full] = None
        fields = tuple(
            Member(
                str(_part(field, "name")),
                self.parse(_part(field, "type"), inner),
                tuple(field.get("aliases", ())),
                "default" in field,
                field.get("default"),
            )
            for field in _part(raw, "fields")
        )
        column = pa.struct([pa.field(field.name, field.node.column) for field in fields])
        return self._define(raw, namespace, Record(fields, column))

    def _define(self, raw: dict[str, Any], namespace: str, node: Node) -> Node:
        full, _ = _full_name(raw, namespace)
        self._defined[full] = node
        return node


def _full_name(raw: dict[str, Any], namespace: str) -> tuple[str, str]:
    """The type's full name, and the namespace of what is inside of it."""
    name = str(_part(raw, "name"))
    if "." in name:
        return name, name.rpartition(".")[0]
    namespace = raw.get("namespace", namespace)
    return (f"{namespace}.{name}" if namespace else name), namespace


def _part(raw: dict[str, Any], name: str) -> Any:
    if name not in raw:
        raise SchemaError(f"the Avro schema lacks {name!r} in {str(raw)[:80]}")
    return raw[name]


def _primitive(name: str, raw: dict[str, Any]) -> Primitive:
    logical = raw.get("logicalType")
    if name == "bytes" and logical == "decimal":
        return Primitive(name, _decimal(raw), "decimal")
    column = _LOGICAL.get((name, str(logical)))
    if column is None:  # also a logical type that nobody knows: then it is the plain one
        return Primitive(name, _PRIMITIVES[name])
    return Primitive(name, column, str(logical))


def _decimal(raw: dict[str, Any]) -> pa.DataType:
    precision, scale = int(_part(raw, "precision")), int(raw.get("scale", 0))
    if not 1 <= precision <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        raise SchemaError(
            f"Spark has no decimal({precision}, {scale}): it has up to {_DECIMAL_DIGITS_MAX} digits"
        )
    return pa.decimal128(precision, scale)


def _union(branches: tuple[Node, ...]) -> Union:
    members = [branch for branch in branches if not is_null(branch)]
    columns = [member.column for member in members]
    if not members:
        return Union(branches, pa.string())
    if len(members) == 1:
        return Union(branches, columns[0])
    if set(columns) == {pa.int32(), pa.int64()}:
        return Union(branches, pa.int64())
    if set(columns) == {pa.float32(), pa.float64()}:
        return Union(branches, pa.float64())
    return Union(
        branches, pa.struct([pa.field(f"member{i}", kind) for i, kind in enumerate(columns)])
    )
