"""Formats with a real schema registry."""

from __future__ import annotations

import io
import json
import urllib.request
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import message_factory

from penstock.errors import ConfigurationError
from penstock.formats import (
    Registry,
    RegistryOptions,
    SchemaError,
    UnknownSchemaError,
    open_format,
    pinned,
    settled,
    value_options,
    written_options,
)
from penstock.formats.errors import RefusedSchemaError
from penstock.formats.protobuf_schema import message_of
from tests.apicurio import NoRegistryError, apicurio

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with apicurio() as running:
            yield running
    except NoRegistryError as error:
        pytest.skip(str(error))


def register(url: str, subject: str, schema: str, kind: str = "AVRO", **more: Any) -> int:
    body = json.dumps({"schema": schema, "schemaType": kind, **more}).encode()
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions",
        body,
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        number: int = json.load(response)["id"]
    return number


def avro(number: int, schema: str, row: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, json.loads(schema), row)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def test_an_avro_schema_that_grows(url: str) -> None:
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    old = json.dumps({"type": "record", "name": "order", "fields": fields})
    fields = [*fields, {"name": "note", "type": ["null", "string"], "default": None}]
    new = json.dumps({"type": "record", "name": "order", "fields": fields})
    first = register(url, "orders-value", old)
    second = register(url, "orders-value", new)
    assert first != second
    registry = Registry(RegistryOptions(url))
    options = value_options({"format": "avro", "schema.registry.url": url})
    format_ = open_format(pinned(options, registry, "orders"), registry)
    values = [
        avro(first, old, {"id": 1}),
        avro(second, new, {"id": 2, "note": "x"}),
        None,
        b"\0\xff\xff\xff\x7f",
    ]
    decoded = format_.decode(pa.array(values, pa.binary()))
    assert decoded.batch.to_pylist() == [
        {"id": 1, "note": None},
        {"id": 2, "note": "x"},
        {"id": None, "note": None},
        {"id": None, "note": None},
    ]
    assert decoded.failed == (3,)
    assert f"schema id {0xFFFFFF7F}" in decoded.reasons[0]


def test_protobuf_with_a_reference(url: str) -> None:
    line = 'syntax = "proto3"; package shop; message Line { int32 number = 1; }'
    order = (
        'syntax = "proto3"; package shop; import "line.proto"; '
        "message Other { int32 x = 1; } message Order { int64 id = 1; Line line = 2; }"
    )
    register(url, "line", line, "PROTOBUF")
    reference = {"name": "line.proto", "subject": "line", "version": 1}
    number = register(url, "shop-value", order, "PROTOBUF", references=[reference])
    registry = Registry(RegistryOptions(url))
    options = value_options({"format": "protobuf", "message": "Order", "schema.registry.url": url})
    format_ = open_format(pinned(options, registry, "shop"), registry)
    message = message_of(order, "shop.Order", [("line.proto", line)])
    value: Any = message_factory.GetMessageClass(message)(id=5)
    value.line.number = 7
    raw = b"\0" + number.to_bytes(4, "big") + b"\2\2" + value.SerializeToString()
    decoded = format_.decode(pa.array([raw], pa.binary()))
    assert decoded.reasons == ()
    assert decoded.batch.to_pylist() == [{"id": 5, "line": {"number": 7}}]


def written_by(url: str, rows: pa.RecordBatch, topic: str, **given: str) -> list[bytes]:
    """The rows as a sink of this topic writes them."""
    options = written_options({"schema.registry.url": url, **given})
    assert options is not None
    encoder = settled(options, rows.schema, topic).encoder(rows.schema)
    return [bytes(each or b"") for each in encoder.encode(rows).to_pylist()]


def test_what_is_written_is_registered_and_read_back(url: str) -> None:
    registry = Registry(RegistryOptions(url))
    rows = pa.record_batch([pa.array([1, 2]), pa.array(["x", None])], names=["id", "note"])
    values = written_by(url, rows, "made", format="avro")
    assert written_by(url, rows, "made", format="avro") == values
    found = registry.latest("made-value")
    assert found.kind == "AVRO"
    assert all(value[:5] == b"\0" + found.number.to_bytes(4, "big") for value in values)
    columns: dict[str, Any] = {"id": [3], "note": ["y"], "paid": [True]}
    more = pa.record_batch(columns)
    values += written_by(url, more, "made", format="avro")
    assert registry.latest("made-value").number != found.number, "a version of the subject"
    read = value_options({"format": "avro", "schema.registry.url": url})
    format_ = open_format(pinned(read, registry, "made"), registry)
    assert format_.decode(pa.array(values)).batch.to_pylist() == [
        {"id": 1, "note": "x", "paid": None},
        {"id": 2, "note": None, "paid": None},
        {"id": 3, "note": "y", "paid": True},
    ]


def test_protobuf_is_written_with_its_message_and_by_a_given_id(url: str) -> None:
    registry = Registry(RegistryOptions(url))
    schema = (
        'syntax = "proto3"; package shop; message Other { int32 x = 1; } '
        "message Order { message Line { int32 number = 1; } int64 id = 1; }"
    )
    rows = pa.record_batch({"number": pa.array([7], pa.int32())})
    given = {"format": "protobuf", "message": "shop.Order.Line"}
    values = written_by(url, rows, "proto", schema=schema, subject="lines", **given)
    number = registry.latest("lines").number
    assert values == [b"\0" + number.to_bytes(4, "big") + b"\4\2\0" + b"\x08\x07"]
    first = pa.record_batch({"x": pa.array([5], pa.int32())})
    again = {"format": "protobuf", "schema.id": str(number)}
    assert written_by(url, first, "proto", **again) == [values[0][:5] + b"\0" + b"\x08\x05"]
    options = value_options({**given, "subject": "lines", "schema.registry.url": url})
    format_ = open_format(pinned(options, registry, "proto"), registry)
    assert format_.decode(pa.array(values)).batch.to_pylist() == [{"number": 7}]
    with pytest.raises(ConfigurationError, match="is PROTOBUF; set the option format to protobuf"):
        written_by(url, first, "proto", **{"format": "avro", "schema.id": str(number)})


def test_a_schema_that_the_subject_does_not_take_is_refused_with_its_words(url: str) -> None:
    written_by(url, pa.record_batch({"id": [1]}), "strict", format="avro")
    body = json.dumps({"compatibility": "FULL"}).encode()
    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{url}/config/strict-value", body, kind, method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass
    other = pa.record_batch({"id": ["text"]})
    with pytest.raises(RefusedSchemaError, match="does not take the schema for subject 'strict-"):
        written_by(url, other, "strict", format="avro")
    with pytest.raises(SchemaError, match="'id' is string in the frame, and int64 in the schema"):
        written_by(url, other, "unseen", format="avro", schema=ID_SCHEMA)
    with pytest.raises(UnknownSchemaError, match="unseen"):
        Registry(RegistryOptions(url)).latest("unseen-value")


ID_SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})


def test_a_subject_that_is_not_there(url: str) -> None:
    with pytest.raises(UnknownSchemaError, match="no subject 'nobody-value'"):
        Registry(RegistryOptions(url)).latest("nobody-value")
