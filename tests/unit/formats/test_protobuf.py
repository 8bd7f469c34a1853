"""Protobuf values become columns: held against google.protobuf."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats import (
    Registry,
    RegistryOptions,
    SchemaError,
    open_format,
    pinned,
    value_options,
)
from penstock.formats.protobuf_format import ProtobufFormat
from penstock.formats.protobuf_schema import message_of, message_path
from tests.unit.formats.registry_server import RegistryServer, registry_server

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOP = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
enum Color { RED = 0; GREEN = 1; }
message First { int32 x = 1; }
message Order {
  message Line { int32 number = 1; optional string what = 2; }
  int64 id = 1; string customer = 2; optional int32 quantity = 3; Color color = 4;
  Line line = 5; repeated string tags = 6; map<string, int64> counts = 7; bytes raw = 8;
  google.protobuf.Timestamp at = 9; uint64 big = 10; uint32 wide = 11; repeated Line lines = 12;
  oneof either { string text = 13; int32 number = 14; } google.protobuf.StringValue wrapped = 15;
  google.protobuf.Duration lasted = 16; double amount = 17; bool paid = 18; sint64 signed = 19;
}
"""
ORDER = message_of(SHOP, "shop.Order")
Order: Any = message_factory.GetMessageClass(ORDER)
FORMAT = ProtobufFormat(ORDER)


def test_every_kind_of_field() -> None:
    order = Order(id=1, customer="é", color=1, raw=b"\xff", big=2**64 - 1, wide=2**32 - 1, text="t")
    order.line.number = 4
    order.tags.append("x")
    order.counts["k"] = 5
    order.at.FromMicroseconds(1_577_934_245_678_901)
    order.lines.add(number=1, what="w")
    order.wrapped.value = "v"
    order.lasted.seconds = 5
    decoded = FORMAT.decode(pa.array([order.SerializeToString(), None], pa.binary()))
    decoded.batch.validate(full=True)
    assert decoded.failed == ()
    first, second = decoded.batch.to_pylist()
    assert first == {
        "id": 1, "customer": "é", "quantity": None, "color": "GREEN",
        "line": {"number": 4, "what": None}, "tags": ["x"], "counts": [("k", 5)], "raw": b"\xff",
        "at": datetime.datetime(2020, 1, 2, 3, 4, 5, 678901, datetime.UTC),
        "big": Decimal(2**64 - 1), "wide": 2**32 - 1, "lines": [{"number": 1, "what": "w"}],
        "text": "t", "number": None, "wrapped": "v", "lasted": 5_000_000, "amount": 0.0,
        "paid": False, "signed": 0,
    }  # fmt: skip
    assert set(second.values()) == {None}


def test_columns_are_those_that_spark_has() -> None:
    from penstock.ddl import normal_schema  # noqa: PLC0415

    assert normal_schema(FORMAT.schema) == FORMAT.schema


orders = st.builds(
    Order,
    id=st.integers(-(2**63), 2**63 - 1),
    customer=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    quantity=st.none() | st.integers(-(2**31), 2**31 - 1),
    tags=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=3),
    raw=st.binary(max_size=5),
    signed=st.integers(-(2**63), 2**63 - 1),
    paid=st.booleans(),
    amount=st.floats(allow_nan=False),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(orders, min_size=1, max_size=8), st.data())
def test_bad_rows_fail_and_the_others_are_what_was_written(
    rows: list[Any], data: st.DataObject
) -> None:
    values = [order.SerializeToString() for order in rows]
    bad = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    for row in bad:
        values[row] += b"\x12\x7fshort"
    decoded = FORMAT.decode(pa.array(values, pa.binary()))
    assert decoded.failed == tuple(sorted(bad))
    for row, found in enumerate(decoded.batch.to_pylist()):
        if row in bad:
            assert set(found.values()) == {None}
            continue
        for name in ("id", "customer", "raw", "signed", "paid", "amount"):
            assert found[name] == getattr(rows[row], name)
        assert found["tags"] == list(rows[row].tags)
        wanted = rows[row].quantity if rows[row].HasField("quantity") else None
        assert found["quantity"] == wanted


@settings(max_examples=200, deadline=None)
@given(orders, st.binary(max_size=12), st.data())
def test_any_bytes_are_a_row_or_a_failure(order: Any, raw: bytes, data: st.DataObject) -> None:
    value = bytearray(order.SerializeToString() + raw)
    if value:
        value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    good = order.SerializeToString()
    decoded = FORMAT.decode(pa.array([good, bytes(value), good], pa.binary()))
    found = decoded.batch
    assert set(decoded.failed) <= {1}
    assert found.slice(0, 1).equals(found.slice(2, 1))
    if not decoded.failed:
        return
    try:
        Order.FromString(bytes(value))
    except DecodeError:
        return
    assert decoded.reasons[0]  # ptars is stricter: then at least it says why


def test_a_schema_that_does_not_compile_says_where() -> None:
    with pytest.raises(SchemaError, match=r"does not compile: line:1:\d+"):
        message_of('syntax = "proto3"; message M { nothing a = 1; }')


def test_a_message_that_is_not_there() -> None:
    with pytest.raises(SchemaError, match="no message 'Nobody'; it has First, Order"):
        message_of(SHOP, "Nobody")


def test_a_reference_stays_inside() -> None:
    with pytest.raises(SchemaError, match="outside of it"):
        message_of(SHOP, "", [("../evil.proto", "")])


def test_where_a_message_is() -> None:
    assert message_path(message_of(SHOP)) == (0,)
    assert message_path(ORDER) == (1,)
    assert message_path(message_of(SHOP, "shop.Order.Line")) == (1, 0)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def test_messages_behind_ids_and_indexes(server: RegistryServer) -> None:
    server.add(1, SHOP, "PROTOBUF")
    server.add_latest("t-value", 1)
    options = value_options(
        {"format": "protobuf", "message": "Order", "schema.registry.url": server.url}
    )
    registry = Registry(RegistryOptions(server.url))
    format_ = open_format(pinned(options, registry, "t"), registry)
    order = Order(id=5).SerializeToString()
    prefix = b"\0\0\0\0\1"
    values = [prefix + b"\2\2" + order, prefix + b"\0" + order, None, prefix + b"\2\2\xff", order]
    decoded = format_.decode(pa.array(values, pa.binary()))
    assert decoded.batch.column("id").to_pylist() == [5, None, None, None, None]
    assert decoded.failed == (1, 3, 4)
    assert decoded.reasons[0] == "the value is not a shop.Order, but another message of its schema"


def test_the_first_message_has_two_spellings(server: RegistryServer) -> None:
    server.add(1, SHOP, "PROTOBUF")
    server.add_latest("t-value", 1)
    options = value_options({"format": "protobuf", "schema.registry.url": server.url})
    registry = Registry(RegistryOptions(server.url))
    format_ = open_format(pinned(options, registry, "t"), registry)
    values = [b"\0\0\0\0\1\0\x08\5", b"\0\0\0\0\1\2\0\x08\6"]
    decoded = format_.decode(pa.array(values, pa.binary()))
    assert decoded.batch.to_pylist() == [{"x": 5}, {"x": 6}]
