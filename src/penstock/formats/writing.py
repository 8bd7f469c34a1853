"""The options of values that are written: what a user of Spark's sink says, checked.

`format` is json, avro or protobuf. JSON needs nothing else. Avro goes by `schema`, or by a schema
derived from the columns; Protobuf by `schema`. With a registry the schema is registered under the
topic's subject, or is that of `schema.id`, and values begin with its id. The registry is asked
where a batch is planned: tasks get what they need without its address and its secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

import pyarrow as pa

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.formats.avro_columns import avro_schema_of
from penstock.formats.avro_encode import AvroEncoder
from penstock.formats.avro_schema import parse_schema
from penstock.formats.encoding import joined
from penstock.formats.json_encode import JsonEncoder
from penstock.formats.options import (
    FILES,
    URL,
    USER_INFO,
    Encoding,
    chosen_encoding,
    registry_options,
)
from penstock.formats.protobuf_encode import ProtobufEncoder
from penstock.formats.protobuf_format import index_prefixes
from penstock.formats.protobuf_schema import message_of, message_path
from penstock.formats.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.formats.encoding import ValueEncoder
    from penstock.formats.registry import RegistryOptions

SCHEMA_ID: Final = "schema.id"
NAMES: Final = frozenset(
    {"format", "schema", SCHEMA_ID, "subject", "message", URL, USER_INFO, *FILES}
)
"""All options that `written_options` reads."""
_ID_MAX: Final = (1 << 31) - 1
_REGISTERED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class WrittenOptions:
    """How columns become values, as the user has it."""

    encoding: Encoding
    schema: str = ""
    schema_id: int | None = None
    subject: str = ""
    message: str = ""
    registry: RegistryOptions | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """All that is needed to write values: the schema is settled, and its id is known."""

    encoding: Encoding
    schema: str = ""
    referenced: tuple[tuple[str, str], ...] = ()
    message: str = ""
    schema_id: int | None = None

    def encoder(self, columns: pa.Schema) -> ValueEncoder:
        """Raises `SchemaError` for columns that the values cannot hold."""
        match self.encoding:
            case Encoding.RAW | Encoding.DEBEZIUM:
                raise LocalProtocolError(f"nobody encodes values as {self.encoding.value}")
            case Encoding.JSON:
                return JsonEncoder(columns)
            case Encoding.AVRO:
                record = parse_schema(self.schema, (text for _, text in self.referenced))
                return _prefixed(AvroEncoder(columns, record), self.schema_id, b"")
            case Encoding.PROTOBUF:
                descriptor = message_of(self.schema, self.message, self.referenced)
                place = index_prefixes(message_path(descriptor))[0]
                return _prefixed(ProtobufEncoder(columns, descriptor), self.schema_id, place)
            case _:
                assert_never(self.encoding)


def written_options(given: Mapping[str, str]) -> WrittenOptions | None:
    """Reads the options by their names in lower case. None: values stay as they are."""
    encoding = chosen_encoding(given)
    if encoding is Encoding.RAW:
        for name in sorted(given.keys() - {"format"}):
            raise ConfigurationError(
                f"option {name} needs a format: json, avro or protobuf; without one the column "
                "'value' is written as it is"
            )
        return None
    if encoding is Encoding.DEBEZIUM:
        raise ConfigurationError(
            "format debezium is for reading: its envelopes are written by connectors of databases. "
            "Write json, avro or protobuf"
        )
    if encoding is Encoding.JSON:
        for name in sorted(given.keys() - {"format"}):
            raise ConfigurationError(
                f"option {name} is for avro and protobuf; format json goes by the frame's columns"
            )
    found = WrittenOptions(
        encoding,
        given.get("schema", ""),
        _schema_id(given),
        given.get("subject", ""),
        given.get("message", ""),
        registry_options(given),
    )
    _check(found, given)
    return found


def settled(options: WrittenOptions, columns: pa.Schema, topic: str) -> Written:
    """The options with a schema in them, registered if there is a registry."""
    schema = options.schema
    if not schema and options.schema_id is None and options.encoding is Encoding.AVRO:
        schema = avro_schema_of(columns)
    found = Written(options.encoding, schema, (), options.message)
    if options.registry is None:
        return found
    if options.schema_id is None:
        found.encoder(columns)  # what does not fit the columns is not registered
        number = _registered(options, options.subject or f"{topic}-value", schema)
        return Written(options.encoding, schema, (), options.message, number)
    given = Registry(options.registry).by_id(options.schema_id)
    if given.kind != options.encoding.value.upper():
        raise ConfigurationError(
            f"schema id {options.schema_id} of the registry is {given.kind}; set the option format "
            f"to {given.kind.lower()}, or name another schema.id"
        )
    return Written(
        options.encoding, given.text, given.referenced, options.message, options.schema_id
    )


_REGISTERED: Final[dict[tuple[RegistryOptions, str, str], int]] = {}
"""Spark plans every batch of a query anew, in one process."""


def _registered(options: WrittenOptions, subject: str, schema: str) -> int:
    if options.registry is None:
        raise LocalProtocolError("there is no registry to register a schema with")
    key = options.registry, subject, schema
    if key not in _REGISTERED:
        kind = options.encoding.value.upper()
        number = Registry(options.registry).register(subject, kind, schema)
        if len(_REGISTERED) >= _REGISTERED_MAX:
            _REGISTERED.clear()
        _REGISTERED[key] = number
    return _REGISTERED[key]


class _Prefixed:
    """Values behind their schema's id, as Confluent's serializers write them."""

    def __init__(self, encoder: ValueEncoder, prefix: bytes) -> None:
        self._encoder = encoder
        self._prefix = pa.scalar(prefix, pa.binary())

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        values: pa.BinaryArray = joined(self._prefix, self._encoder.encode(rows))
        return values


def _prefixed(encoder: ValueEncoder, schema_id: int | None, place: bytes) -> ValueEncoder:
    if schema_id is None:
        return encoder
    return _Prefixed(encoder, b"\0" + schema_id.to_bytes(4, "big") + place)


def _schema_id(given: Mapping[str, str]) -> int | None:
    text = given.get(SCHEMA_ID)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > _ID_MAX:
        raise ConfigurationError(f"option {SCHEMA_ID} is a number of the registry, not {text!r}")
    return int(text)


def _check(found: WrittenOptions, given: Mapping[str, str]) -> None:
    if found.message and found.encoding is not Encoding.PROTOBUF:
        raise ConfigurationError("option message is for format protobuf only")
    if found.schema and found.schema_id is not None:
        raise ConfigurationError(
            f"options schema and {SCHEMA_ID} both say which schema values have: leave one out"
        )
    if found.registry is None:
        for name in sorted(given.keys() & {USER_INFO, "subject", SCHEMA_ID, *FILES}):
            raise ConfigurationError(f"option {name} needs {URL}")
    elif found.subject and found.schema_id is not None:
        raise ConfigurationError(
            f"option subject says where a schema is registered, and that of {SCHEMA_ID} is there "
            "already: leave one out"
        )
    is_known = bool(found.schema) or found.schema_id is not None
    if found.encoding is Encoding.PROTOBUF and not is_known:
        raise ConfigurationError(
            f"format protobuf needs the option schema (the .proto text), or {SCHEMA_ID} with {URL}"
        )
