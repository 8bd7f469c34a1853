"""Columns become values that are read back as the same columns, by us and by others."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl import schema_from_ddl
from penstock.errors import ConfigurationError
from penstock.formats.avro_columns import avro_schema_of
from penstock.formats.avro_encode import AvroEncoder
from penstock.formats.avro_format import AvroFormat
from penstock.formats.avro_schema import parse_schema
from penstock.formats.errors import SchemaError, UnencodableRowError
from penstock.formats.json_encode import JsonEncoder
from penstock.formats.json_format import JsonFormat
from penstock.formats.protobuf_encode import ProtobufEncoder
from penstock.formats.protobuf_format import ProtobufFormat
from penstock.formats.protobuf_schema import message_of
from penstock.formats.registered import PREFIX_BYTES
from penstock.formats.writing import settled, written_options
from tests.unit.formats.columns import frames, same, values_of
from tests.unit.formats.test_protobuf import ORDER, SHOP, Order

AT = datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.UTC)
WHOLE = {
    "id": 7, "customer": "é", "quantity": 3, "color": "GREEN", "line": {"number": 4, "what": None},
    "tags": ["x"], "counts": [("k", 5)], "raw": b"\xff", "at": AT, "big": Decimal(2**64 - 1),
    "wide": 2**32 - 1, "lines": [{"number": 1, "what": "w"}], "text": "t", "number": None,
    "wrapped": "v", "lasted": 5_000_000, "amount": 0.5, "paid": True, "signed": -1,
}  # fmt: skip
COLUMNS = ProtobufFormat(ORDER).schema


@settings(max_examples=300, deadline=None)
@given(frames())
def test_json_is_read_back_as_it_was(rows: pa.RecordBatch) -> None:
    values = JsonEncoder(rows.schema).encode(rows)
    decoded = JsonFormat(rows.schema).decode(values)
    assert decoded.reasons == ()
    assert same(decoded.batch, rows)
    for value in values:
        json.loads(value.as_py().decode())


@settings(max_examples=300, deadline=None)
@given(frames())
def test_avro_is_read_back_as_it_was(rows: pa.RecordBatch) -> None:
    text = avro_schema_of(rows.schema)
    record = parse_schema(text)
    values = AvroEncoder(rows.schema, record).encode(rows)
    decoded = AvroFormat(record).decode(values)
    assert decoded.reasons == ()
    assert same(decoded.batch, rows)
    schema = fastavro.parse_schema(json.loads(text))
    for value in values.to_pylist():
        body = io.BytesIO(value or b"")
        fastavro.schemaless_reader(body, schema)
        assert not body.read(), "another reader needs all of it"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_protobuf_is_read_back_as_it_was(data: st.DataObject) -> None:
    """Of what Protobuf can hold: unset fields that have a default are read back as that."""
    chosen = data.draw(st.sets(st.sampled_from(COLUMNS.names), min_size=1))
    columns = pa.schema([field for field in COLUMNS if field.name in chosen - {"big", "wide"}])
    rows = []
    for _ in range(data.draw(st.integers(1, 4))):
        row = {field.name: data.draw(values_of(field.type)) for field in columns}
        row |= {"color": "GREEN"} if "color" in chosen else {}
        row |= {"tags": ["a", ""]} if "tags" in chosen else {}
        row |= {"lines": [{"number": 1, "what": None}, {}]} if "lines" in chosen else {}
        row |= {"counts": [("k", -5), ("", 0)]} if "counts" in chosen else {}
        if "text" in chosen:
            row["number"] = None
        rows.append(row)
    columns = pa.schema([field for field in COLUMNS if field.name in chosen])
    frame = pa.RecordBatch.from_pylist(rows, schema=columns)
    values = ProtobufEncoder(columns, ORDER).encode(frame.slice(len(rows) - 1))
    last = frame.slice(len(rows) - 1).to_pylist()[0]
    [read] = ProtobufFormat(ORDER).decode(values).batch.to_pylist()
    [unset] = ProtobufFormat(ORDER).decode(pa.array([b""], pa.binary())).batch.to_pylist()
    line = {"number": 0, "what": None}
    for name, value in unset.items():
        wanted = value if last.get(name) is None else last[name]
        if name in ("line", "lines") and wanted:
            parts = wanted if isinstance(wanted, list) else [wanted]
            parts = [{**line, **{k: v for k, v in each.items() if v is not None}} for each in parts]
            wanted = parts if isinstance(wanted, list) else parts[0]
        if name in ("amount",) and wanted != wanted:  # noqa: PLR0124 - NaN
            assert read[name] != read[name]
            continue
        assert read[name] == wanted, name


def test_other_protobuf_readers_see_every_kind_of_field() -> None:
    frame = pa.RecordBatch.from_pylist([WHOLE], schema=COLUMNS)
    [value] = ProtobufEncoder(COLUMNS, ORDER).encode(frame).to_pylist()
    order = Order.FromString(value)
    assert (order.id, order.customer, order.color, order.big) == (7, "é", 1, 2**64 - 1)
    assert (order.WhichOneof("either"), order.wrapped.value, order.lasted.seconds) == (
        "text",
        "v",
        5,
    )
    assert (order.at.ToMicroseconds(), order.signed) == (1_577_934_245_000_006, -1)
    assert [line.what for line in order.lines] == ["w"]
    assert ProtobufFormat(ORDER).decode(pa.array([value])).batch.to_pylist() == [WHOLE]


def json_of(ddl_type: pa.DataType, value: Any) -> str:
    column = pa.array([value], ddl_type)
    rows = pa.record_batch([column], names=["a"])
    return str(JsonEncoder(rows.schema).encode(rows)[0].as_py().decode())


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), 'q"\\\n\0é😀', '{"a":"q\\"\\\\\\n\\u0000é😀"}'),
        (pa.string(), None, "{}"),
        (pa.float64(), 1.0, '{"a":1.0}'),
        (pa.float64(), float("nan"), '{"a":"NaN"}'),
        (pa.float64(), float("-inf"), '{"a":"-Infinity"}'),
        (pa.binary(), b"hi", '{"a":"aGk="}'),
        (pa.date32(), datetime.date(1, 1, 1), '{"a":"0001-01-01"}'),
        (pa.timestamp("us", tz="UTC"), AT, '{"a":"2020-01-02T03:04:05.000006Z"}'),
        (pa.list_(pa.int32()), [1, None], '{"a":[1,null]}'),
        (pa.map_(pa.string(), pa.int32()), [('"', None)], '{"a":{"\\"":null}}'),
        (pa.struct([("b", pa.int8()), ("c", pa.bool_())]), {"b": None, "c": True},
         '{"a":{"c":true}}'),
    ],
)  # fmt: skip
def test_json_is_what_spark_writes(kind: pa.DataType, value: Any, text: str) -> None:
    assert json_of(kind, value) == text


def test_what_json_cannot_hold_is_refused() -> None:
    for kind in (pa.duration("us"), pa.map_(pa.int32(), pa.int32()), pa.time64("us"), pa.null()):
        with pytest.raises(SchemaError, match="cast"):
            JsonEncoder(pa.schema([pa.field("a", pa.list_(kind))]))
    twice = pa.struct([pa.field("b", pa.int32()), pa.field("b", pa.int32())])
    with pytest.raises(SchemaError, match="has a member twice"):
        JsonEncoder(pa.schema([pa.field("a", twice)]))
    late = pa.array([2**60], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.record_batch([late], names=["a"])
    with pytest.raises(UnencodableRowError, match="'a' cannot be written: its year"):
        JsonEncoder(rows.schema).encode(rows)
    odd = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    rows = pa.record_batch([odd], names=["a"])
    for encoder in (JsonEncoder(rows.schema), avro(rows.schema)):
        with pytest.raises(UnencodableRowError, match="it is not UTF-8"):
            encoder.encode(rows)


def avro(columns: pa.Schema) -> AvroEncoder:
    return AvroEncoder(columns, parse_schema(avro_schema_of(columns)))


GIVEN = {
    "type": "record", "name": "R", "fields": [
        {"name": "color", "type": {"type": "enum", "name": "C", "symbols": ["RED", "GREEN"]}},
        {"name": "code", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "price", "type": {"type": "fixed", "name": "P", "size": 3,
                                   "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["string", "null"]},
        {"name": "other", "type": ["null", "int"]},
    ],
}  # fmt: skip
GIVEN_COLUMNS = schema_from_ddl(
    "note STRING, color STRING, code BINARY, price DECIMAL(4,1), at TIMESTAMP"
)
GIVEN_ROW = {"color": "GREEN", "code": b"ab", "price": Decimal("-12.5"), "at": AT, "note": None}


def given_rows(**changes: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([GIVEN_ROW | changes], schema=GIVEN_COLUMNS)


def test_a_given_avro_schema_is_written_as_it_says() -> None:
    record = parse_schema(json.dumps(GIVEN))
    value = AvroEncoder(GIVEN_COLUMNS, record).encode(given_rows())[0].as_py()
    read = fastavro.schemaless_reader(io.BytesIO(value), GIVEN)
    millis = AT.replace(microsecond=0)
    assert read == GIVEN_ROW | {"at": millis, "other": None}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, GIVEN, GIVEN_ROW | {"at": millis})
    assert body.getvalue() == value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"color": "BLUE"}, "'BLUE' is not one of"),
        ({"code": b"abc"}, "has not the 2 bytes"),
        ({"at": None}, "it is null"),
    ],
)
def test_rows_that_a_given_avro_schema_cannot_hold_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    encoder = AvroEncoder(GIVEN_COLUMNS, parse_schema(json.dumps(GIVEN)))
    with pytest.raises(UnencodableRowError, match=words):
        encoder.encode(given_rows(**changes))


def test_a_decimal_that_has_no_room_in_a_fixed_is_refused() -> None:
    kind = {"type": "fixed", "name": "P", "size": 1, "logicalType": "decimal", "precision": 3}
    record = parse_schema(
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    )
    columns = pa.schema([("a", pa.decimal128(3, 0))])
    encoder = AvroEncoder(columns, record)

    def encoded(number: int) -> bytes:
        row = pa.RecordBatch.from_pylist([{"a": Decimal(number)}], schema=columns)
        value: bytes = encoder.encode(row)[0].as_py()
        return value

    assert [encoded(number) for number in (127, -128)] == [b"\x7f", b"\x80"]
    for number in (128, -129):
        with pytest.raises(UnencodableRowError, match="no room in a fixed of 1 bytes"):
            encoded(number)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([("id", pa.string())], "'id' is string in the frame, and int64 in the schema"),
        ([("colour", pa.string())], "has a column 'colour', and the schema of the values has not"),
        ([("line", pa.struct([("x", pa.int32())]))], "has a column 'line.x'"),
        ([("tags", pa.list_(pa.int32()))], r"'tags\[\]' is int32"),
    ],
)
def test_columns_that_a_message_has_not_are_refused(columns: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        ProtobufEncoder(pa.schema(columns), ORDER)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"color": "BLUE"}, "'BLUE' is not one of"),
        ({"tags": ["a", None]}, r"'tags\[\]' cannot be written: it is null"),
        ({"counts": [("a", None)]}, r"'counts\.value' cannot be written: it is null"),
        ({"wide": -1}, "the message has no room for it"),
        ({"big": Decimal(2**64)}, "the message has no room for it"),
    ],
)
def test_rows_that_a_message_cannot_hold_are_refused(changes: dict[str, Any], words: str) -> None:
    frame = pa.RecordBatch.from_pylist([WHOLE, WHOLE | changes], schema=COLUMNS)
    with pytest.raises(UnencodableRowError, match=words):
        ProtobufEncoder(COLUMNS, ORDER).encode(frame)


def test_a_message_inside_of_itself_is_refused() -> None:
    tree = message_of('syntax = "proto3"; message T { int32 x = 1; T inner = 2; }')
    with pytest.raises(SchemaError, match="'inner' is a message inside of itself"):
        ProtobufEncoder(schema_from_ddl("x INT, inner BINARY"), tree)
    rows = pa.record_batch({"x": pa.array([5], pa.int32())})
    value: Any = ProtobufEncoder(rows.schema, tree).encode(rows)[0].as_py()
    read: Any = message_factory.GetMessageClass(tree).FromString(value)
    assert read.x == 5


def test_options_that_do_not_go_together_are_refused() -> None:
    url = {"schema.registry.url": "http://127.0.0.1:1"}
    for options, words in (
        ({"schema": "x"}, "schema needs a format"),
        ({"format": "raw", "subject": "x"}, "subject needs a format"),
        ({"format": "json", "schema": "a INT"}, "format json goes by the frame's columns"),
        ({"format": "xml"}, "must be one of raw, json, avro, protobuf"),
        ({"format": "protobuf"}, "format protobuf needs the option schema"),
        ({"format": "avro", "message": "M"}, "message is for format protobuf only"),
        ({"format": "avro", "subject": "s"}, r"subject needs schema\.registry\.url"),
        ({"format": "avro", "schema.id": "5"}, r"schema\.id needs schema\.registry\.url"),
        ({"format": "avro", "schema.id": "x", **url}, "is a number of the registry"),
        ({"format": "avro", "schema.id": "5", "schema": "{}", **url}, "leave one out"),
        ({"format": "avro", "schema.id": "5", "subject": "s", **url}, "leave one out"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            written_options(options)
    assert written_options({"format": "raw"}) is None


def test_without_a_registry_values_are_bare() -> None:
    options = written_options({"format": "protobuf", "schema": SHOP, "message": "shop.Order"})
    assert options is not None
    rows = pa.RecordBatch.from_pylist([{"id": 1}], schema=pa.schema([("id", pa.int64())]))
    value = settled(options, rows.schema, "orders").encoder(rows.schema).encode(rows)[0].as_py()
    assert Order.FromString(value).id == 1
    assert len(value) < 2 * PREFIX_BYTES
