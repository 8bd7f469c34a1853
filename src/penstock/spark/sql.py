"""The same documents by Spark SQL alone: raw rows in, window functions over them.

This knows nothing of `penstock.sequence`. It says the rules once more, for all rows at once, so
that each of the two readers is the other's judge. Per journal and producer, in offset order:

    last commit   the greatest clock of the OUTSIDE and ACK rows before
    span          the rows up to and with the next ACK
    span clock    the greatest CONTINUE clock of the span before
    new           OUTSIDE above the last commit; CONTINUE above last commit and span clock
    committed     a span whose ACK is above the last commit there
    fault         OUTSIDE while the span clock is above the last commit; or an ACK above the last
                  commit and below its span clock
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls them
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.frontier import Frontier, to_json
from penstock.ids import CLOCK_FLOOR, UNIX_EPOCH_UNITS, Kind, Producer
from penstock.journal.views import META
from penstock.spark.buckets import check_key
from penstock.spark.options import Order, ReadOptions, View
from penstock.spark.plan import opened, select_journals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.journal.cut import AsOf, JournalCut
    from penstock.journal.store import ReadableStore

_BIGINT_MAX: Final = 2**63 - 1
_KNOWN_FIELDS: Final = StructType(
    [
        StructField("_journal", StringType()),
        StructField("_producer", StringType()),
        StructField("_entering_commit", LongType()),
        StructField("_entering_span_clock", LongType()),
        StructField("_commit_max", LongType()),
    ]
)


def documents(
    spark: SparkSession,
    *,
    store: str | Path,
    collection: str,
    partitions: str | None = None,
    as_of: str | AsOf = None,
    binding: int = 0,
    shuffle_key: str | Sequence[str] = (),
    shuffle_partitions: int | None = None,
    order: str | None = None,
) -> DataFrame:
    """Every committed document once, with the columns of `spark.read.format("penstock")`.

    The cut is taken here: the result names the same documents however often it is used. With
    `shuffle_key` Spark shuffles by these columns; with `order` each partition is sorted.
    """
    given = {
        "store": str(store),
        "collection": collection,
        "partitions": partitions,
        "as_of": _as_of_text(as_of),
        "binding": str(binding),
        "shuffle_key": shuffle_key if isinstance(shuffle_key, str) else ",".join(shuffle_key),
        "shuffle_partitions": None if shuffle_partitions is None else str(shuffle_partitions),
        "order": order,
    }
    options = ReadOptions.parse({name: text for name, text in given.items() if text is not None})
    files = opened(options.store)
    spec = files.collection(collection)
    check_key(spec, options.shuffle_key)
    files.recover_if_possible()
    cuts = files.cut(lambda: select_journals(files, options), options.cut_at(), options.binding)
    rows = _raw(spark, files, options, cuts, spec.schema.names)
    rows = rows.join(F.broadcast(_known(spark, files, cuts)), ["_journal", "_producer"], "left")
    commit_max = cuts[0].commit_max if cuts else 0
    found = _committed(rows, min(commit_max, _BIGINT_MAX)).select(
        *(F.col("_document").getField(name).alias(name) for name in spec.schema.names),
        _meta(options.binding).alias(META),
    )
    return _arranged(found, options)


def _raw(
    spark: SparkSession,
    store: ReadableStore,
    options: ReadOptions,
    cuts: Sequence[JournalCut],
    names: Sequence[str],
) -> DataFrame:
    """The rows of the cuts. A document's columns go into one, whatever their names are."""
    raw = (
        spark.read.format("penstock")
        .option("store", store.address)
        .option("collection", options.collection)
        .option("view", View.RAW.value)
        .option("bounds", json.dumps({cut.journal: [cut.begin, cut.end] for cut in cuts}))
        .load()
    )
    own = F.struct(*(F.col("`" + name.replace("`", "``") + "`") for name in names))
    return raw.select("_journal", "_offset", "_producer", "_clock", "_kind", own.alias("_document"))


def _known(spark: SparkSession, store: ReadableStore, cuts: Sequence[JournalCut]) -> DataFrame:
    """Per journal and producer: where it stood when the rows began, and which commits count."""
    found = []
    for cut in cuts:
        at, states = store.states(cut.journal, cut.begin)
        if at != cut.begin:
            raise LocalProtocolError(
                f"{cut.journal}: the states of offset {cut.begin} are known only at {at}"
            )
        for producer in sorted(states.keys() | cut.limits.keys()):
            state = states.get(producer)
            found.append(
                (
                    cut.journal,
                    str(Producer.from_int64(producer)),
                    None if state is None else state.last_commit,
                    None if state is None else state.max_continue,
                    min(cut.limit(producer), _BIGINT_MAX),
                )
            )
    return spark.createDataFrame(found, _KNOWN_FIELDS)


def _committed(rows: DataFrame, commit_max: int) -> DataFrame:
    """The rows that are committed documents, with `_commit_clock`; an error for a fault."""
    clock, kind = F.col("_clock"), F.col("_kind")
    is_outside, is_continue, is_ack = (
        kind == kind_.name for kind_ in (Kind.OUTSIDE, Kind.CONTINUE, Kind.ACK)
    )
    producer = Window.partitionBy("_journal", "_producer")
    earlier = producer.orderBy("_offset").rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.select(
        "*",
        F.greatest(
            F.coalesce("_entering_commit", F.lit(CLOCK_FLOOR)),
            F.max(F.when(~is_continue, clock)).over(earlier),
        ).alias("_last_commit"),
        F.count(F.when(is_ack, True)).over(earlier).alias("_span"),
    )
    span = Window.partitionBy("_journal", "_producer", "_span")
    earlier = span.orderBy("_offset").rowsBetween(Window.unboundedPreceding, -1)
    last_commit = F.col("_last_commit")
    rows = rows.select(
        "*",
        F.greatest(
            F.lit(0),
            F.when(F.col("_span") == 0, F.col("_entering_span_clock")),
            F.max(F.when(is_continue, clock)).over(earlier),
        ).alias("_span_clock"),
        F.max(F.when(is_ack & (clock > last_commit), clock)).over(span).alias("_span_commit"),
    )
    span_clock = F.col("_span_clock")
    rows = rows.withColumn(
        "_commit_clock",
        F.when(is_outside & (clock > last_commit), clock).when(
            is_continue & (clock > last_commit) & (clock > span_clock), F.col("_span_commit")
        ),
    )
    fault = F.when(
        is_outside & (span_clock > last_commit),
        "wrote a document outside of transactions while a transaction of it is open",
    ).when(
        is_ack & (clock > last_commit) & (clock < span_clock),
        "acknowledged only a part of its open transaction",
    )
    visible = F.col("_commit_clock") <= F.coalesce("_commit_max", F.lit(commit_max))
    return rows.where(
        F.when(fault.isNotNull(), F.raise_error(_fault_message(fault)).cast("boolean")).otherwise(
            F.coalesce(visible, F.lit(False))
        )
        # Always true, but Spark must not know: or it would test users' conditions first, and a
        # fault in a row that they leave out would go unseen.
        & (F.monotonically_increasing_id() >= 0)
    )


def _fault_message(fault: Column) -> Column:
    return F.format_string(
        "journal %s at offset %d: producer %s %s (clock %d, last commit %d, open span up to %d). "
        "Find the process that writes as this producer",
        "_journal",
        "_offset",
        "_producer",
        fault,
        "_clock",
        "_last_commit",
        "_span_clock",
    )


def _meta(binding: int) -> Column:
    # Nothing here is ever null, but Spark's types must be those of the other reader.
    there = F.col("_journal").isNotNull()
    units = F.greatest(F.shiftright("_clock", 4) - UNIX_EPOCH_UNITS, F.lit(0))
    meta = F.struct(
        F.col("_journal").alias("journal"),
        F.col("_offset").alias("offset"),
        F.col("_producer").alias("producer"),
        F.timestamp_micros(F.call_function("div", units, F.lit(10))).alias("clock"),
        F.col("_clock").alias("clock_raw"),
        F.when(there, F.lit(binding).cast("int")).alias("binding"),
        F.col("_commit_clock").alias("commit_clock_raw"),
        # What only a stream knows.
        F.lit(None).cast("int").alias("member"),
        F.lit(None).cast("int").alias("vnode"),
        F.lit(None).cast("bigint").alias("epoch"),
        F.lit(None).cast("timestamp").alias("watermark"),
    )
    return F.when(there, meta)


def _arranged(found: DataFrame, options: ReadOptions) -> DataFrame:
    if options.shuffle_key:
        key = [F.col("`" + name.replace("`", "``") + "`") for name in options.shuffle_key]
        count = options.shuffle_partitions
        found = found.repartition(*key) if count is None else found.repartition(count, *key)
    place = [F.col(f"{META}.journal"), F.col(f"{META}.offset")]
    if options.order is Order.CLOCK:
        place.insert(0, F.col(f"{META}.clock_raw"))
    return found if options.order is None else found.sortWithinPartitions(*place)


def _as_of_text(as_of: str | AsOf) -> str | None:
    if isinstance(as_of, Frontier):
        return to_json(as_of)
    if isinstance(as_of, datetime.datetime):
        if as_of.tzinfo is None:
            raise ConfigurationError(f"as_of {as_of} has no time zone; say which")
        return as_of.isoformat()
    return as_of
