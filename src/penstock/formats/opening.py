"""From pinned options to a format."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from penstock.ddl import schema_from_ddl
from penstock.errors import LocalProtocolError
from penstock.formats.avro_format import AvroFormat
from penstock.formats.avro_schema import parse_schema
from penstock.formats.debezium import DebeziumFormat
from penstock.formats.errors import SchemaError
from penstock.formats.json_format import JsonFormat
from penstock.formats.options import Encoding, ValueOptions
from penstock.formats.protobuf_format import IndexedProtobufFormat, ProtobufFormat
from penstock.formats.protobuf_schema import message_of, message_path
from penstock.formats.registered import RegisteredFormat

if TYPE_CHECKING:
    from penstock.formats.decoded import Format
    from penstock.formats.registry import RegisteredSchema, Registry


def open_format(options: ValueOptions, registry: Registry | None = None) -> Format:
    """The format of a topic's values. With a registry, values begin with their schema's id."""
    if not options.schema:
        raise LocalProtocolError("options have no schema: `pinned` gets it from the registry")
    match options.encoding:
        case Encoding.RAW:
            raise LocalProtocolError("raw values have no format: they stay as they are")
        case Encoding.JSON:
            return JsonFormat(schema_from_ddl(options.schema))
        case Encoding.DEBEZIUM:
            return DebeziumFormat(schema_from_ddl(options.schema))
        case Encoding.AVRO:
            return _avro(options, registry)
        case Encoding.PROTOBUF:
            return _protobuf(options, registry)
        case _:
            assert_never(options.encoding)


def _avro(options: ValueOptions, registry: Registry | None) -> Format:
    reader = parse_schema(options.schema, (text for _, text in options.referenced))
    if registry is None:
        return AvroFormat(reader)

    def open_schema(number: int) -> Format:
        found = _found(registry, number, options)
        writer = parse_schema(found.text, (text for _, text in found.referenced))
        return AvroFormat(reader, writer)

    return RegisteredFormat(reader.schema, open_schema)


def _protobuf(options: ValueOptions, registry: Registry | None) -> Format:
    reader = message_of(options.schema, options.message, options.referenced)
    messages = ProtobufFormat(reader)
    if registry is None:
        return messages

    def open_schema(number: int) -> Format:
        found = _found(registry, number, options)
        writer = message_of(found.text, reader.full_name, found.referenced)
        return IndexedProtobufFormat(messages, message_path(writer), reader.full_name)

    return RegisteredFormat(messages.schema, open_schema)


def _found(registry: Registry, number: int, options: ValueOptions) -> RegisteredSchema:
    found = registry.by_id(number)
    if found.kind != options.encoding.value.upper():
        raise SchemaError(f"it is {found.kind}, and the format is {options.encoding.value}")
    return found
