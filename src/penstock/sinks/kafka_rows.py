"""A frame's rows as record batches for Kafka: which columns it may have, and what becomes of them.

The columns are those of Spark's own sink: `value`, and if they are there `key`, `headers`, `topic`,
`partition`. A staged part is a table of record batches, each with the partition that it goes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import META
from penstock.ddl import schema_to_ddl
from penstock.errors import ConfigurationError
from penstock.journal.kafka.batching import Batcher
from penstock.journal.kafka.records.encoding import Rows, encoded_headers
from penstock.sinks.kafka_values import ValueColumns

if TYPE_CHECKING:
    from penstock.journal.kafka.producer_settings import ProducerSettings
    from penstock.journal.kafka.topic_limits import KnownTopics
    from penstock.sinks.kafka_values import Values

_STAGED: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "records": pa.int32(),
    "batch": pa.binary(),
}
STAGED: Final = pa.schema(_STAGED)
_BYTES: Final = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_TEXT: Final = (pa.string(), pa.large_string())
_WHOLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_IGNORED: Final = ("offset", "timestamp", "timestampType")
"""Of a row that was read from Kafka. Spark's own sink takes no notice of them either."""
_COLUMNS: Final = ("key", "value", "headers", "topic", "partition")


def check_columns(frame: pa.Schema, topic: str | None, meta: str | None) -> None:
    """Refuses a frame that cannot be written to Kafka."""
    names = frame.names
    if len(set(names)) < len(names):
        raise ConfigurationError(f"the frame has a column twice: {', '.join(names)}")
    for name in names:
        if name not in (*_COLUMNS, *_IGNORED, META):
            raise ConfigurationError(
                f"the frame has a column {name!r}, which a record of Kafka's has not: it has "
                f"{', '.join(_COLUMNS)}. Drop it, or make it part of the value, for example with "
                "to_json(struct(...)) AS value; or say .option('format', 'json')"
            )
    if "value" not in names:
        raise ConfigurationError(
            f"the frame has no column 'value', which becomes the record: it has {', '.join(names)}"
        )
    if "topic" not in names and topic is None:
        raise ConfigurationError(
            "the frame has no column 'topic': say where rows go with it, or all of them with "
            ".option('topic', 'orders')"
        )
    for name, kinds, wanted in (
        ("key", _BYTES, "STRING or BINARY"),
        ("value", _BYTES, "STRING or BINARY"),
        ("topic", _TEXT, "STRING"),
        ("partition", _WHOLE, "INT"),
    ):
        if name in names and frame.field(name).type not in kinds:
            raise _wrong(frame.field(name), wanted)
    if "headers" in names and not _is_headers(frame.field("headers").type):
        raise _wrong(frame.field("headers"), "ARRAY<STRUCT<key: STRING, value: BINARY>>")
    _check_meta(frame, meta)


def check_values(frame: pa.Schema, meta: str | None, values: Values) -> None:
    """Refuses a frame of ordinary columns that cannot be written to Kafka."""
    _check_meta(frame, meta)
    ValueColumns(frame, values)


class Encoder:
    """Makes record batches of rows, in a task."""

    def __init__(
        self, topics: KnownTopics, settings: ProducerSettings, topic: str | None, meta: str | None
    ) -> None:
        self._batcher = Batcher(topics, settings)
        self._topic = topic
        self._meta = meta

    def staged(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as record batches, in the order of the rows within each partition."""
        made: list[tuple[str, int, int, bytes]] = []
        for topic, mine in self._by_topic(rows):
            made += self._of_topic(topic, mine)
        columns = list(zip(*made, strict=True))
        return pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, STAGED, strict=True)],
            schema=STAGED,
        )

    def _by_topic(self, rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            return [(self._topic, rows)]
        topics = rows.column("topic")
        if topics.null_count:
            raise ConfigurationError(
                "a row has no topic: its column 'topic' is null. Fill it in the query, or say "
                ".option('topic', 'orders')"
            )
        found = cast("list[str]", pc.unique(topics).to_pylist())
        if len(found) == 1:
            return [(found[0], rows)]
        equal = cast("Any", pc.equal)
        return [(name, rows.filter(equal(topics, name))) for name in sorted(found)]

    def _of_topic(self, topic: str, rows: pa.RecordBatch) -> list[tuple[str, int, int, bytes]]:
        records = Rows(
            _bytes_column(rows, "key"), _bytes_column(rows, "value"), self._headers(rows)
        )
        chosen = rows.column("partition") if "partition" in rows.schema.names else None
        return [
            (topic, one.partition.number, one.records, one.data)
            for one in self._batcher.batches(topic, records, chosen)
        ]

    def _headers(self, rows: pa.RecordBatch) -> pa.Array[Any] | None:
        lists = rows.column("headers") if "headers" in rows.schema.names else None
        fixed: list[tuple[str, pa.Array[Any]]] = []
        if self._meta is not None:
            meta = cast("pa.StructArray", rows.column(META))
            for field in meta.type:
                values = pc.struct_field(meta, field.name)
                fixed.append((f"{self._meta}.{field.name}", _as_bytes(values)))
        if lists is None and not fixed:
            return None
        if lists is not None:
            _check_header_keys(lists)
        return encoded_headers(lists, fixed, rows.num_rows)


def _bytes_column(rows: pa.RecordBatch, name: str) -> pa.Array[Any]:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.binary())
    return rows.column(name).cast(pa.binary())


def _as_bytes(values: pa.Array[Any]) -> pa.Array[Any]:
    if values.type in _BYTES:
        return values.cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


def _check_header_keys(lists: pa.Array[Any]) -> None:
    keys = cast("Any", lists).flatten().field("key")
    if keys.null_count:
        raise ConfigurationError("a header has no key: its 'key' is null. Fill it in the query")


def _check_meta(frame: pa.Schema, meta: str | None) -> None:
    has = META in frame.names
    if meta is None and has:
        raise ConfigurationError(
            f"the frame has the column {META!r}. Drop it with .drop({META!r}); or keep where a "
            "document came from in headers: with .option('meta', 'source') its fields become the "
            "headers source.journal, source.offset, ..."
        )
    if meta is None:
        return
    if not has:
        raise ConfigurationError(
            f"option 'meta' says that {META!r} goes into headers, but the frame has no {META!r}; "
            "leave the option out, or keep the column in the query"
        )
    for field in frame.field(META).type:
        if pa.types.is_nested(field.type):
            raise ConfigurationError(
                f"option 'meta': the field {field.name!r} of {META!r} is "
                f"{_shown(field)}, which no header can hold; leave it out of {META!r}"
            )


def _is_headers(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.ListType) or not isinstance(kind.value_type, pa.StructType):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return (
        set(fields) == {"key", "value"}
        and fields["key"] in _TEXT
        and fields["value"] == pa.binary()
    )


def _wrong(field: pa.Field[Any], wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {field.name!r} is {_shown(field)} in the frame, and must be {wanted}: cast it in "
        "the query"
    )


def _shown(field: pa.Field[Any]) -> str:
    return schema_to_ddl(pa.schema([pa.field("x", field.type)])).removeprefix("x ")
