"""The decision log: one create-only record for each epoch, in their order.

Whoever creates the record of an epoch decides it, for everybody and for ever. Only a leader that
holds every member's acknowledgement creates a commit; an abort may be created by anybody. Epochs
are decided one after the other, and a new leader begins by deciding the next one itself: the
leader before it, should it still be about, finds the only epoch it could decide taken.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptStorageError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.epoch.records import Records

_PREFIX: Final = "decisions/"
_DIGITS: Final = 20
"""Of an epoch in a record's name: enough for 64 bits, so that names sort as numbers do."""


class Verdict(StrEnum):
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided of an epoch, and by whom."""

    epoch: int
    verdict: Verdict
    token: int
    """Of the leader whose epoch it was. It never falls from one epoch to the next."""
    decider: int
    """The member that created the record."""
    members: tuple[int, ...] = ()
    """All whose parts make up the epoch."""
    watermark: int | None = None
    reason: str = ""
    """Of an abort."""

    @property
    def is_commit(self) -> bool:
        return self.verdict is Verdict.COMMIT

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Decision:
        try:
            fields = json.loads(data)
            fields["verdict"] = Verdict(fields["verdict"])
            fields["members"] = tuple(fields["members"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStorageError(
                f"a decision record cannot be read ({error}): {data[:200]!r}"
            ) from error


class DecisionLog:
    """The records of one cluster. Safe for any number of processes."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def decide(self, decision: Decision) -> Decision:
        """Records a decision, unless there is one. Returns the one that holds. After an exception
        either is possible: decide again."""
        if self._records.create(_name(decision.epoch), decision.to_bytes()):
            return decision
        held = self.read(decision.epoch)
        if held is None:
            raise CorruptStorageError(
                f"the decision of epoch {decision.epoch} was there and is gone: something deletes "
                "records that it must not"
            )
        return held

    def abort_unless_decided(self, abort: Decision) -> Decision:
        """As `decide`, by a member that waited in vain. If later epochs are decided and this one
        has no record, it was finished by everybody long ago: then this is the process of a member
        that was replaced, and it decides nothing."""
        newest = self.newest()
        held = self.read(abort.epoch)
        if held is not None:
            return held
        if newest is not None and newest.epoch > abort.epoch:
            raise LocalProtocolError(
                f"epoch {abort.epoch} was finished by every member, and its record deleted: this "
                "process was replaced by another of its member. Stop it"
            )
        return self.decide(abort)

    def read(self, epoch: int) -> Decision | None:
        data = self._records.read(_name(epoch))
        return None if data is None else Decision.from_bytes(data)

    def newest(self) -> Decision | None:
        epochs = self.epochs()
        return self.read(epochs[-1]) if epochs else None

    def epochs(self) -> list[int]:
        """The epochs that have a record, ascending."""
        return [int(name.removeprefix(_PREFIX)) for name in self._records.names(_PREFIX)]

    def delete(self, epochs: Iterable[int]) -> None:
        """Those that `prunable` names, and no others."""
        for epoch in epochs:
            self._records.delete(_name(epoch))


def prunable(decisions: Iterable[Decision], finished: int) -> list[int]:
    """The epochs whose record nobody needs any more, when all members have finished with those up
    to `finished`. The newest commit stays, since it is what a restart goes back to. The first and
    the last record of each leader stay for ever: a leader that was paused for long must find the
    epoch it was about to decide taken."""
    ascending = sorted(decisions, key=lambda decision: decision.epoch)
    kept = set([decision.epoch for decision in ascending if decision.is_commit][-1:])
    for before, after in itertools.pairwise(ascending):
        if before.token != after.token:
            kept |= {before.epoch, after.epoch}
    if ascending:
        kept |= {ascending[0].epoch, ascending[-1].epoch}
    return [
        decision.epoch
        for decision in ascending
        if decision.epoch <= finished and decision.epoch not in kept
    ]


def _name(epoch: int) -> str:
    return f"{_PREFIX}{epoch:0{_DIGITS}}"
