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

from penstock.formats import (
    Registry,
    RegistryOptions,
    UnknownSchemaError,
    open_format,
    pinned,
    value_options,
)
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


def test_a_subject_that_is_not_there(url: str) -> None:
    with pytest.raises(UnknownSchemaError, match="no subject 'nobody-value'"):
        Registry(RegistryOptions(url)).latest("nobody-value")
