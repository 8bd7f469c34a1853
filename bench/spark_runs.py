"""Queries of Spark that benchmarks run to their end, and what these take of clock and processor."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

RUN_SECONDS_MAX: Final = 900.0
SAMPLE_SECONDS: Final = 0.1


def to_nowhere(
    frame: DataFrame, checkpoint: Path, trigger: dict[str, Any] | None = None
) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start() if trigger else writer.start()


def finish(query: StreamingQuery) -> None:
    if not query.awaitTermination(int(RUN_SECONDS_MAX)):
        query.stop()
        raise RuntimeError(f"a query is not done after {RUN_SECONDS_MAX:g} s")


class Watch:
    """The time, and the processor time of this process and all below it, since it was made.
    Processes that are `left_out` do not count."""

    def __init__(self, left_out: Collection[int] = ()) -> None:
        self._left_out = left_out
        self._spent = self._processor_seconds()
        self._begin = time.monotonic()

    def rates(self, documents: int) -> tuple[float, float]:
        """Documents per second, and per second of a processor."""
        seconds = time.monotonic() - self._begin
        return documents / seconds, documents / (self._processor_seconds() - self._spent)

    def _processor_seconds(self) -> float:
        """Of those that have ended, too, once whoever started them has taken note."""
        ticks = sum(spent for _, spent in _below(self._left_out))
        return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


class MemoryWatch:
    """While it is open, the most memory of its own that one Python process below this one had.
    Files that are mapped do not count: the system takes them back when it needs the room."""

    def __init__(self, left_out: Collection[int] = ()) -> None:
        self.bytes_max = 0
        self._left_out = left_out
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            sizes = [_anonymous_bytes(process) for process, _ in _below(self._left_out)]
            self.bytes_max = max(self.bytes_max, *sizes, 0)


def _below(left_out: Collection[int]) -> Iterator[tuple[int, int]]:
    """The processes below this one, each with the processor ticks it has spent."""
    children: dict[int, list[tuple[int, int]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended just now
            fields = path.read_text().rpartition(")")[2].split()
            found = int(path.parent.name), sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(found)
    waiting = list(children.get(os.getpid(), []))
    while waiting:
        process, spent = waiting.pop()
        if process not in left_out:
            yield process, spent
            waiting += children.get(process, [])


def _anonymous_bytes(process: int) -> int:
    """Of a process of Python; nothing of Java, whose heap is as large as it is let."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it ended just now
        return 0
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    if not found.get("Name", "").strip().startswith("python"):
        return 0
    return int(found.get("RssAnon", "0 kB").split()[0]) * 1024
