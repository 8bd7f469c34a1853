"""What the documents of a subscription look like: Spark's Kafka columns, the columns of values in a
format beside Kafka's key, or the values that do not parse."""

from __future__ import annotations

import abc
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.formats import (
    DEAD_LETTERS,
    Encoding,
    OnError,
    Records,
    Registry,
    judge,
    open_format,
    pinned,
)
from penstock.formats.options import value_options
from penstock.journal.kafka.headers import PREFIX, header_values
from penstock.journal.kafka.rows import (
    RAW_SCHEMA,
    RAW_SCHEMA_WITH_HEADERS,
    raw_documents,
    whole_column,
)

if TYPE_CHECKING:
    from collections.abc import Collection as Names
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.formats import Format, ValueOptions
    from penstock.journal.kafka.address import Subscription
    from penstock.journal.kafka.records.batches import Partition
    from penstock.journal.kafka.records.columns import Decoded

KEY: Final = "key"
"""Kafka's own key, as bytes. A value that has a column of that name hides it."""
REFERENCED: Final = "referenced"
"""Beside the options of values: the schemas that a registered one refers to, as JSON."""
DEAD_LETTERS_VIEW: Final = "dead_letters"
LARGE_ROWS: Final = 4_096
"""From here on a parser's call costs little beside its rows, and copying them apart more."""


class Shape(abc.ABC):
    schema: pa.Schema
    key: tuple[str, ...]

    def needs_headers(self, columns: Names[str] | None) -> bool:  # noqa: ARG002
        """Whether these columns, or all, are made from records' headers."""
        return False

    @abc.abstractmethod
    def documents(
        self, partition: Partition, decoded: Decoded, columns: Names[str] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
        """The documents of rows that were read, of these columns; and which rows they are, unless
        there is one for each."""

    def documents_of_all(
        self, parts: Mapping[Partition, Decoded]
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64] | None]]:
        """All columns of the documents of each, in memory of their own."""
        for partition, decoded in parts.items():
            batch, kept = self.documents(partition, decoded, None)
            if len(parts) > 1 and batch.num_rows < LARGE_ROWS:
                # A slice of columns that many small parts share would hold all of these.
                batch = batch.take(np.arange(batch.num_rows))
            yield batch, kept


class RawShape(Shape):
    def __init__(self, *, with_headers: bool) -> None:
        self.schema = RAW_SCHEMA_WITH_HEADERS if with_headers else RAW_SCHEMA
        self.key = (KEY,)

    def needs_headers(self, columns: Names[str] | None) -> bool:
        return "headers" in (self.schema.names if columns is None else columns)

    def documents(
        self, partition: Partition, decoded: Decoded, columns: Names[str] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
        return raw_documents(partition, decoded, self.schema, columns), None


class _OfValues(Shape):
    """Formats and their registries serve one thread at a time, so each thread has its own."""

    def __init__(self, options: ValueOptions) -> None:
        self._options = options
        self._own = threading.local()

    @property
    def _format(self) -> Format:
        found: Format | None = getattr(self._own, "format", None)
        if found is None:
            given = self._options.registry
            registry = None if given is None else Registry(given)
            found = self._own.format = open_format(self._options, registry)
        return found


class FormatShape(_OfValues):
    def __init__(self, options: ValueOptions) -> None:
        super().__init__(options)
        values = self._format.schema
        self.value_columns: tuple[str, ...] = tuple(values.names)
        beside = [] if KEY in values.names else [pa.field(KEY, pa.binary())]
        self.schema = pa.schema([*values, *beside])
        self.key = (KEY,)

    def documents(
        self, partition: Partition, decoded: Decoded, columns: Names[str] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
        if columns is not None and not columns:
            return raw_documents(partition, decoded, self.schema, ()), None
        records = _records(partition, decoded)
        judged = judge(self._format.decode(records.values), records, self._options.on_error)
        kept = None if judged.shown is None else judged.shown.to_numpy()
        keys: Any = records.keys if judged.shown is None else records.keys.take(judged.shown)
        arrays = [
            keys if name not in judged.batch.schema.names else judged.batch.column(name)
            for name in self.schema.names
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if columns is not None:
            batch = batch.select([name for name in self.schema.names if name in columns])
        return batch, kept

    def documents_of_all(
        self, parts: Mapping[Partition, Decoded]
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64] | None]]:
        """Small parts are decoded together: a call of a parser costs as much as a hundred rows."""
        counts = [decoded.rows.num_rows for decoded in parts.values()]
        if sum(counts) >= LARGE_ROWS * len(counts):
            yield from super().documents_of_all(parts)
            return
        rows = pa.concat_tables([decoded.rows for decoded in parts.values()])
        values: Any = whole_column(rows, "value")
        found = self._format.decode(values)
        if found.failed:  # whose they are is told apart there
            yield from super().documents_of_all(parts)
            return
        keys = whole_column(rows, "key")
        names = found.batch.schema.names
        arrays = [
            keys if name not in names else found.batch.column(name) for name in self.schema.names
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        begin = 0
        for count in counts:
            yield batch.take(np.arange(begin, begin + count)), None
            begin += count


class ChangeShape(FormatShape):
    """Debezium's envelopes. A tombstone stands behind a deletion, for compaction, and tells nothing
    that is not told: it is left out."""

    def documents(
        self, partition: Partition, decoded: Decoded, columns: Names[str] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
        batch, kept = super().documents(partition, decoded, columns)
        values = whole_column(decoded.rows, "value")
        if not values.null_count:
            return batch, kept
        is_told = values.is_valid().to_numpy(zero_copy_only=False)
        if kept is None:
            kept = np.arange(decoded.rows.num_rows)
        is_told = is_told[kept]
        return batch.filter(pa.array(is_told)), kept[is_told]


class DeadLetterShape(_OfValues):
    """The values that do not parse, and nothing else."""

    def __init__(self, options: ValueOptions) -> None:
        super().__init__(options)
        self.schema = pa.schema([field.with_nullable(nullable=True) for field in DEAD_LETTERS])
        self.key = (KEY,)

    def documents(
        self, partition: Partition, decoded: Decoded, columns: Names[str] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
        if columns is not None and not columns:
            return raw_documents(partition, decoded, RAW_SCHEMA, ()), None
        records = _records(partition, decoded)
        found = self._format.decode(records.values)
        judged = judge(found, records, OnError.DEAD_LETTER)
        batch = judged.dead_letters.cast(self.schema)
        if columns is not None:
            batch = batch.select([name for name in self.schema.names if name in columns])
        return batch, np.array(found.failed, np.int64)


class WithHeaders(Shape):
    """Some headers as columns beside those of another shape."""

    def __init__(self, shape: Shape, headers: Sequence[str]) -> None:
        self._shape = shape
        self._headers = {f"{PREFIX}{name}": name for name in headers}
        taken = sorted(self._headers.keys() & set(shape.schema.names))
        if taken:
            raise ConfigurationError(f"the value has a column {taken[0]!r}, as a header would be")
        fields = [pa.field(column, pa.binary()) for column in self._headers]
        self.schema = pa.schema([*shape.schema, *fields])
        self.key = shape.key

    def needs_headers(self, columns: Names[str] | None) -> bool:
        wanted = self.schema.names if columns is None else columns
        return bool(self._headers.keys() & set(wanted)) or self._shape.needs_headers(columns)

    def documents(
        self, partition: Partition, decoded: Decoded, columns: Names[str] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
        batch, kept = self._shape.documents(partition, decoded, columns)
        wanted = {
            column: name
            for column, name in self._headers.items()
            if columns is None or column in columns
        }
        if not wanted:
            return batch, kept
        lists = whole_column(decoded.rows, "headers")
        values = [header_values(lists, name) for name in wanted.values()]
        if kept is not None:
            values = [each.take(kept) for each in values]
        schema = pa.schema([*batch.schema, *(self.schema.field(column) for column in wanted)])
        return pa.RecordBatch.from_arrays([*batch.columns, *values], schema=schema), kept


def shape_of(subscription: Subscription, *, with_headers: bool) -> Shape:
    shape = _shape_of(subscription.values, subscription.view, with_headers=with_headers)
    return WithHeaders(shape, subscription.headers) if subscription.headers else shape


def _shape_of(values: Mapping[str, str], view: str, *, with_headers: bool) -> Shape:
    """`values` are options of `formats/options.py`, with a schema in them."""
    options = pinned_options(values)
    if options is None:
        if view:
            raise ConfigurationError(
                f"view {view!r} shows values that do not parse: it needs a format to parse them by"
            )
        return RawShape(with_headers=with_headers)
    if view == DEAD_LETTERS_VIEW:
        return DeadLetterShape(options)
    return (ChangeShape if options.encoding is Encoding.DEBEZIUM else FormatShape)(options)


def pinned_options(values: Mapping[str, str]) -> ValueOptions | None:
    """None: values stay as they are."""
    if values.get("format", "raw").strip().lower() == "raw":
        return None
    referenced = json.loads(values.get(REFERENCED, "[]"))
    return replace(
        value_options(values), referenced=tuple((str(name), str(text)) for name, text in referenced)
    )


def are_changes(values: Mapping[str, str]) -> bool:
    """Whether they are Debezium's envelopes, which have places in a database's log."""
    return values.get("format", "").strip().lower() == Encoding.DEBEZIUM.value


def with_schema(values: Mapping[str, str], topic: str) -> dict[str, str]:
    """Options of values with a schema in them: the registry's newest of the topic's subject, if
    none is given. There is no topic where there are several."""
    options = value_options(values)
    if options.encoding is Encoding.RAW or options.schema or options.registry is None:
        return dict(values)
    if not options.subject and not topic:
        raise ConfigurationError(
            "'subject' is missing: of several topics it says whose newest schema gives the "
            "columns, for example orders-value"
        )
    found = pinned(options, Registry(options.registry), topic)
    return {
        **values,
        "subject": found.subject,
        "schema": found.schema,
        REFERENCED: json.dumps(found.referenced),
    }


def _records(partition: Partition, decoded: Decoded) -> Records:
    return Records(
        partition.topic,
        partition.number,
        whole_column(decoded.rows, "offset"),
        whole_column(decoded.rows, "key"),  # type: ignore[arg-type] # it is binary
        whole_column(decoded.rows, "value"),  # type: ignore[arg-type]
    )
