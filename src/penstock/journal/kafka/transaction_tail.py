"""Follows the transaction log: every entry up to the end of now, in the order of each of its
partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.journal.kafka.client.fetching import Want
from penstock.journal.kafka.client.offsets import bounds, high_watermarks
from penstock.journal.kafka.errors import KafkaAccessError
from penstock.journal.kafka.reading import read_up_to
from penstock.journal.kafka.transaction_log import TRANSACTION_LOG, entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.records.batches import Partition
    from penstock.journal.kafka.records.columns import Decoded
    from penstock.journal.kafka.transaction_log import Entry, Tombstone

ADVICE: Final = (
    f"To see transactions whole across partitions the reader needs the rights Describe and Read of "
    f"the topic {TRANSACTION_LOG}: kafka-acls.sh --add --allow-principal User:... --operation Read "
    f"--operation Describe --topic {TRANSACTION_LOG}"
)


@dataclass(frozen=True, slots=True)
class Tail:
    """What was new."""

    entries: tuple[Entry | Tombstone, ...]
    """In order within each partition of the log."""
    ends: dict[int, int]
    """Of each partition of the log: everything below was read. Empty: no producer of the cluster
    ever had a transaction."""


class TransactionTail:
    """One reader of the whole log. One thread at a time."""

    def __init__(self, cluster: Cluster, begins: Mapping[int, int] | None = None) -> None:
        """`begins` are a tail's `ends`; partitions that are not in it are read from the start."""
        self._cluster = cluster
        self._begins = dict(begins or {})
        self._wants: dict[Partition, Want] = {}

    def ends(self, deadline: Deadline) -> dict[int, int]:
        """Where each partition of the log ends now; empty if there is no log."""
        if not self._wants:
            return {}
        found = high_watermarks(self._cluster, self._wants, deadline)
        return {partition.number: end for partition, end in found.items()}

    def read(self, deadline: Deadline) -> Tail:
        """Everything from the last call up to the end of now: what a coordinator has acknowledged
        before this call is in it. Raises `KafkaAccessError`, `UnknownEntryError`,
        `BrokersUnavailableError`; then nothing counts as read."""
        try:
            return self._read(deadline)
        except KafkaAccessError as error:
            raise KafkaAccessError("read the transaction log", error.reason, ADVICE) from error

    def _read(self, deadline: Deadline) -> Tail:
        topic = self._cluster.topics([TRANSACTION_LOG], deadline).get(TRANSACTION_LOG)
        if topic is None:
            return Tail((), {})
        now = bounds(self._cluster, topic.partitions(), deadline)
        wants = dict(self._wants)
        entries: list[Entry | Tombstone] = []
        for partition, each in now.items():
            begin = max(self._begins.get(partition.number, 0), each.earliest)
            wants.setdefault(partition, Want(begin, topic_id=topic.id))
        ends = {partition: each.high_watermark for partition, each in now.items()}
        for partition, decoded in read_up_to(self._cluster, wants, ends, deadline):
            entries += _entries(partition, decoded)
        self._wants = wants
        return Tail(tuple(entries), {each.number: wants[each].offset for each in now})


def _entries(partition: Partition, decoded: Decoded) -> list[Entry | Tombstone]:
    offsets = decoded.rows["offset"].to_numpy().tolist()
    keys, values = decoded.rows["key"].to_pylist(), decoded.rows["value"].to_pylist()
    return [entry(partition.number, *each) for each in zip(offsets, keys, values, strict=True)]
