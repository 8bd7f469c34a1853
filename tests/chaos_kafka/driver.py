"""The program with the queries: one puts whatever comes of both topics into a folder for each
batch, the other one adds it up and writes it to a third topic.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812

from tests.chaos.driver import Driver, main
from tests.chaos_kafka.totals import TOTALS
from tests.chaos_kafka.world import BATCHES, EVENTS, QUERIES, ROW, TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POSTING: Final = "account BIGINT, cents BIGINT"
SPECULATION: Final = {
    "spark.sql.shuffle.partitions": 4,
    "spark.speculation": True,
    "spark.speculation.interval": "20ms",
    "spark.speculation.quantile": 0.25,
    "spark.speculation.multiplier": 1.0,
    "spark.speculation.minTaskRuntime": "1ms",
    "spark.speculation.efficiency.enabled": False,
}
"""Whatever takes a moment longer than the first quarter of its tasks is begun a second time."""
STRAGGLE_SECONDS: Final = 1.0
"""Long enough for a second attempt to start and to overtake."""


class KafkaDriver(Driver):
    queries = QUERIES

    def __init__(self, folder: Path, master: str, servers: str) -> None:
        self._servers = servers
        events = {
            "spark.eventLog.enabled": True,
            "spark.eventLog.dir": (folder / EVENTS).as_uri(),
            "spark.eventLog.rolling.enabled": False,
            "spark.eventLog.compress": False,
        }
        super().__init__(folder, master, f"kafka://{servers}", **SPECULATION, **events)

    def _writer(self, name: str) -> DataStreamWriter:
        rows = self._read(subscribe=",".join(TOPICS.names), startingOffsets="earliest")
        return self._totals(rows) if name == TOTALS else self._transfers(rows)

    def _transfers(self, rows: DataFrame) -> DataStreamWriter:
        folder = self._folder / BATCHES

        def write(batch: DataFrame, number: int) -> None:
            # A batch that is repeated stands in place of its first try, whatever that had done.
            batch.write.mode("overwrite").parquet(str(folder / f"{number:06}"))

        return rows.select(*ROW).writeStream.foreachBatch(write)

    def _totals(self, rows: DataFrame) -> DataStreamWriter:
        posting = F.from_json(F.col("value").cast("string"), POSTING).alias("posting")
        totals = (
            rows.select(posting)
            .groupBy("posting.account")
            .agg(F.count("*").alias("postings"), F.sum("posting.cents").alias("cents"))
        )
        to = {
            "sink": "kafka",
            "kafka.bootstrap.servers": self._servers,
            "topic": TOTALS,
            "folder": str(self._folder / "staged"),
        }

        def write(changed: DataFrame, number: int) -> None:
            changed.persist()
            try:
                batch = F.lit(number).alias("batch"), F.lit(changed.count()).alias("rows")
                value = F.to_json(F.struct("account", "postings", "cents", *batch))
                rows = changed.select(
                    F.col("account").cast("string").alias("key"), value.alias("value")
                )
                rows = rows.mapInArrow(straggle, rows.schema)
                options = {**to, "batch": str(number)}
                rows.write.format("penstock").options(**options).mode("append").save()
            finally:
                changed.unpersist()

        return totals.writeStream.outputMode("update").foreachBatch(write)


def straggle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of one task takes so long that Spark begins a second one elsewhere, if it
    has an executor there. Either may be the first to stage its rows."""
    context = TaskContext.get()
    if context is not None and context.partitionId() == context.attemptNumber() == 0:
        time.sleep(STRAGGLE_SECONDS)
    yield from batches


if __name__ == "__main__":
    main(KafkaDriver)
