"""Where a session goes on from: the newest committed epoch, or what the consumer is done with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.epoch.decisions import DecisionLog, Verdict
from penstock.errors import CorruptStorageError
from penstock.frontier import (
    Frontier,
    decode_chunks,
    encode_chunks,
    reduce,
)
from penstock.shuffle.control import SESSION
from penstock.shuffle.session.instances import promised
from penstock.shuffle.session.remembered import decoded
from penstock.snapshot import Captured, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from penstock.shuffle.session.remembered import Remembered
    from penstock.snapshot import Snapshot
    from penstock.storage import Storage

SNAPSHOTS: Final = "snapshots"
"""Where in the cluster's place the members' snapshots are."""


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """A committed epoch, as a consumer knows it."""

    number: int
    frontier: Frontier
    watermark: int | None = None
    """How far in time reading has come, delays added. No bound on what follows: a document comes
    later with a lesser clock if its transaction was open, or its producer's clock is behind."""


NOTHING: Final = Epoch(0, Frontier.of())
"""Before the first epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class SessionRecord:
    """The Session's own part of a snapshot."""

    frontier: Frontier = field(default_factory=Frontier.of)
    """Up to where everything is complete."""
    consumed: Epoch = NOTHING
    """The epoch that the consumer is done with."""
    next_read: int = 0
    """Numbers of reads are never used again: rows that wait in a queue have them."""
    adopted: Mapping[str, str] | None = field(default_factory=dict)
    """By name, the identities of journals that are known by name alone, because they were read
    before there were identities. None: of all journals that were read so far nobody knows."""
    matching: Remembered | None = None
    """Where the matching of markers with a transaction log goes on. None: with a look."""

    def captured(self) -> Captured:
        parts = {
            "frontier": _pieces(self.frontier),
            "consumed": _pieces(self.consumed.frontier),
        }
        if self.adopted:
            parts["adopted"] = [json.dumps(dict(self.adopted)).encode()]
        if self.matching is not None:
            parts["matching"] = [self.matching.encoded()]
        return Captured(
            parts,
            {
                "consumed": self.consumed.number,
                "next_read": self.next_read,
                "identities": True,
            },
        )


@dataclass(frozen=True, slots=True, eq=False)
class Resume:
    """Where a session begins."""

    epoch: int | None
    """Whose queues are used. None: there are none, or they are lost."""
    record: SessionRecord
    newest: Epoch
    """The newest committed epoch."""

    @property
    def frontier(self) -> Frontier:
        """Of the checkpoint. If queues are lost, what the consumer is done with, and the commits of
        the newest epoch as hints: they are read again, and nothing else is until then."""
        if self.epoch is not None or not self.newest.number:
            return self.record.frontier
        return reduce(self.record.consumed.frontier, promised(self.newest.frontier))

    @property
    def readable(self) -> Epoch:
        """The newest epoch that the consumer may be told of. Without its queues that is none but
        what it is done with."""
        return self.record.consumed if self.epoch is None else self.newest

    @property
    def recovering(self) -> bool:
        return bool(self.frontier.unresolved_hints)


def find_resume(place: Storage, *, queues_lost: bool = False) -> Resume:
    """Looks the newest committed epoch up."""
    commits = [
        decision
        for decision in DecisionLog(place).decisions()
        if decision.verdict is Verdict.COMMIT
    ]
    if not commits:
        record = SessionRecord()
        return Resume(None, record, NOTHING)
    newest = commits[-1].epoch
    record = load_record(place, newest)
    # Reads that were started while the epoch was under way may be in the members' parts only.
    members = [member for member in commits[-1].members if member != SESSION]
    numbers = [_next_read(place, member, newest) for member in members]
    record = replace(record, next_read=max([record.next_read, *numbers]))
    epoch = None if queues_lost else newest
    return Resume(epoch, record, Epoch(newest, record.frontier, commits[-1].watermark))


def _next_read(place: Storage, member: int, epoch: int) -> int:
    snapshot = SnapshotStore(place.within(SNAPSHOTS), member).load(epoch)
    return int(cast("dict[str, Any]", snapshot.attributes).get("next_read", 0))


def queue_generation(snapshot: Snapshot) -> int | None:
    """Of the queue that a member's snapshot belongs to."""
    found = snapshot.attributes.get("generation")
    return None if found is None else int(str(found), 16)


def queue_generations(
    place: Storage, epoch: int | None, members: Iterable[int]
) -> dict[int, int | None]:
    """Of the queues that an epoch left, by member."""
    if epoch is None:
        return {}
    snapshots = place.within(SNAPSHOTS)
    return {
        member: queue_generation(SnapshotStore(snapshots, member).load(epoch)) for member in members
    }


def load_record(place: Storage, epoch: int) -> SessionRecord:
    """The Session's part of an epoch."""
    snapshot = SnapshotStore(place.within(SNAPSHOTS), SESSION).load(epoch)
    attributes = cast("dict[str, Any]", snapshot.attributes)
    try:
        consumed = Epoch(attributes["consumed"], frontier_of_part(snapshot.part("consumed")))
        return SessionRecord(
            frontier_of_part(snapshot.part("frontier")),
            consumed,
            attributes["next_read"],
            _adopted(snapshot),
            decoded(snapshot.part("matching").to_pybytes())
            if "matching" in snapshot.parts
            else None,
        )
    except KeyError as error:
        raise CorruptStorageError(
            f"the Session's snapshot of epoch {epoch} has no {error}: it is of another release"
        ) from error


def _adopted(snapshot: Snapshot) -> dict[str, str] | None:
    if "identities" not in snapshot.attributes:
        return None  # it is of a release in which journals had none
    if "adopted" not in snapshot.parts:
        return {}
    found: dict[str, str] = json.loads(snapshot.part("adopted").to_pybytes())
    return found


def _pieces(frontier: Frontier) -> list[bytes]:
    """The chunks, each behind its length."""
    return [
        piece
        for chunk in encode_chunks(frontier)
        for piece in (len(chunk).to_bytes(4, "little"), chunk)
    ]


def frontier_of_part(data: pa.Buffer) -> Frontier:
    """What a part of the Session's has: the chunks, each behind its length."""
    chunks, position = [], 0
    while position < data.size:
        size = int.from_bytes(data.slice(position, 4).to_pybytes(), "little")
        chunks.append(data.slice(position + 4, size).to_pybytes())
        position += 4 + size
    return decode_chunks(chunks)
