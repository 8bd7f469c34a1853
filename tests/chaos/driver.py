"""The program with the queries, as its user would write it: a query that fails is started again.

When a file says that nothing more is written, the queries read to the end, and the program ends. If
it fails, because Spark is gone, say, whoever runs it starts it again.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.spark.session import STREAMING, local_session
from tests.chaos.world import ORDERS, QUERIES, TABLE, TOTALS
from tests.java_archive import brief_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.spark.cluster import Cluster

LOOK_SECONDS = 0.2
FAILURES_MAX = 10
"""Of a query at the end, when nothing is killed any more."""
COMPLAINT_CHARACTERS = 3_000
DEEP_STACKS = "-Xss16m"
"""Spark 4.3 searches the message of an error in foreachBatch with a pattern that recurs for every
character of it. By a long message the thread's stack overflows, and the query ends without saying
why (`StreamExecution`)."""


class Driver:
    """Keeps queries running, on a cluster or without one. Which ones is a subclass's."""

    queries: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path, master: str, store: str, **conf: Any) -> None:
        """`conf` is Spark's, beside what all of these programs have."""
        self._folder = folder
        self._store = store
        self._spark = start_spark(master, **conf)
        self._cluster: Cluster | None = None
        if not master.startswith("local"):
            self._cluster = ps.cluster(self._spark, store=store, folder=folder / "feeds")
        self._batches: dict[str, int] = {}

    def _writer(self, name: str) -> DataStreamWriter:
        raise NotImplementedError

    def run(self) -> None:
        # All in one thread: Spark finds a sink by its name only in a thread that has a session.
        open_ = dict.fromkeys(self.queries, 0)  # failures of those that are not at their end
        running: dict[str, tuple[StreamingQuery, bool]] = {}
        while open_:
            for name in list(open_):
                is_last = self._is_draining
                if name not in running:
                    running[name] = self._start(name, is_last=is_last), is_last
                    continue
                query, was_last = running[name]
                self._batches[name] = _batches_of(query)
                if query.isActive:
                    if is_last and not was_last:
                        query.stop()
                    continue
                del running[name]
                if (error := query.exception()) is not None:
                    self._complain(name, error)
                    open_[name] += was_last
                    if open_[name] > FAILURES_MAX:
                        raise error
                elif was_last:
                    del open_[name]
            self._tell()
            time.sleep(LOOK_SECONDS)
        if self._cluster is not None:
            self._cluster.close()
        self._spark.stop()

    def _complain(self, name: str, error: Exception) -> None:
        say(f"query {name}: {type(error).__name__}: {str(error)[:COMPLAINT_CHARACTERS]}")
        if self._spark.sparkContext._jsc.sc().isStopped():
            raise RuntimeError("the cluster has given this application up") from error

    @property
    def _is_draining(self) -> bool:
        return (self._folder / "drain").exists()

    def _start(self, name: str, *, is_last: bool) -> StreamingQuery:
        writer = self._writer(name).option(
            "checkpointLocation", str(self._folder / "checkpoints" / name)
        )
        return (writer.trigger(availableNow=True) if is_last else writer).start()

    def _read(self, **what: str) -> DataFrame:
        if self._cluster is not None:
            options = self._cluster.feed(**what)
        else:
            options = {**what, "store": self._store, "folder": str(self._folder / "feeds")}
        return self._spark.readStream.format("penstock").options(**options).load()

    def _tell(self) -> None:
        """For whoever wants to kill members."""
        members = {} if self._cluster is None else self._cluster.process_ids
        told = {
            "members": [one for feed in members.values() for one in feed.values()],
            "batches": self._batches,
        }
        new = self._folder / "told.new"
        new.write_text(json.dumps(told))
        new.rename(self._folder / "told")


class EmbeddedDriver(Driver):
    queries = QUERIES

    def __init__(self, folder: Path, master: str, conninfo: str) -> None:
        self._conninfo = conninfo
        super().__init__(folder, master, f"file://{folder / 'store'}")

    def _writer(self, name: str) -> DataStreamWriter:
        return self._totals() if name == "totals" else self._rows()

    def _totals(self) -> DataStreamWriter:
        added = self._read(collection=ORDERS).groupBy("bucket")
        totals = added.agg(F.count("*").alias("documents"), F.sum("amount").alias("amount"))

        def write(changed: DataFrame, batch: int) -> None:
            rows = changed.withColumn("batch", F.lit(batch).cast("bigint"))
            to = {"store": self._store, "collection": TOTALS, "batch": str(batch)}
            rows.write.format("penstock").options(**to).mode("append").save()

        return totals.writeStream.outputMode("update").foreachBatch(write)

    def _rows(self) -> DataStreamWriter:
        place = F.col("_meta.journal"), F.col("_meta.offset").alias("position")
        rows = self._read(feed=str(self._folder / "feed.toml")).select(*place, "id", "amount")
        to = {"sink": "postgres", "conninfo": self._conninfo, "table": TABLE}
        return rows.writeStream.format("penstock").options(**to)


def start_spark(master: str, **more: Any) -> SparkSession:
    conf: dict[str, Any] = {
        **STREAMING,
        "spark.master": master,
        "spark.driver.extraJavaOptions": f"{brief_java()} {DEEP_STACKS}",
        "spark.executor.extraJavaOptions": brief_java(),
        "spark.executor.memory": "512m",
        "spark.executor.cores": 4,
        "spark.cores.max": 8,
        **more,
    }
    return local_session("penstock-chaos", **conf)


def _batches_of(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def say(words: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")
    sys.stderr.flush()


def main(kind: type[Driver]) -> None:
    try:
        kind(Path(sys.argv[1]), sys.argv[2], sys.argv[3]).run()
    except BaseException:  # noqa: BLE001 - and it ends at once
        traceback.print_exc()
        os._exit(3)  # Java's threads, and the queries', would keep it


if __name__ == "__main__":
    main(EmbeddedDriver)
