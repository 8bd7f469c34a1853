"""What Kafka's raw logs hold: which rows are committed, and the story of a transfer. Pure.

What is committed here is what every reader has to show, neither more nor less. A transfer of which
the logs hold a part was torn by its producer, or by Kafka, and its story says how.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.testing.kafka.raw import RawLogs
    from tests.chaos_kafka.promises import Promise

Row: TypeAlias = tuple[str, int, int, bytes]
"""Topic, partition, offset, value."""
ROUND: Final = 2
"""Records of the same producer that a story has from before and after each of its transfer's."""
DECISIONS: Final = 6
"""Entries of the transaction log that a story has from before and after."""


@dataclass(slots=True)
class Logged:
    """A record of a producer's, not a marker."""

    row: Row
    producer: tuple[int, int]
    """Id and epoch. Of a producer without transactions the id is -1."""
    sequence: int | None
    timestamp: int
    marker: tuple[str, int, int] | None = None
    """The marker that closes it: COMMIT or ABORT, offset, epoch. None while there is none."""

    @property
    def is_committed(self) -> bool:
        return self.producer[0] < 0 or (self.marker is not None and self.marker[0] == "COMMIT")

    def __str__(self) -> str:
        topic, partition, offset, value = self.row
        end = "open" if self.marker is None else "{} at {} of epoch {}".format(*self.marker)
        number, epoch = self.producer
        return (
            f"{topic}-{partition}@{offset} of {transfer_of(value)}, producer {number} epoch "
            f"{epoch} sequence {self.sequence} at {self.timestamp}: {end}"
        )


def logged(raw: RawLogs, topics: Collection[str]) -> list[Logged]:
    """All records of these topics, in the order of offsets in each partition."""
    records = [each for each in raw.records.to_pylist() if each["topic"] in topics]
    records.sort(key=lambda one: (one["topic"], one["partition"], one["offset"]))
    found: list[Logged] = []
    open_: dict[tuple[str, int, int], list[Logged]] = defaultdict(list)
    for one in records:
        producer, epoch = one["producer_id"], one["producer_epoch"]
        where = one["topic"], one["partition"], producer
        if one["is_control"]:
            for each in open_.pop(where, ()):
                each.marker = one["control_type"], one["offset"], epoch
            continue
        row = one["topic"], one["partition"], one["offset"], one["value"]
        is_plain = not one["is_transactional"]
        each = Logged(row, (-1 if is_plain else producer, epoch), one["sequence"], one["timestamp"])
        found.append(each)
        if not is_plain:
            open_[where].append(each)
    return found


def committed_rows(records: Collection[Logged]) -> Counter[Row]:
    return Counter(each.row for each in records if each.is_committed)


def story(transfer: str, promise: Promise, records: list[Logged], raw: RawLogs) -> str:
    """All that is known of one transfer, in lines."""
    own = [each for each in records if transfer_of(each.row[3]) == transfer]
    return "\n    ".join(
        [
            f"{transfer}: {promise.outcome}",
            *(f"in the logs: {each}" for each in own),
            *(f"confirmed: {line}" for line in _confirmed(transfer, promise, records)),
            *(f"around: {each}" for each in _around(own, records)),
            *(f"decisions: {line}" for line in _decisions(own, transfer, raw)),
        ]
    )


def transfer_of(value: bytes) -> str:
    return str(json.loads(value)["transfer"])


def _confirmed(transfer: str, promise: Promise, records: list[Logged]) -> Iterator[str]:
    """What is where brokers have said that its rows are."""
    at = {each.row[:3]: each for each in records}
    for topic, partition, offset in promise.places:
        found = at.get((topic, partition, offset))
        if found is None:
            yield f"{topic}-{partition}@{offset}, where the logs have no row"
        elif transfer_of(found.row[3]) != transfer:
            yield f"{topic}-{partition}@{offset}, where another row is: {found}"
        else:
            yield f"{topic}-{partition}@{offset}"


def _around(own: list[Logged], records: list[Logged]) -> Iterator[Logged]:
    """What its producer wrote to its partitions just before and after."""
    shown = {each.row for each in own}
    for each in own:
        chain = [
            one
            for one in records
            if one.row[:2] == each.row[:2] and one.producer[0] == each.producer[0]
        ]
        place = chain.index(each)
        for one in chain[max(0, place - ROUND) : place + ROUND + 1]:
            if one.row not in shown:
                shown.add(one.row)
                yield one


def _decisions(own: list[Logged], transfer: str, raw: RawLogs) -> Iterator[str]:
    """What the coordinator noted of its producer, around the time of its rows."""
    producers = {each.producer[0] for each in own}
    clerk = transfer.rsplit("-", 2)[0]
    entries: list[dict[str, Any]] = [
        each
        for each in raw.entries.to_pylist()
        if each["producer_id"] in producers or (not own and each["transactional_id"] == clerk)
    ]
    entries.sort(key=lambda one: (one["log_partition"], one["log_offset"]))
    first = min((each.timestamp for each in own), default=0)
    middle = sum(each["updated_ms"] < first for each in entries)
    for each in entries[max(0, middle - DECISIONS) : middle + DECISIONS]:
        reached = [f"{one['topic']}-{one['partition']}" for one in each["partitions"]]
        yield (
            f"{each['status']} at {each['updated_ms']} of {each['transactional_id']}, producer "
            f"{each['producer_id']} epoch {each['producer_epoch']}: {' '.join(reached)}"
        )
