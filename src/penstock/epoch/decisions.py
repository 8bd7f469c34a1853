"""The decision log: one create-only record for each epoch, in their order.

Whoever creates the record of an epoch decides it, for everybody and for ever. Only a leader that
holds every member's acknowledgement creates a commit; an abort may be created by anybody. Epochs
are decided one after the other, and a new leader begins by deciding the next one itself: the
leader before it, should it still be about, finds the only epoch it could decide taken.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.epoch.fields import clock, number, numbers, plain, string
from penstock.errors import ConfigurationError, CorruptStorageError, FencedError, PenstockError
from penstock.sealed import DamagedFileError, is_sealed, sealed_json, unsealed_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.epoch.records import Records

LISTINGS_MAX: Final = 100
"""How often records are listed again because one was deleted meanwhile. A leader deletes some once
in many epochs: twice in a row is rare already."""

_OLD_MEMBERS: Final = (
    "epoch", "verdict", "term", "decider", "members", "watermark", "reason",
)  # fmt: skip
_WAY_OUT: Final = "restore it from a copy: without it nobody knows whether this epoch was committed"
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
    term: int
    """Of the leader whose epoch it was. 0 in the abort of a member that started with it in doubt:
    whose epoch it was is not known then."""
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
        return sealed_json(plain(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "a decision record") -> Decision:
        """The name is for the error."""
        fields = unsealed_json(name, data, _OLD_MEMBERS, _WAY_OUT)
        try:
            return cls(
                epoch=number(fields["epoch"]),
                verdict=Verdict(fields["verdict"]),
                term=number(fields["term"]),
                decider=number(fields["decider"]),
                members=numbers(fields["members"]),
                watermark=clock(fields["watermark"]),
                reason=string(fields["reason"]),
            )
        except (ValueError, KeyError) as error:
            raise DamagedFileError(name, f"it is no decision ({error!r})", _WAY_OUT) from error


class DecisionLog:
    """The records of one cluster. Safe for any number of processes."""

    def __init__(self, records: Records) -> None:
        """Whoever takes part in epochs comes by here: so this is where a place that could have two
        decisions for one epoch is refused, for the lease too."""
        if not records.creates_atomically:
            raise ConfigurationError(
                "epochs cannot be decided in this place: two who create the same record at once "
                "may both be told that theirs holds. Keep decisions and the lease in a folder of a "
                "file system that all members share (Storage.open with a path), or in a database "
                "(PostgresRecords); snapshots may stay where they are"
            )
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
            raise FencedError(
                f"epoch {abort.epoch} was finished by every member, and its record deleted: this "
                "process was replaced by another of its member. Stop it"
            )
        return self.decide(abort)

    def read(self, epoch: int) -> Decision | None:
        name = _name(epoch)
        data = self._records.read(name)
        if data is None:
            return None
        shown = self._records.shown(name)
        decision = Decision.from_bytes(data, shown)
        if decision.epoch != epoch:
            raise DamagedFileError(shown, f"it is of epoch {decision.epoch}", _WAY_OUT)
        if not is_sealed(data):
            with contextlib.suppress(PenstockError):  # whoever may only read leaves it
                self._records.replace(name, decision.to_bytes())
        return decision

    def newest(self) -> Decision | None:
        for _ in range(LISTINGS_MAX):
            epochs = self.epochs()
            newest = self.read(epochs[-1]) if epochs else None
            if newest is not None or not epochs:
                return newest
        raise _vanishing()

    def decisions(self) -> list[Decision]:
        """All that are on record, ascending. One that is gone was deleted since it was listed:
        then the list is too old to tell which is the newest."""
        for _ in range(LISTINGS_MAX):
            epochs, damaged = self.epochs(), {}
            found = []
            for epoch in epochs:
                try:
                    found.append(self.read(epoch))
                except DamagedFileError as damage:
                    damaged[epoch] = damage
            decisions = [decision for decision in found if decision is not None]
            if len(decisions) == len(found):
                _refuse_needed(decisions, damaged)
                return decisions
        raise _vanishing()

    def epochs(self) -> list[int]:
        """The epochs that have a record, ascending."""
        return [int(name.removeprefix(_PREFIX)) for name in self._records.names(_PREFIX)]

    def delete(self, epochs: Iterable[int]) -> None:
        """Those that `prunable` names, and no others."""
        self._records.delete_all([_name(epoch) for epoch in epochs])


def prunable(decisions: Iterable[Decision], finished: int) -> list[int]:
    """The epochs whose record nobody needs any more, when all members have finished with those up
    to `finished`. The newest commit stays, since it is what a restart goes back to. The first and
    the last record of each leader stay for ever: a leader that was paused for long must find the
    epoch it was about to decide taken."""
    ascending = sorted(decisions, key=lambda decision: decision.epoch)
    kept = set([decision.epoch for decision in ascending if decision.is_commit][-1:])
    for before, after in itertools.pairwise(ascending):
        if before.term != after.term:
            kept |= {before.epoch, after.epoch}
    if ascending:
        kept |= {ascending[0].epoch, ascending[-1].epoch}
    return [
        decision.epoch
        for decision in ascending
        if decision.epoch <= finished and decision.epoch not in kept
    ]


def _refuse_needed(decisions: Iterable[Decision], damaged: dict[int, DamagedFileError]) -> None:
    """Below the newest commit nobody asks any more what an epoch was. Above it, one that cannot be
    read may be a newer commit."""
    newest = max((each.epoch for each in decisions if each.is_commit), default=0)
    for epoch, damage in damaged.items():
        if epoch > newest:
            raise damage


def _vanishing() -> CorruptStorageError:
    return CorruptStorageError(
        f"decisions were listed and could not be read, {LISTINGS_MAX} times: look at what the "
        "store lists, and at who deletes there"
    )


def _name(epoch: int) -> str:
    return f"{_PREFIX}{epoch:0{_DIGITS}}"
