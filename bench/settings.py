"""What each setting of `penstock run` is worth: a micro-batch with it, beside one without.

Milliseconds, medians: less is better, and so is a smaller ratio. The query has a Python source that
does nothing and counts by a key, so that it uses Python processes, a checkpoint and a state. Java
stays the same, with a Spark context for each round; a round without follows each round with.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.report import Line
from bench.spark_sources import Ticking
from penstock.spark.session import STREAMING, local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

CORES: Final = 2
ROUNDS: Final = 2
BATCHES_WARM: Final = 3
BATCHES: Final = 6
BATCHES_SECONDS_MAX: Final = 300.0
WITHOUT: Final[dict[str, tuple[str, Any]]] = {
    "sockets": ("spark.python.unix.domain.socket.enabled", False),
    "checkpoints": ("spark.sql.streaming.checkpointFileManagerClass", None),
    "rocksdb": ("spark.sql.streaming.stateStore.providerClass", None),
    "partitions": ("spark.sql.shuffle.partitions", 200),
    "ui": ("spark.ui.enabled", True),
}
"""What Spark has where nothing is said; None: not set."""


def run() -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
        numbers = iter(range(1_000))

        def batch(settings: dict[str, Any]) -> float:
            return _median_batch(settings, Path(folder) / str(next(numbers)))

        batch(STREAMING)  # warms Java up
        for name, (setting, other) in WITHOUT.items():
            changed = {**STREAMING, setting: other}
            without = {key: value for key, value in changed.items() if value is not None}
            rounds = [(batch(STREAMING), batch(without)) for _ in range(ROUNDS)]
            ours, peer = zip(*rounds, strict=True)
            yield Line.of_rounds(f"settings.{name}", list(ours), list(peer), "ms")


def _median_batch(settings: dict[str, Any], checkpoint: Path) -> float:
    """Milliseconds, once the first few are over."""
    spark = local_session("penstock bench", CORES, **settings)
    with contextlib.ExitStack() as stack:
        stack.callback(spark.stop)
        spark.dataSource.register(Ticking)
        counts = spark.readStream.format("ticking").load().groupBy("id").count()
        writer = counts.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        stack.callback(query.stop)
        deadline = time.monotonic() + BATCHES_SECONDS_MAX
        done: list[Any] = []
        while len(done) < BATCHES_WARM + BATCHES:
            if time.monotonic() > deadline or not query.isActive:
                raise RuntimeError(f"only {len(done)} batches came: {query.exception()}")
            time.sleep(0.1)
            done = [one for one in query.recentProgress if one["numInputRows"]]
        took = [float(one["durationMs"]["triggerExecution"]) for one in done[-BATCHES:]]
        return statistics.median(took)
