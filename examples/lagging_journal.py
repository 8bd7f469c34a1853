"""One journal has far more documents than the other, so a reader of both is behind in it. What does
`withWatermark` make of that?

    python examples/lagging_journal.py

Read plainly, as many documents of each log at a time, the quick log drives the watermark, and Spark
drops what the slow one still has to tell. Penstock levels journals by clock: nothing is late.
"""

import datetime
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.spark import local_session

MINUTES = 40
QUICK, SLOW = 100, 2_000
"""Documents of each log in a minute."""
FILE_ROWS = 4_000
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        store = ps.open_store(folder / "journals", durability="buffered")
        store.create(
            ps.Collection.define(
                "events", "log STRING, at TIMESTAMP, id BIGINT", key="id", partition_by="log"
            )
        )
        logs: dict[str, list[dict[str, object]]] = {"quick": [], "slow": []}
        with store.producer() as producer:
            for minute in range(MINUTES):
                for log, count in (("quick", QUICK), ("slow", SLOW)):
                    at = NOON + datetime.timedelta(minutes=minute)
                    rows = [{"log": log, "at": at, "id": number} for number in range(count)]
                    producer.append("events", rows)
                    logs[log] += rows
        spark = local_session("lagging journal")
        plain = counted(plainly(spark, folder / "plain", logs), folder / "plain-query")
        tell("plain Spark", *plain)
        stream = spark.readStream.format("penstock").option("store", store.url)
        stream = stream.option("collection", "events").option("max_documents", FILE_ROWS)
        tell("Penstock", *counted(stream.load(), folder / "penstock-query"))
        spark.stop()


def tell(who: str, found: int, batches: int) -> None:
    written = MINUTES * (QUICK + SLOW)
    print(f"{who}: {written} written, {found} counted in {batches} batches, {written - found} late")


def plainly(
    spark: SparkSession, folder: Path, logs: dict[str, list[dict[str, object]]]
) -> DataFrame:
    """Both logs as files, and a file of each in every micro-batch."""
    frames = []
    for log, rows in logs.items():
        (folder / log).mkdir(parents=True)
        for begin in range(0, len(rows), FILE_ROWS):
            table = pa.Table.from_pylist(rows[begin : begin + FILE_ROWS])
            table = table.set_column(1, "at", table["at"].cast(pa.timestamp("us", tz="UTC")))
            pq.write_table(table, folder / log / f"{begin:06}.parquet")
        reader = spark.readStream.schema("log STRING, at TIMESTAMP, id BIGINT")
        frames.append(reader.option("maxFilesPerTrigger", 1).parquet(str(folder / log)))
    return frames[0].union(frames[1])


def counted(events: DataFrame, folder: Path) -> tuple[int, int]:
    """How many events a count by minute has in the end, and in how many batches it came."""
    minutes = (
        events.withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"))
        .agg(F.count("*").alias("events"))
    )
    found: dict[datetime.datetime, int] = {}

    def keep(frame: DataFrame, _: int) -> None:
        for row in frame.collect():
            found[row.window.start] = row.events

    query = (
        minutes.writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    return sum(found.values()), len(batches)


if __name__ == "__main__":
    main()
