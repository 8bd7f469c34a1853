"""A Kafka cluster as logs that can be listed, probed and read.

What stands on this makes a store of it: which rows are committed, and in which order they go, is
not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from penstock.journal.kafka.aborting import abort_transaction, open_transactions
from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.fetching import Want, fetch
from penstock.journal.kafka.client.offsets import (
    bounds,
    check_not_truncated,
    high_watermarks,
    offsets_for_times,
)
from penstock.journal.kafka.reading import moved
from penstock.journal.kafka.records.columns import decode
from penstock.journal.kafka.transaction_tail import TransactionTail

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.journal.kafka.aborting import OpenInPartitions
    from penstock.journal.kafka.client.cluster import Topic
    from penstock.journal.kafka.client.offsets import Bounds
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.records.batches import Partition
    from penstock.journal.kafka.records.columns import Decoded
    from penstock.journal.kafka.settings import KafkaSettings
    from penstock.journal.store import Silence


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a partition, and what the partition held then."""

    decoded: Decoded
    behind: Want
    """Where to go on."""
    log_start: int
    high_watermark: int


class KafkaLog:
    """Safe to use from several threads: who probes does not wait for who reads, since each purpose
    has its own connections. Of two that read, one waits for the other."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._asking = Cluster(settings)
        self._reading = Cluster(settings)
        self._tailing = Cluster(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for cluster in (self._asking, self._reading, self._tailing):
            cluster.close()

    def silence(self) -> Silence | None:
        """What has been asked for longest, and has no answer yet."""
        clusters = (self._asking, self._reading, self._tailing)
        found = [silence for each in clusters if (silence := each.silence()) is not None]
        return min(found, key=lambda each: each.begun, default=None)

    def topics(self, deadline: Deadline, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """All topics that we may describe, or those of these that exist."""
        return self._asking.topics(names, deadline)

    def probe(self, partitions: Iterable[Partition], deadline: Deadline) -> dict[Partition, Bounds]:
        """Where each begins and ends now."""
        return bounds(self._asking, partitions, deadline)

    def high_watermarks(
        self, partitions: Iterable[Partition], deadline: Deadline
    ) -> dict[Partition, int]:
        """Where each ends now: the quickest of all questions."""
        return high_watermarks(self._asking, partitions, deadline)

    def offsets_for_times(
        self, times_ms: Mapping[Partition, int], deadline: Deadline
    ) -> dict[Partition, int | None]:
        """The first offset whose timestamp is not before the time; None if there is none."""
        return offsets_for_times(self._asking, times_ms, deadline)

    def check_not_truncated(
        self, read: Mapping[Partition, tuple[int, int]], deadline: Deadline
    ) -> None:
        """Raises `LogTruncatedError` if a log lacks what was read of it: `read` has each next
        offset, and the leader's epoch of the row before it."""
        check_not_truncated(self._asking, read, deadline)

    def read(
        self,
        partition: Partition,
        want: Want,
        deadline: Deadline,
        *,
        with_headers: bool = False,
        wait_ms: int = 0,
    ) -> Read:
        """What is there from `want` on, and where to go on: at the same place if nothing came
        within `wait_ms`. Raises `BrokersUnavailableError`, `OffsetDroppedError`,
        `LogTruncatedError`, `TopicMadeAgainError`, `UnknownTopicError`, `CorruptRecordsError`."""
        result = fetch(self._reading, {partition: want}, deadline, wait_ms=wait_ms)
        if partition in result.failed:
            raise result.failed[partition]
        fetched = result.found[partition]
        decoded = decode(partition, fetched.records, want.offset, with_headers=with_headers)
        behind = want
        if len(decoded.batches):
            behind = moved(want, decoded)
        elif not fetched.records and fetched.high_watermark > want.offset:
            # Compaction took everything up to the end away.
            behind = replace(want, offset=fetched.high_watermark)
        return Read(decoded, behind, fetched.log_start, fetched.high_watermark)

    def open_transactions(
        self, partitions: Iterable[Partition], deadline: Deadline
    ) -> list[OpenInPartitions]:
        """As the leaders of these partitions and the coordinators know them."""
        return open_transactions(self._asking, partitions, deadline)

    def abort(self, seen: OpenInPartitions, deadline: Deadline) -> None:
        abort_transaction(self._asking, seen, deadline)

    def transaction_tail(self, begins: Mapping[int, int] | None = None) -> TransactionTail:
        """A reader of the transaction log, from a tail's `ends` or from the start."""
        return TransactionTail(self._tailing, begins)
