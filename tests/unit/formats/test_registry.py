"""Schemas come from a registry: by id, by subject, with references, and late."""

from __future__ import annotations

import base64
import io
import json
import pickle
import socket
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.formats import (
    Registry,
    RegistryError,
    RegistryOptions,
    UnknownSchemaError,
    open_format,
    pinned,
    value_options,
)
from tests.unit.formats.registry_server import RegistryServer, registry_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def avro(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": list(fields)})


V1 = avro({"name": "a", "type": "int"})
V2 = avro({"name": "b", "type": "string", "default": "new"}, {"name": "a", "type": "long"})


def value(number: int, schema: str, row: dict[str, Any]) -> bytes:
    buffer = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
    buffer.seek(5)
    fastavro.schemaless_writer(buffer, json.loads(schema), row)
    return buffer.getvalue()


def test_an_id_is_asked_for_once(server: RegistryServer) -> None:
    server.add(7, V1)
    registry = Registry(RegistryOptions(server.url + "/"))
    assert registry.by_id(7) == registry.by_id(7)
    assert registry.by_id(7).kind == "AVRO"
    assert server.asked == ["/schemas/ids/7"]


def test_an_unknown_id_is_named_and_not_asked_for_again_at_once(server: RegistryServer) -> None:
    registry = Registry(RegistryOptions(server.url))
    for _ in range(2):
        with pytest.raises(UnknownSchemaError, match=rf"{server.url} has no schema id 9.*register"):
            registry.by_id(9)
    assert len(server.asked) == 1


def test_a_registry_that_is_broken_for_a_while_is_waited_for(server: RegistryServer) -> None:
    server.add(7, V1)
    server.broken = 2
    assert Registry(RegistryOptions(server.url)).by_id(7).text == V1
    assert len(server.asked) == 3


def test_a_registry_that_is_gone_is_named_without_its_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = RegistryOptions(f"http://me:secret@127.0.0.1:{port}", deadline_seconds=0.3)
    with pytest.raises(RegistryError, match=f"schema id 7.*http://127.0.0.1:{port}") as caught:
        Registry(options).by_id(7)
    assert "secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert "secret" not in repr(RegistryOptions("http://r", "me:secret"))


@pytest.mark.parametrize("inside", [True, False])
def test_who_asks_is_told(server: RegistryServer, inside: bool) -> None:
    server.add(7, V1)
    if inside:
        options = RegistryOptions(server.url.replace("//", "//me:p%40ss@"))
    else:
        options = RegistryOptions(server.url, "me:p@ss")
    Registry(options).by_id(7)
    assert server.authorizations == ["Basic " + base64.b64encode(b"me:p@ss").decode()]


def test_a_refusal_names_the_option(server: RegistryServer) -> None:
    server.status = 401
    with pytest.raises(UnknownSchemaError, match=r"schema\.registry\.basic\.auth\.user\.info"):
        Registry(RegistryOptions(server.url)).by_id(7)


@pytest.mark.parametrize("url", ["registry:8081", "file:///etc/passwd", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"schema\.registry\.url must be an address"):
        Registry(RegistryOptions(url))


def test_references_come_before_what_refers_to_them(server: RegistryServer) -> None:
    color = '{"type": "enum", "name": "color", "symbols": ["R", "G"]}'
    reference = {"name": "color", "subject": "color", "version": 3}
    server.answers["/subjects/color/versions/3"] = {"schema": color}
    server.add(1, avro({"name": "a", "type": "color"}), references=[reference])
    server.add_latest("t-value", 1)
    options = value_options({"format": "avro", "schema.registry.url": server.url})
    registry = Registry(RegistryOptions(server.url))
    format_ = open_format(pinned(options, registry, "t"), registry)
    decoded = format_.decode(pa.array([b"\0\0\0\0\1\2"], pa.binary()))
    assert decoded.batch.to_pylist() == [{"a": "G"}]


def test_schemas_that_change_in_mid_stream_have_the_same_columns(server: RegistryServer) -> None:
    server.add(1, V1)
    server.add(2, V2)
    server.add(3, avro({"name": "c", "type": "int"}))
    server.add(4, "{}", "JSON")
    server.add_latest("t-value", 2)
    registry = Registry(RegistryOptions(server.url))
    options = value_options({"format": "avro", "schema.registry.url": server.url})
    format_ = open_format(pinned(options, registry, "t"), registry)
    values = [
        value(1, V1, {"a": 1}),
        value(2, V2, {"a": 2**40, "b": "x"}),
        None,
        b"\1\0\0\0\1\2",
        value(1, V1, {"a": 3}),
        b"\0\0\0\0\3\2",
        b"\0\0\0\0\x63\2",
        b"\0\0\0",
        value(1, V1, {"a": 4}) + b"!",
        b"\0\0\0\0\4\2",
        value(2, V2, {"a": 5, "b": "y"}),
    ]
    decoded = format_.decode(pa.array(values, pa.binary()))
    nothing = {"b": None, "a": None}
    assert decoded.batch.to_pylist() == [
        {"b": "new", "a": 1},
        {"b": "x", "a": 2**40},
        nothing,
        nothing,
        {"b": "new", "a": 3},
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        {"b": "y", "a": 5},
    ]
    assert decoded.failed == (3, 5, 6, 7, 8, 9)
    assert "does not begin with a schema's id" in decoded.reasons[0]
    assert "schema id 3: the writer's Avro schema has no field 'a'" in decoded.reasons[1]
    assert f"schema id 99: the schema registry at {server.url}" in decoded.reasons[2]
    assert "it is JSON" in decoded.reasons[5]
    again = format_.decode(pa.array(values[:2], pa.binary()))
    assert again.batch.to_pylist() == [{"b": "new", "a": 1}, {"b": "x", "a": 2**40}]


def test_a_registry_that_is_down_is_no_fault_of_the_values(server: RegistryServer) -> None:
    server.add(1, V1)
    server.add_latest("t-value", 1)
    registry = Registry(RegistryOptions(server.url, deadline_seconds=0.2))
    options = value_options({"format": "avro", "schema.registry.url": server.url})
    format_ = open_format(pinned(options, registry, "t"), registry)
    server.status = 503
    with pytest.raises(RegistryError, match="schema id 2"):
        format_.decode(pa.array([b"\0\0\0\0\2\2"], pa.binary()))


def test_the_subjects_newest_schema_must_be_of_the_format(server: RegistryServer) -> None:
    server.add(1, 'syntax = "proto3"; message M { int32 a = 1; }', "PROTOBUF")
    server.add_latest("mine", 1)
    options = value_options(
        {"format": "avro", "schema.registry.url": server.url, "subject": "mine"}
    )
    with pytest.raises(ConfigurationError, match="'mine' is PROTOBUF; set the option format"):
        pinned(options, Registry(RegistryOptions(server.url)), "t")
