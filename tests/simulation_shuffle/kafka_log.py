"""Kafka's transaction log in memory: entries of coordinators, compaction, and who reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.transaction_log import Entry, Status, Tombstone
from penstock.journal.kafka.transaction_tail import Tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG_PARTITIONS: Final = 2
NOW: Final = Deadline.after(3600.0)
"""In memory nothing takes time."""


class PlayedLog:
    def __init__(self) -> None:
        self._kept: dict[int, list[Entry | Tombstone]] = {
            number: [] for number in range(LOG_PARTITIONS)
        }
        self.ends: dict[int, int] = dict.fromkeys(range(LOG_PARTITIONS), 0)

    def write(  # noqa: PLR0917 - fields of an entry
        self,
        name: str,
        producer_id: int,
        epoch: int,
        status: Status | None,
        partitions: tuple[tuple[str, int], ...] = (),
        previous_producer_id: int | None = None,
    ) -> None:
        """No status: the coordinator forgets the id."""
        number = sum(name.encode()) % LOG_PARTITIONS
        offset = self.ends[number]
        self.ends[number] += 1
        self._kept[number].append(
            Tombstone(number, offset, name)
            if status is None
            else Entry(
                number,
                offset,
                name,
                producer_id,
                epoch,
                status,
                partitions,
                timeout_ms=0,
                updated_ms=0,
                started_ms=None,
                previous_producer_id=previous_producer_id,
            )
        )

    def compact(self, number: int, entries: int) -> int:
        """Keeps the last of each id among the first so many entries. Gives how many that drops."""
        kept = self._kept[number]
        last = {entry.transactional_id: entry for entry in kept[:entries]}
        cleaned = [entry for entry in kept[:entries] if last[entry.transactional_id] is entry]
        self._kept[number] = cleaned + kept[entries:]
        return entries - len(cleaned)

    def kept(self, number: int) -> int:
        return len(self._kept[number])

    def since(self, begins: dict[int, int]) -> tuple[Entry | Tombstone, ...]:
        return tuple(
            entry
            for number, entries in self._kept.items()
            for entry in entries
            if entry.offset >= begins.get(number, 0)
        )


class PlayedTail:
    """What `TransactionTail` is to the log of a cluster."""

    def __init__(
        self, log: PlayedLog, interrupt: Callable[[], None], begins: Mapping[int, int] | None
    ) -> None:
        self._log = log
        self._interrupt = interrupt
        self._begins = dict(begins or {})

    def ends(self, deadline: Deadline) -> dict[int, int]:  # noqa: ARG002
        return dict(self._log.ends)

    def read(self, deadline: Deadline) -> Tail:  # noqa: ARG002
        self._interrupt()
        entries = self._log.since(self._begins)
        self._begins = dict(self._log.ends)
        return Tail(entries, dict(self._begins))
