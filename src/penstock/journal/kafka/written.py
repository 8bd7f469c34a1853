"""Users' rows as records of a topic: which columns they may have, and what becomes of them.

A topic whose values stay as they are takes Kafka's own columns. One with a format takes the columns
of its values and, beside them, `key`, Kafka's own. Both take what a read of the topic gives: rows
can be read from one topic and written to another one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from penstock.ddl import schema_from_ddl
from penstock.errors import ConfigurationError
from penstock.formats import Encoding, Written
from penstock.journal.errors import BadRowsError
from penstock.journal.kafka.records.encoding import Rows as Records
from penstock.journal.kafka.records.encoding import encoded_headers
from penstock.journal.kafka.shapes import KEY, FormatShape, pinned_options
from penstock.journal.rows import conform_to

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock.journal.kafka.address import Subscription
    from penstock.journal.rows import Rows

RAW: Final = schema_from_ddl(
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT, "
    "timestamp TIMESTAMP"
)
_READ: Final = schema_from_ddl("topic STRING, offset BIGINT, timestampType INT")
"""Rows that were read from a topic have these, too. A new record takes no notice of them."""


@dataclass(frozen=True, slots=True)
class TopicRows:
    """What is written to a topic at once."""

    topic: str
    records: Records
    partitions: pa.Array[Any] | None
    """That users chose; null where the key decides."""


def written(collection: str, subscription: Subscription, rows: Rows) -> TopicRows:
    """The rows as records. BadRowsError if they do not fit."""
    topic = _topic(collection, subscription)
    options = pinned_options(subscription.values)
    if options is None:
        batch = conform_to(topic, pa.schema([*RAW, *_READ]), rows)
        headers = batch.column("headers")
        return TopicRows(
            topic,
            Records(
                batch.column("key"),
                batch.column("value"),
                None if headers.null_count == len(headers) else _headers(topic, headers),
                _times(batch.column("timestamp")),
            ),
            batch.column("partition"),
        )
    if options.encoding is Encoding.DEBEZIUM or options.registry is not None:
        raise ConfigurationError(
            f"topic {topic!r}: a producer writes json, avro or protobuf by a schema that is given, "
            "or values as they are (raw); debezium's envelopes and schemas of a registry it only "
            "reads. Encode them, and write them raw"
        )
    shape = FormatShape(options)
    batch = conform_to(topic, shape.schema, rows)
    columns = pa.schema([shape.schema.field(name) for name in shape.value_columns])
    keys: Any = pa.nulls(batch.num_rows, pa.binary())
    if KEY not in columns.names:  # it is Kafka's own, beside those of the value
        keys = batch.column(KEY)
    encoder = Written(
        options.encoding, options.schema, options.referenced, options.message
    ).encoder(columns)
    return TopicRows(topic, Records(keys, encoder.encode(batch.select(columns.names))), None)


def _topic(collection: str, subscription: Subscription) -> str:
    if subscription.view or subscription.identity or subscription.headers:
        raise ConfigurationError(
            f"collection {collection!r} is a way to read a topic; write to the topic by its name"
        )
    if subscription.pattern or subscription.assigned or len(subscription.topics) != 1:
        raise ConfigurationError(
            f"collection {collection!r} may have several topics; write to one of them by its name"
        )
    return subscription.topics[0]


def _headers(topic: str, lists: pa.Array[Any]) -> pa.Array[Any]:
    keys = cast("Any", lists).flatten().field("key")
    if keys.null_count:
        raise BadRowsError(topic, None, "headers.key", "a header has no key")
    return encoded_headers(lists, [], len(lists))


def _times(moments: pa.Array[Any]) -> NDArray[np.int64] | None:
    """In milliseconds, which is all that a record has; null is now."""
    if moments.null_count == len(moments):
        return None
    now_us = time.time_ns() // 1000
    micros = cast("Any", moments).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    found: NDArray[np.int64] = micros.fill_null(now_us).to_numpy(zero_copy_only=False)
    return found // 1000
