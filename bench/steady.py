"""Five minutes at a steady 100,000 documents a second, through the shuffle and Spark to a sink that
keeps nothing: does anything grow?

A process of its own writes documents of 128 bytes into eight journals, one in twenty twice and one
in ten in a transaction, ten times a second; whoever is late catches up. Once a second the lag (what
is written and not yet in a finished batch) and the memory of the source process, Spark's Java and
its Python workers are noted. The first minute is left out: Java warms up.

`rate`: documents that came out beside those that went in, a second. The others are no rates, and
less is better; "ours" is the last third of the time, "peer" the first third, so one means flat.
`lag`: documents, medians; `memory`: MB, medians; `batch`: milliseconds from the end of one batch to
the end of the next, "ours" the 99th percentile and "peer" the median: epochs come on time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.report import Line
from bench.shuffle_data import COLLECTION, Writer, make_store
from penstock.journal import open_store
from penstock.spark.session import STREAMING, local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming.query import StreamingQuery

CORES: Final = 2
TICK_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    documents_per_second: int = 100_000
    warm_seconds: float = 60.0
    seconds: float = 300.0


@dataclass(slots=True)
class Seen:
    """What was noted, once a second."""

    lag: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    batches: dict[int, float] = field(default_factory=dict)
    """When the batches ended, by number."""


def run(sizes: Sizes | None = None) -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd())
        yield from _lines(stack, Path(stack.enter_context(folder)), sizes or Sizes())


def _lines(stack: contextlib.ExitStack, folder: Path, sizes: Sizes) -> Iterator[Line]:
    store = stack.enter_context(make_store(folder / "journals"))
    settings: dict[str, Any] = {**STREAMING, "spark.driver.memory": "1g"}
    spark = local_session("penstock bench", CORES, **settings)
    stack.callback(spark.stop)
    reader = spark.readStream.format("penstock").option("store", store.url)
    frame = reader.option("collection", COLLECTION).load().drop("_meta")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "query"))
    query = writer.start()
    stack.callback(query.stop)
    told = folder / "written"
    amount = (sizes.documents_per_second, sizes.warm_seconds + sizes.seconds)
    producer = subprocess.Popen(
        [sys.executable, "-m", "bench.steady", *map(str, (folder / "journals", told, *amount))]
    )
    stack.callback(producer.wait)
    stack.callback(producer.terminate)
    follower = _Follower(query, told)
    follower.watch(sizes.warm_seconds, producer)
    follower.seen = Seen()
    begin, given, came = time.monotonic(), _written(told), follower.documents
    follower.watch(sizes.seconds, producer)
    seconds = time.monotonic() - begin
    went_in = (_written(told) - given) / seconds
    came_out = (follower.documents - came) / seconds
    yield Line.of("steady.rate", came_out, went_in, "documents/s")
    seen = follower.seen
    yield Line.of("steady.lag", *_last_and_first(seen.lag), "documents")
    yield Line.of("steady.memory", *_last_and_first(seen.memory_mb), "MB")
    ends = [at for _, at in sorted(seen.batches.items())]
    gaps = [(later - one) * 1000 for one, later in itertools.pairwise(ends)]
    late = sorted(gaps)[min(len(gaps) - 1, round(len(gaps) * 0.99))]
    yield Line.of("steady.batch", late, statistics.median(gaps), "ms")


class _Follower:
    """Counts what comes out of a query. Spark remembers a hundred batches: it is asked often."""

    def __init__(self, query: StreamingQuery, told: Path) -> None:
        self._query = query
        self._told = told
        self.documents = 0
        self.seen = Seen()
        self._last = -1

    def watch(self, seconds: float, producer: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            if not self._query.isActive or producer.poll():
                raise RuntimeError(f"it ended early: {self._query.exception()}")
            self._count()
            self.seen.lag.append(_written(self._told) - self.documents)
            self.seen.memory_mb.append(_memory_mb(os.getpid()))
            time.sleep(max(0.0, now + LOOK_SECONDS - time.monotonic()))

    def _count(self) -> None:
        for progress in self._query.recentProgress:
            number = int(progress["batchId"])
            if number > self._last and progress["numInputRows"]:
                self._last = number
                self.documents += int(progress["numInputRows"])
                begun = time.mktime(time.strptime(progress["timestamp"][:19], "%Y-%m-%dT%H:%M:%S"))
                begun += float(progress["timestamp"][19:23])
                took = float(progress["durationMs"]["triggerExecution"]) / 1000
                self.seen.batches[number] = begun + took


def _last_and_first(values: list[float]) -> tuple[float, float]:
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]), statistics.median(values[:third])


def _written(told: Path) -> int:
    """Documents that the producer has written."""
    try:
        return int(json.loads(told.read_text()))
    except (OSError, ValueError):
        return 0


def _memory_mb(driver: int) -> float:
    """Of all processes that the driver has started, directly or not, but for the producer."""
    parents: dict[int, int] = {}
    sizes: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            process = int(stat.parent.name)
            if b"bench.steady" not in (stat.parent / "cmdline").read_bytes():
                parents[process] = int(fields[1])
                sizes[process] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    total, ours = 0.0, {driver}
    while ours:
        ours = {process for process, parent in parents.items() if parent in ours}
        total += sum(sizes[process] for process in ours)
    return total


def write(folder: Path, told: Path, documents_per_second: int, seconds: float) -> None:
    """The producer's process."""
    rows = round(documents_per_second * TICK_SECONDS)
    with open_store(folder) as store, Writer(store) as writer:
        begin = time.monotonic()
        for tick in range(round(seconds / TICK_SECONDS)):
            time.sleep(max(0.0, begin + tick * TICK_SECONDS - time.monotonic()))
            writer.write(rows)
            fresh = told.with_suffix(".new")
            fresh.write_text(str(writer.documents))
            fresh.replace(told)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
