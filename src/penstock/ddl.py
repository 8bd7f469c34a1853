"""Schemas as Spark DDL text, and back: `id BIGINT NOT NULL, tags ARRAY<STRING>`.

The types are those that Spark and Arrow both have. DDL is what a collection stores, because a
person can read it; Arrow is what the code works with.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_SYNONYMS: Final = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_NAMES: Final = {kind: name for name, kind in _SIMPLE.items()}
_TOKEN: Final = re.compile(
    r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|[A-Za-z_][A-Za-z_0-9]*|\d+|[<>(),:])"
)
_PLAIN_NAME: Final = r"[A-Za-z_][A-Za-z_0-9]*"
_DECIMAL_DIGITS_MAX: Final = 38


class DdlError(ConfigurationError):
    """Schema text cannot be understood, or names a type that Spark or Arrow lacks."""


def schema_from_ddl(text: str) -> pa.Schema:
    """Reads Spark DDL text. The error quotes the place where reading stopped."""
    parser = _Parser(text)
    fields = list(parser.fields(end=None))
    # Spark does not tell upper case from lower in names.
    names = [field.name.lower() for field in fields]
    for field in fields:
        if names.count(field.name.lower()) > 1:
            raise DdlError(f"column {field.name!r} appears twice in {text!r}")
    if not fields:
        raise DdlError("a schema needs at least one column, for example: id BIGINT NOT NULL")
    return pa.schema(fields)


def schema_to_ddl(schema: pa.Schema) -> str:
    """Writes a schema as Spark DDL text; `schema_from_ddl` reads it back the same."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """The same schema with the spellings that DDL has: `large_string` is just a string here."""
    return schema_from_ddl(schema_to_ddl(schema))


def _field_ddl(field: pa.Field[Any], separator: str) -> str:
    name = field.name
    if not re.fullmatch(_PLAIN_NAME, name):
        name = "`" + name.replace("`", "``") + "`"
    suffix = "" if field.nullable else " NOT NULL"
    return f"{name}{separator}{_type_ddl(field.type, field.name)}{suffix}"


def _type_ddl(kind: pa.DataType, column: str) -> str:
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "STRING"
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "BINARY"
    if isinstance(kind, pa.DictionaryType):
        return _type_ddl(kind.value_type, column)
    if isinstance(kind, pa.TimestampType):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"
    if isinstance(kind, pa.Decimal128Type):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if isinstance(kind, pa.MapType):
        return f"MAP<{_type_ddl(kind.key_type, column)},{_type_ddl(kind.item_type, column)}>"
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return f"ARRAY<{_type_ddl(kind.value_type, column)}>"
    if isinstance(kind, pa.StructType):
        return f"STRUCT<{', '.join(_field_ddl(field, ': ') for field in kind)}>"
    raise DdlError(
        f"column {column!r} has type {kind}, which Spark does not have; "
        f"use one of {', '.join(_SIMPLE)}, DECIMAL, ARRAY, MAP or STRUCT"
    )


class _Parser:
    """Reads DDL from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise DdlError(f"cannot read the schema at {text[position:].strip()[:20]!r}")
            self._tokens.append((match.group(1), match.start(1)))
            position = match.end()
        self._next = 0

    def fields(self, end: str | None) -> Iterator[pa.Field[Any]]:
        """Fields up to the token `end` (or the end of the text), separated by commas."""
        while self._peek() != end:
            name = self._take("a column name")
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not re.fullmatch(_PLAIN_NAME, name):
                raise DdlError(f"expected a column name, found {name!r} in {self._text!r}")
            if self._peek() == ":":
                self._take(":")
            kind = self._type()
            nullable = True
            if self._word() == "NOT":
                self._take("NOT")
                self._expect("NULL")
                nullable = False
            if self._word() == "COMMENT":
                self._take("COMMENT")
                self._take("a quoted comment")
            yield pa.field(name, kind, nullable=nullable)
            if self._peek() == end:
                return
            self._expect(",")

    def _type(self) -> pa.DataType:
        word = self._take("a type").upper()
        word = _SYNONYMS.get(word, word)
        if word in ("VARCHAR", "CHAR"):
            self._arguments()
            return pa.string()
        if word in ("DECIMAL", "DEC", "NUMERIC"):
            precision, scale = ([*self._arguments(), 10, 0])[:2] if self._peek() == "(" else (10, 0)
            if not 1 <= precision <= _DECIMAL_DIGITS_MAX or scale > precision:
                raise DdlError(f"DECIMAL({precision},{scale}) is not possible in {self._text!r}")
            return pa.decimal128(precision, scale)
        if word == "ARRAY":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if word == "MAP":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(key, value)
        if word == "STRUCT":
            self._expect("<")
            struct = pa.struct(list(self.fields(end=">")))
            self._expect(">")
            return struct
        if word in _SIMPLE:
            return _SIMPLE[word]
        raise DdlError(f"unknown type {word} in {self._text!r}; known: {', '.join(_SIMPLE)}")

    def _arguments(self) -> list[int]:
        """The numbers of `(10, 2)`; a DECIMAL(10) has scale 0."""
        self._expect("(")
        numbers = []
        while True:
            token = self._take("a number")
            if not token.isdigit():
                raise DdlError(f"expected a number, found {token!r} in {self._text!r}")
            numbers.append(int(token))
            if self._peek() != ",":
                break
            self._expect(",")
        self._expect(")")
        return numbers if len(numbers) > 1 else [*numbers, 0]

    def _peek(self) -> str | None:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else None

    def _word(self) -> str:
        return (self._peek() or "").upper()

    def _take(self, wanted: str) -> str:
        token = self._peek()
        if token is None:
            raise DdlError(f"the schema ends where {wanted} should be: {self._text!r}")
        self._next += 1
        return token

    def _expect(self, wanted: str) -> None:
        token = self._take(wanted)
        if token.upper() != wanted:
            position = self._tokens[self._next - 1][1]
            raise DdlError(f"expected {wanted!r}, found {self._text[position:][:20]!r}")
