"""Rows of a topic as record batches: which partition each goes to, and how large a batch may be."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.journal.kafka.client.producing import Sendable
from penstock.journal.kafka.errors import RecordsTooLargeError
from penstock.journal.kafka.partitioning import partitions_of
from penstock.journal.kafka.records.batches import HEADER, Partition
from penstock.journal.kafka.records.encoding import record_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.journal.kafka.producer_settings import ProducerSettings
    from penstock.journal.kafka.records.encoding import Rows
    from penstock.journal.kafka.topic_limits import KnownTopics, TopicLimits


class Batcher:
    """Of one process, for any topics of a cluster."""

    def __init__(self, topics: KnownTopics, settings: ProducerSettings) -> None:
        self._topics = topics
        self._settings = settings
        self._first = secrets.randbelow(1 << 16)
        """The partition where rows without a key begin: another one for each."""

    def batches(
        self,
        topic: str,
        rows: Rows,
        chosen: pa.Array[Any] | None = None,
        *,
        is_transactional: bool = True,
    ) -> list[Sendable]:
        """In the order of the rows within each partition. `chosen` are partitions that users gave,
        null where the key decides."""
        limits = self._topics.limits(topic)
        partitions = self._partitions(topic, limits, rows.keys, chosen)
        order = np.argsort(partitions, kind="stable")
        rows, partitions = rows.take(order), partitions[order]
        room = min(self._settings.batch_bytes, limits.batch_bytes_max) - HEADER.size
        sizes = rows.sizes()
        self._check_sizes(topic, limits, sizes)
        counts, numbers = _cut(sizes, partitions, max(room, 1))
        now_ms = int(time.time() * 1000)
        made = record_batches(
            rows, counts, now_ms, self._settings.compression, is_transactional=is_transactional
        )
        return [
            Sendable(Partition(topic, number), count, batch)
            for number, count, batch in zip(numbers, counts, made, strict=True)
        ]

    def _partitions(
        self, topic: str, limits: TopicLimits, keys: pa.Array[Any], chosen: pa.Array[Any] | None
    ) -> NDArray[np.int32]:
        by_key = partitions_of(keys, limits.partitions, self._first)
        if chosen is None:
            return by_key
        given = cast("Any", chosen).cast(pa.int64())
        said = given.is_valid().to_numpy(zero_copy_only=False)
        numbers = given.fill_null(0).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(said & ((numbers < 0) | (numbers >= limits.partitions)))
        if len(wrong):
            raise ConfigurationError(
                f"a row's column 'partition' is {numbers[wrong[0]]}, and topic {topic!r} has "
                f"{limits.partitions} partitions, from 0 on"
            )
        return np.where(said, numbers, by_key).astype(np.int32)

    def _check_sizes(self, topic: str, limits: TopicLimits, sizes: NDArray[np.int64]) -> None:
        largest = int(sizes.max()) + HEADER.size
        if largest > self._settings.request_bytes_max:
            reason = (
                f"a row is larger than kafka.max.request.size={self._settings.request_bytes_max}"
            )
            raise RecordsTooLargeError(topic, largest, reason)
        if largest > limits.batch_bytes_max and self._settings.compression.name == "none":
            reason = f"its max.message.bytes is {limits.batch_bytes_max}, and a row is larger"
            raise RecordsTooLargeError(topic, largest, reason)


def _cut(
    sizes: NDArray[np.int64], partitions: NDArray[np.int32], room: int
) -> tuple[list[int], list[int]]:
    """How many rows each batch has, and its partition. A row that is too large is alone."""
    ends = np.cumsum(sizes)
    runs = [*np.flatnonzero(np.diff(partitions)) + 1, len(partitions)]
    counts, numbers, begin = [], [], 0
    for run in runs:
        while begin < run:
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + room, side="right"))
            end = min(max(end, begin + 1), int(run))
            counts.append(end - begin)
            numbers.append(int(partitions[begin]))
            begin = end
    return counts, numbers
