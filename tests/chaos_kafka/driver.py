"""The program with the query: whatever comes of both topics goes into a folder for each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.driver import Driver, main
from tests.chaos_kafka.world import BATCHES, QUERIES, ROW, TOPICS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class KafkaDriver(Driver):
    queries = QUERIES

    def __init__(self, folder: Path, master: str, servers: str) -> None:
        super().__init__(folder, master, f"kafka://{servers}")

    def _writer(self, name: str) -> DataStreamWriter:  # noqa: ARG002 - there is only one
        rows = self._read(subscribe=",".join(TOPICS.names), startingOffsets="earliest")
        folder = self._folder / BATCHES

        def write(batch: DataFrame, number: int) -> None:
            # A batch that is repeated stands in place of its first try, whatever that had done.
            batch.write.mode("overwrite").parquet(str(folder / f"{number:06}"))

        return rows.select(*ROW).writeStream.foreachBatch(write)


if __name__ == "__main__":
    main(KafkaDriver)
