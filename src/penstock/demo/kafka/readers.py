"""The two readers: the same query twice, with one word between them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.demo.kafka.books import Books, page_of
from penstock.errors import PenstockError
from penstock.spark.progress import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SPARK: Final = "kafka"
PENSTOCK: Final = "penstock"


class ReaderFailedError(PenstockError):
    """A query of the demo failed. Spark's words are quoted."""


class Reader:
    """One query, from its making to `stop`. Spark calls `_judge`, in threads of its own."""

    def __init__(
        self, spark: SparkSession, form: str, options: Mapping[str, str], checkpoint: Path
    ) -> None:
        self.form = form
        self.books = Books()
        self.seen: dict[str, float] = {}
        """When the last posting of each transfer came, by the monotonic clock."""
        self._lock = threading.Lock()
        self._query = (
            spark.readStream.format(form)
            .options(**options)
            .load()
            .select("value")
            .writeStream.foreachBatch(self._judge)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def check(self) -> None:
        error = self._query.exception()
        if error is not None:
            raise ReaderFailedError(f"the query by {self.form!r} failed: {plain(error)}")

    def has_seen(self, transfers: set[str]) -> bool:
        with self._lock:
            return transfers <= self.seen.keys()

    def moments(self) -> dict[str, float]:
        with self._lock:
            return dict(self.seen)

    def stop(self) -> None:
        self._query.stop()

    def _judge(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002 - Spark's signature
        values: list[Any] = batch.toArrow().column("value").to_pylist()
        page = page_of(values)
        now = time.monotonic()
        with self._lock:
            self.seen |= dict.fromkeys(self.books.add(page), now)


def options(servers: str, topics: tuple[str, ...]) -> dict[str, str]:
    """For both."""
    return {
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
    }
