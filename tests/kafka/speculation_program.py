"""A streaming query into Kafka whose first task Spark's speculation runs twice, on two machines.

The tests run it as a process. Both attempts have staged their rows before either says so to Spark.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from penstock.spark import local_session
from penstock.spark.source import PenstockSource
from penstock.spark.writing import SinkStreamWriter, sink_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

WAIT_SECONDS_MAX = 120
LOOK_SECONDS = 0.02
SPECULATION = {
    "spark.speculation": True,
    "spark.speculation.interval": "20ms",
    "spark.speculation.quantile": 0.5,
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.minTaskRuntime": "20ms",
    "spark.speculation.efficiency.enabled": False,
}


class DoublingWriter(SinkStreamWriter):
    def __init__(self, sink: Any, folder: str) -> None:
        super().__init__(sink)
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context: Any = TaskContext.get()
        if context.partitionId() != 0:
            return super().write(iterator)
        attempt = context.attemptNumber()
        self._path(attempt, "began").touch()
        self._wait(1, "began")
        message = super().write(iterator)
        self._path(attempt, "staged").touch()
        self._wait(1 - attempt, "staged")
        return message

    def _path(self, attempt: int, what: str) -> Path:
        return Path(self._folder) / f"{attempt}-{what}"

    def _wait(self, attempt: int, what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not self._path(attempt, what).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"attempt {attempt} has not {what}")
            time.sleep(LOOK_SECONDS)


class DoublingSource(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return "doubling"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = dict(self.options)
        folder = options.pop("attempts")
        return DoublingWriter(sink_for(options, schema, overwrite), folder)


def main(master: str, servers: str, topic: str, folder: Path) -> None:
    settings: dict[str, Any] = {
        "spark.master": master,
        "spark.executor.cores": 1,
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **SPECULATION,
    }
    spark = local_session("speculation", 2, **settings)
    spark.dataSource.register(DoublingSource)
    # A Python worker that starts too late fails its task, which here Spark may try again.
    spark.range(0, 4, 1, 4).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    rows = folder / "rows"
    rows.mkdir()
    for place in range(2):
        lines = [json.dumps({"id": each}) for each in range(place * 100, place * 100 + 100)]
        (rows / f"{place}.json").write_text("\n".join(lines))
    # A task for each file.
    spark.conf.set("spark.sql.files.openCostInBytes", 1 << 30)
    frame = spark.readStream.schema("id BIGINT").json(str(rows))
    attempts = folder / "attempts"
    attempts.mkdir()
    (
        frame.selectExpr("CAST(id AS STRING) AS value")
        .writeStream.format("doubling")
        .option("attempts", str(attempts))
        .option("sink", "kafka")
        .option("topic", topic)
        .option("kafka.bootstrap.servers", servers)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
