"""Spark's interface to a streaming read.

Spark makes the reader in a planning process, sends it to a source process that lives as long as
the query runs, and from there with each partition to tasks. The shuffle is opened in the source
process, by the first call that needs it; nothing of it travels. A source process that ends, however
it does, takes its threads and locks with it: the next one goes on from the newest epoch. With the
option `cluster`, the shuffle is in the driver's process, which this one asks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import LocalProtocolError
from penstock.shuffle.outlet import Outlet, fingerprint
from penstock.shuffle.resume import NOTHING
from penstock.spark.cluster.remote import RemoteOutlet
from penstock.spark.streaming import steps
from penstock.spark.streaming.folders import feed_folder, settle_folder, settled_store
from penstock.spark.streaming.limits import Limits
from penstock.spark.streaming.offset import Offset, new_feed_name
from penstock.spark.streaming.rows import StretchPartition, read_stretch, split
from penstock.spark.streaming.steps import Step
from penstock.spark.workers import settle_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from penstock.shuffle.resume import Epoch
    from penstock.spark.streaming.options import StreamOptions

IDLE_SECONDS: Final = 0.05
"""How long Spark is kept waiting when there is nothing new. It asks again at once."""
CATCH_UP_SECONDS: Final = 1.0
"""Between two batches of a query that reads what is there and ends, while members are still far
from there. A batch takes Spark some 0.2 s of a processor, whatever is in it: a larger one is worth
the wait."""
FAR_ROWS: Final = 100_000
"""Read in less time than a batch takes: with no more than so many to come, nobody waits."""


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: StreamOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._drawn: str | None = None
        """The feed's name, if this is the first time that the query runs."""
        self._feed: str | None = None
        self._outlet: Outlet | RemoteOutlet | None = None
        self._limits = Limits(options.max_documents, options.max_bytes)
        self._passed_over = 0
        """The last epoch without news."""
        self._ends = False
        """The query ends when it has read what was there at its begin: Trigger.AvailableNow."""
        self._end: int | None = None
        """The epoch at which it ends, once there is one that has all of that."""
        self._worth_at = 0.0
        """When a batch is large enough, if there is still something to be read."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_outlet": None}

    # In the source process

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Spark may ask twice; and once more when the first batch of all is repeated, whose end
        names the feed that is meant. So nothing is made yet."""
        self._drawn = self._drawn or new_feed_name()
        steps.reached(Step.DRAWN)
        return Offset.of(self._drawn, NOTHING).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_documents is not None:
            return ReadMaxRows(options.max_documents)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        at = self._resume(start)
        all_at_once = isinstance(limit, ReadAllAvailable)
        newest = self._newest_until_end(at, all_at_once) if self._ends else self._newest(at)
        if newest is None:
            return start
        given = self._offset_of(self._limited(at.epoch, newest, limit))
        steps.reached(Step.GIVEN)
        return given

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._outlet is None or self._feed is None:
            return None
        outlet = self._outlet
        return {**self._offset_of(outlet.newest()), **outlet.figures()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, last = Offset.parse(start), self._resume(end)
        if begin.feed == self._drawn != last.feed:
            begin = Offset.of(last.feed, NOTHING)
        self._check_feed(begin)
        if begin.epoch == last.epoch:
            return []
        outlet = self._opened
        epochs = outlet.epoch(begin.epoch), outlet.epoch(last.epoch)
        begin.check(epochs[0])
        last.check(epochs[1])
        stretches = [
            StretchPartition(share, vnodes, epochs[0].frontier, epochs[1].frontier, last)
            for share in outlet.shares()
            for vnodes in split(share.vnodes, self._options.splits)
        ]
        steps.reached(Step.PLANNED)
        return stretches

    def commit(self, end: dict[str, Any]) -> None:
        done = self._resume(end)  # it may be what opens the feed
        self._opened.consumed(done.epoch)
        steps.reached(Step.FREED)

    def stop(self) -> None:
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StretchPartition):
            raise TypeError(f"not a partition of this reader: {partition!r}")
        settle_worker()
        return read_stretch(partition, self._schema)

    @property
    def _opened(self) -> Outlet | RemoteOutlet:
        if self._outlet is None:
            raise LocalProtocolError("the feed is not open: Spark has not said where to begin")
        return self._outlet

    def _open(self, feed: str, *, is_new: bool) -> None:
        self._feed = feed
        self._outlet = open_outlet(self._options, feed, is_new=is_new)

    def _resume(self, given: dict[str, Any]) -> Offset:
        """An offset of Spark's. The first one, after a restart, says which feed is meant."""
        offset = Offset.parse(given)
        if self._outlet is None:
            self._open(offset.feed, is_new=offset.feed == self._drawn)
            offset.check(self._opened.epoch(offset.epoch))
            steps.reached(Step.OPENED)
        self._check_feed(offset)
        return offset

    def _check_feed(self, offset: Offset) -> None:
        if offset.feed != self._feed:
            raise LocalProtocolError(f"Spark asks for feed {offset.feed}; {self._feed} is open")

    def _offset_of(self, epoch: Epoch) -> dict[str, Any]:
        return Offset.of(str(self._feed), epoch).to_dict()

    def _limited(self, start: int, newest: Epoch, limit: ReadLimit) -> Epoch:
        if isinstance(limit, ReadAllAvailable):
            return newest
        return self._limits.last_within(self._opened, start, newest)

    def _newest(self, at: Offset) -> Epoch | None:
        """After a moment, None. An epoch without news is no reason for a batch."""
        newest = self._opened.wait_epoch(max(at.epoch, self._passed_over), IDLE_SECONDS)
        if newest is None or fingerprint(newest) != at.fingerprint:
            return newest
        self._passed_over = newest.number
        return None

    def _newest_until_end(self, at: Offset, all_at_once: bool) -> Epoch | None:
        """Never what comes behind the end; and None only there, because then Spark ends the
        query."""
        outlet = self._opened
        if not outlet.has_target:
            outlet.set_target()
            self._worth_at = time.monotonic() + CATCH_UP_SECONDS
        while self._end is None:
            if all_at_once and self._can_grow():
                time.sleep(IDLE_SECONDS)
                continue
            newest = self._newest(at)
            if outlet.has_reached(outlet.newest()):
                self._end = outlet.newest().number
            elif newest is not None:
                self._worth_at = time.monotonic() + CATCH_UP_SECONDS
                return newest
        end = outlet.epoch(self._end)
        return end if end.number > at.epoch and fingerprint(end) != at.fingerprint else None

    def _can_grow(self) -> bool:
        """Whether the next batch is soon larger than it would be now."""
        if time.monotonic() >= self._worth_at:
            return False
        return bool(self._opened.figures()["rows_behind"] > FAR_ROWS)


def open_outlet(options: StreamOptions, feed: str, *, is_new: bool) -> Outlet | RemoteOutlet:
    """Members in this process, or of a cluster."""
    if options.cluster:
        return RemoteOutlet(options.cluster, feed, options.given, is_new=is_new)
    from penstock.shuffle.embedded import EmbeddedShuffle  # noqa: PLC0415 - not in tasks

    folder = feed_folder(options, feed)
    settle_folder(folder, options, is_new=is_new)
    store = settled_store(options, folder, is_new=is_new)
    shuffle = EmbeddedShuffle(options.feed, store, folder, members=options.members)
    return Outlet(shuffle, store, options.feed)
