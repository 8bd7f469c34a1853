"""`df.writeStream.format("penstock")`: what Spark asks of a sink, answered by a two-phase sink.

Spark builds a writer for every batch, in a process where nothing is written; sends it to the
tasks, each of which stages its rows; and builds another one, in a process of its own, that commits
what the tasks say they have staged. A batch has the same number when it is run again.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.formats.writing import NAMES as VALUE_OPTIONS
from penstock.formats.writing import WrittenOptions, settled, written_options
from penstock.sinks import batches
from penstock.sinks.batches import Step, abort_batch, commit_batch
from penstock.sinks.collection import CollectionSink
from penstock.sinks.parquet import ParquetSink
from penstock.sinks.two_phase import Batch
from penstock.spark.workers import settle_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from penstock.sinks.kafka_values import Values
    from penstock.sinks.two_phase import Part, TwoPhaseSink

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_KAFKA: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
_CHECKPOINT: Final = "checkpointlocation"
_BESIDE_CHECKPOINT: Final = "penstock"
"""The folder within a query's checkpoint where staged rows and decisions are."""
_SPARKS_OWN: Final = (_CHECKPOINT, "queryname")
"""Options that Spark hands on, although they are its own."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    batch: Batch
    part: Part | None
    """None if the task had no rows."""


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query through any two-phase sink. For a sink of your own, give this back
    from `streamWriter` of a `DataSource` of your own."""

    def __init__(self, sink: TwoPhaseSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = TaskContext.get()
        if context is None:
            raise LocalProtocolError("this writes in tasks of Spark, and this is none")
        query = context.getLocalProperty(_QUERY_PROPERTY)
        number = context.getLocalProperty(_BATCH_PROPERTY)
        if query is None or number is None:
            raise LocalProtocolError("this writes batches of a streaming query, and this is none")
        return _stage(self._sink, Batch(query, int(number)), context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = _staged(messages)
        if not staged:
            return  # Spark found nothing to run a task for
        batch = staged[0].batch
        if batch.number != batchId or any(each.batch != batch for each in staged):
            raise LocalProtocolError(f"tasks of {batch} were committed as batch {batchId}")
        commit_batch(self._sink, batch, [each.part for each in staged if each.part is not None])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        _abort(self._sink, messages)


class SinkWriter(DataSourceArrowWriter):
    """Writes a DataFrame, all or nothing. Run again, it is written again, unless it says which
    batch it is: then it belongs to the streaming query that calls it in `foreachBatch`."""

    def __init__(self, sink: TwoPhaseSink, number: int | None = None, target: str = "") -> None:
        """`target` tells the writes of one batch from each other."""
        self._sink = sink
        self._number = number
        self._target = hashlib.blake2b(target.encode(), digest_size=8).hexdigest()
        self._once = Batch(str(uuid.uuid4()), 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = TaskContext.get()
        if context is None:
            raise LocalProtocolError("this writes in tasks of Spark, and this is none")
        batch = self._once
        if self._number is not None:
            query = context.getLocalProperty(_QUERY_PROPERTY)
            if query is None:
                raise LocalProtocolError(
                    "option 'batch' is for what a streaming query writes in foreachBatch; without "
                    "a query there is nothing to number. Leave it out"
                )
            batch = Batch(f"{query}-{self._target}", self._number)
        return _stage(self._sink, batch, context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if not staged:
            return
        parts = [each.part for each in staged if each.part is not None]
        commit_batch(self._sink, staged[0].batch, parts)
        if self._number is None:
            batches.forget_query(self._sink, self._once.query)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._sink, messages)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options. The names of the fields are the names of the options."""

    sink: str = "collection"
    store: str = ""
    collection: str = ""
    meta: str = ""
    path: str = ""
    decisions: str = ""
    conninfo: str = ""
    table: str = ""
    key: str = ""
    batch: str = ""
    topic: str = ""
    folder: str = ""
    transactional_id_prefix: str = ""
    transaction_bytes: str = ""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those that begin with `kafka.`, without it. They may hold secrets."""
    values: WrittenOptions | None = field(default=None, repr=False)
    """What the value is made of, by `format`. None: there is a column for it."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Reads Spark's options: names in lower case, values as text."""
        values = {
            name.lower(): value.strip()
            for name, value in given.items()
            if name.lower() not in _SPARKS_OWN
        }
        kafka = {
            name.removeprefix(_KAFKA): values.pop(name)
            for name in list(values)
            if name.startswith(_KAFKA)
        }
        encoded = {name: values.pop(name) for name in list(values) if name in VALUE_OPTIONS}
        known = [field.name for field in fields(cls) if field.name not in ("kafka", "values")]
        for name in values:
            if name not in known:
                choices = ", ".join((*known, *sorted(VALUE_OPTIONS)))
                raise ConfigurationError(
                    f"there is no option {name!r} for writing; choose from {choices}"
                )
        options = cls(**values, kafka=kafka, values=written_options(encoded) if encoded else None)
        if options.sink not in _OPTIONS_OF:
            raise ConfigurationError(
                f"option 'sink' is {' or '.join(map(repr, _OPTIONS_OF))}, not {options.sink!r}"
            )
        if kafka and options.sink != "kafka":
            raise ConfigurationError(
                f"options 'kafka.*' do not go with sink {options.sink!r}; leave them out, or say "
                ".option('sink', 'kafka')"
            )
        for name in sorted(encoded) if options.sink != "kafka" else ():
            raise ConfigurationError(
                f"option {name!r} does not go with sink {options.sink!r}; leave it out"
            )
        needed, possible = _OPTIONS_OF[options.sink]
        for name, example in needed.items():
            if not values.get(name):
                raise ConfigurationError(
                    f"option {name!r} is missing; say for example .option({name!r}, {example!r})"
                )
        for name in values.keys() - needed.keys() - possible - {"sink", "batch"}:
            raise ConfigurationError(
                f"option {name!r} does not go with sink {options.sink!r}; leave it out"
            )
        if options.key and options.sink == "kafka" and options.values is None:
            raise ConfigurationError(
                "option 'key' needs option 'format'; without one the key is the column 'key'"
            )
        if options.values is not None and not options.topic:
            raise ConfigurationError(
                "with a format all columns become the value: say where rows go with "
                ".option('topic', 'orders')"
            )
        if options.batch and not options.batch.isdecimal():
            raise ConfigurationError(
                f"option 'batch' is the number that foreachBatch gives, not {options.batch!r}"
            )
        return options


_OPTIONS_OF: Final[dict[str, tuple[dict[str, str], set[str]]]] = {
    "collection": ({"store": "file:///data/journals", "collection": "totals"}, {"meta"}),
    "parquet": ({"path": "/data/totals"}, {"decisions"}),
    "postgres": ({"conninfo": "service=streams", "table": "public.totals"}, {"key"}),
    "kafka": (
        {},
        {"topic", "folder", "key", "meta", "transactional_id_prefix", "transaction_bytes"},
    ),
}
"""For each sink, the options that it needs, with an example, and those that it may have."""


def stream_writer(given: Mapping[str, str], frame: StructType, overwrite: bool) -> SinkStreamWriter:
    settle_worker()  # before each batch and each commit of one, Spark calls this
    if WriteOptions.parse(given).batch:
        raise ConfigurationError(
            "option 'batch' is for writes in foreachBatch; a streaming query numbers its batches"
        )
    return SinkStreamWriter(sink_for(given, frame, overwrite))


def frame_writer(given: Mapping[str, str], frame: StructType, overwrite: bool) -> SinkWriter:
    settle_worker()
    options = WriteOptions.parse(given)
    target = f"{options.sink} {options.collection} {options.path} {options.table}"
    if options.sink == "kafka":
        target = f"kafka {options.kafka.get(_SERVERS, '')} {options.topic}"
    number = int(options.batch) if options.batch else None
    return SinkWriter(sink_for(given, frame, overwrite), number, target)


def sink_for(given: Mapping[str, str], frame: StructType, overwrite: bool) -> TwoPhaseSink:
    """The sink that the options ask for, if this frame can be written to it."""
    options = WriteOptions.parse(given)
    if overwrite:
        raise ConfigurationError(
            "nothing is ever overwritten here: use output mode 'append', or for a DataFrame "
            ".mode('append'). What a query changes goes out with output mode 'update' and "
            "foreachBatch: docs/writing.md has an example"
        )
    schema = to_arrow_schema(frame, timezone="UTC")
    if options.sink == "parquet":
        return ParquetSink(options.path, options.decisions or None)
    if options.sink == "postgres":
        return _postgres_sink(options, schema)
    if options.sink == "kafka":
        return _kafka_sink(options, schema, _folder(options, given))
    sink = CollectionSink(options.store, options.collection, options.meta or None)
    sink.check(schema)
    return sink


def _postgres_sink(options: WriteOptions, schema: pa.Schema) -> TwoPhaseSink:
    try:
        from penstock.sinks.postgres_batches import PostgresSink  # noqa: PLC0415 - not for all
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ConfigurationError(
            "the sink 'postgres' needs psycopg; run: pip install 'penstock[postgres]'"
        ) from None
    key = _names(options.key)
    sink = PostgresSink(options.conninfo, options.table, schema.names, key)
    sink.check(schema)
    return sink


def _kafka_sink(options: WriteOptions, schema: pa.Schema, folder: str) -> TwoPhaseSink:
    try:
        from penstock.sinks.kafka import PREFIX, TRANSACTION_BYTES, KafkaSink  # noqa: PLC0415 - not for all
    except ModuleNotFoundError as error:
        if error.name not in ("kafka", "crc32c"):
            raise
        raise ConfigurationError(
            f"the sink 'kafka' needs {error.name}; run: pip install 'penstock[kafka]'"
        ) from None
    size_bytes = options.transaction_bytes or str(TRANSACTION_BYTES)
    if not size_bytes.isdecimal() or not int(size_bytes):
        raise ConfigurationError(
            f"option 'transaction_bytes' is a whole number above 0, not {size_bytes!r}"
        )
    sink = KafkaSink(
        options.kafka,
        folder,
        options.topic or None,
        meta=options.meta or None,
        prefix=options.transactional_id_prefix or PREFIX,
        transaction_bytes=int(size_bytes),
        values=_values(options, schema),
    )
    sink.check(schema)
    return sink


def _values(options: WriteOptions, schema: pa.Schema) -> Values | None:
    if options.values is None:
        return None
    from penstock.sinks.kafka_values import Values, in_value  # noqa: PLC0415 - not for all

    key = tuple(_names(options.key))
    columns = pa.schema([schema.field(name) for name in in_value(schema.names, key)])
    return Values(settled(options.values, columns, options.topic), key)


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _folder(options: WriteOptions, given: Mapping[str, str]) -> str:
    """Where rows wait for their commit, if nobody says: in the query's checkpoint."""
    if options.folder:
        return options.folder
    found = {name.lower(): value for name, value in given.items()}.get(_CHECKPOINT, "")
    if not found:
        raise ConfigurationError(
            "option 'folder' is missing: name a folder that the driver and all executors share, "
            "where rows wait for their commit, for example .option('folder', '/data/staged')"
        )
    # Hadoop writes file:/path, with one slash.
    return f"{re.sub('^file:/+', '/', found).rstrip('/')}/{_BESIDE_CHECKPOINT}"


def _stage(
    sink: TwoPhaseSink, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]
) -> Staged:
    settle_worker()
    part = sink.stage(batch, partition, rows)
    batches.reached(Step.STAGED)
    return Staged(batch, part)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    staged = [message for message in messages if isinstance(message, Staged)]
    if len(staged) != len(messages):
        raise LocalProtocolError("a batch is to be committed of which a task has said nothing")
    return staged


def _abort(sink: TwoPhaseSink, messages: Sequence[WriterCommitMessage | None]) -> None:
    staged = [message.part for message in messages if isinstance(message, Staged)]
    parts = [part for part in staged if part is not None]
    abort_batch(sink, parts, all_staged=len(staged) == len(messages))
