"""Spark's own account of its batches, put beside the feeds that they read: `spark.json`.

A listener of Spark's hears of every batch of every query; those that read a feed of ours say which,
in their offsets.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import PenstockError
from penstock.watch.encoding import encode_batches
from penstock.watch.loading import SPARK_NAME, load_spark
from penstock.watch.state import SHOWN_MAX, SparkBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)


class Batches(StreamingQueryListener):
    """From its making to `close`. Spark calls it in a thread of its own, batch after batch."""

    def __init__(self, spark: SparkSession, folder_of: Callable[[str], Path | None]) -> None:
        """`folder_of` gives a feed's folder by its name, or None if it is somebody else's."""
        self._spark = spark
        self._folder_of = folder_of
        self._lock = threading.Lock()
        self._batches: dict[Path, list[SparkBatch]] = {}
        spark.streams.addListener(self)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # Spark may be gone, and the listener with it
            self._spark.streams.removeListener(self)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        try:
            self._take(event.progress)
        except Exception:  # noqa: BLE001 - a view must not be what disturbs a query
            _LOG.debug("a batch could not be noted", exc_info=True)

    def _take(self, progress: Any) -> None:
        if "addBatch" not in progress.durationMs:
            return  # it only waited
        at = datetime.datetime.fromisoformat(progress.timestamp).timestamp()
        durations = {name: float(value) for name, value in dict(progress.durationMs).items()}
        for feed, epoch, rows in _reads(progress):
            folder = self._folder_of(feed)
            if folder is not None and folder.is_dir():
                batch = SparkBatch(int(progress.batchId), at, rows, epoch, durations)
                with self._lock:
                    self._write(folder, batch)

    def _write(self, folder: Path, batch: SparkBatch) -> None:
        if folder not in self._batches:
            try:
                self._batches[folder] = list(load_spark(folder))  # of the driver before
            except PenstockError:
                self._batches[folder] = []
        batches = self._batches[folder]
        if batches and batches[-1].batch == batch.batch:
            batches.pop()  # it is told again, with what was done since
        batches.append(batch)
        del batches[:-SHOWN_MAX]
        temporary = folder / f".{SPARK_NAME}.tmp"
        temporary.write_bytes(encode_batches(batches))
        temporary.rename(folder / SPARK_NAME)


def _reads(progress: Any) -> Iterator[tuple[str, int, int]]:
    """The feeds that a batch has read, up to which epoch, and how many rows."""
    for source in progress.sources:
        try:
            offset = json.loads(source.endOffset)
            yield str(offset["feed"]), int(offset["epoch"]), int(source.numInputRows)
        except (KeyError, TypeError, ValueError):
            continue  # not ours
