"""The leader's lease: who leads, and under which term.

Each change is a create-only record with the next number, so of all who reach for the lease at once
one gets it. Nobody compares clocks of different machines: a lease is over for an observer when its
newest record has not changed for the lease's whole time by the observer's own clock. Its holder
counts from before it wrote the record, so it stops first.

A holder that renews too late, because its disk was slow, does nothing that needs the lease until it
has renewed it. If the newest record is still its own then, nobody has led meanwhile, since whoever
takes the lease creates the next record: the holder goes on under the same term.

A lease keeps members from leading against each other all the time. What makes that harmless when
it happens (a leader that was paused does not know that it was) are the decision records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.epoch.fields import boolean, number, plain, seconds, string
from penstock.errors import ConfigurationError
from penstock.sealed import DamagedFileError, sealed_json, unsealed_json

if TYPE_CHECKING:
    from penstock.epoch.records import Records

LEASE_SECONDS: Final = 5.0
"""How long a cluster is without a leader after one died, at most about twice this."""
RENEWALS: Final = 3
"""In the time of a lease: two of them may fail."""
RECORDS_KEPT: Final = 4

_OLD_MEMBERS: Final = ("number", "term", "member", "instance", "seconds", "released")
_PREFIX: Final = "lease/"
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    number: int
    """Rises by one with each record."""
    term: int
    """Rises by one with each new holder, also if that is the same member, started again."""
    member: int
    instance: str
    """Tells a member's processes apart."""
    seconds: float
    released: bool = False
    """Given back: the next one need not wait."""

    def to_bytes(self) -> bytes:
        return sealed_json(plain(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "a lease record") -> LeaseRecord:
        """The name is for the error."""
        fields = unsealed_json(name, data, _OLD_MEMBERS)
        try:
            return cls(
                number=number(fields["number"]),
                term=number(fields["term"]),
                member=number(fields["member"]),
                instance=string(fields["instance"]),
                seconds=seconds(fields["seconds"]),
                released=boolean(fields["released"]),
            )
        except (ValueError, KeyError) as error:
            raise DamagedFileError(name, f"it is no lease ({error!r})") from error


class Lease:
    """One process's view of the lease. Not safe for threads: its leader's loop owns it."""

    def __init__(
        self,
        records: Records,
        member: int,
        instance: str,
        seconds: float = LEASE_SECONDS,
        *,
        takes_over: bool = False,
    ) -> None:
        """`takes_over`: whoever held it before is known to be gone, and is not waited for. Later,
        another holder counts as always."""
        if seconds <= 0:
            raise ConfigurationError(f"a lease lasts longer than {seconds:g} s")
        self._records = records
        self._member = member
        self._instance = instance
        self._seconds = seconds
        self._seen: LeaseRecord | None = None
        self._seen_at = 0.0
        self._held_until = -math.inf
        self._takes_over = takes_over
        self._dropped = False
        """The term is over, although the newest record may still be ours."""

    def hold(self, now: float) -> int | None:
        """Takes the lease if it is free, renews it if it is ours and a part of it is over. Returns
        its term, or None while another holds it. If that took longer than the lease lasts, the term
        is ours and `term` is None: renew it again."""
        if self.term(now) is not None and now < self._held_until - self._rest_seconds:
            return self.term(now)
        newest = self._look(now)
        if newest is not None and not self._is_mine(newest) and not self._is_over(newest, now):
            return None
        return self._take(newest, now)

    def term(self, now: float) -> int | None:
        """The term of the lease that is held at this time. None: it is not ours, or no more."""
        if self._seen is None or not self._is_mine(self._seen) or now >= self._held_until:
            return None
        return self._seen.term

    def drop(self) -> None:
        """Holds it no more, whatever was thought: a newer leader was met."""
        self._held_until = -math.inf
        self._dropped = True

    def release(self, now: float) -> None:
        """Gives the lease back, if it is ours."""
        held, term = self._seen, self.term(now)
        self._held_until = -math.inf
        if held is not None and term is not None:
            record = LeaseRecord(
                held.number + 1, term, self._member, self._instance, self._seconds, released=True
            )
            self._records.create(_name(record.number), record.to_bytes())

    @property
    def _rest_seconds(self) -> float:
        """What is left of the lease when it is renewed."""
        return self._seconds * (RENEWALS - 1) / RENEWALS

    def _is_mine(self, record: LeaseRecord) -> bool:
        return (record.member, record.instance, record.released) == (
            self._member,
            self._instance,
            False,
        )

    def _is_over(self, record: LeaseRecord, now: float) -> bool:
        return self._takes_over or record.released or now - self._seen_at >= record.seconds

    def _look(self, now: float) -> LeaseRecord | None:
        newest = self._newest()
        if newest != self._seen:
            self._seen, self._seen_at = newest, now
        return newest

    def _newest(self) -> LeaseRecord | None:
        """In place of one that is damaged stands one that nobody holds: it is waited out like any
        other. A term rises by one with a record, or not at all, so its term is not above that."""
        damages = []
        for name in reversed(self._records.names(_PREFIX)):
            data = self._records.read(name)
            if data is None:
                return None  # deleted since it was listed
            try:
                record = LeaseRecord.from_bytes(data, self._records.shown(name))
            except DamagedFileError as damage:
                damages.append(damage)
                continue
            if not damages:
                return record
            number, term = record.number + len(damages), record.term + len(damages)
            return replace(record, number=number, term=term, instance="", released=False)
        if damages:
            raise damages[0]
        return None

    def _take(self, newest: LeaseRecord | None, now: float) -> int | None:
        """`now` is from before the newest record was looked at: the lease counts from then."""
        if newest is None:
            number, term = 1, 1
        else:
            renewed = self._is_mine(newest) and not self._dropped
            number, term = newest.number + 1, newest.term + (not renewed)
        record = LeaseRecord(number, term, self._member, self._instance, self._seconds)
        if not self._records.create(_name(number), record.to_bytes()):
            return None  # another was faster; look again next time
        names = self._records.names(_PREFIX)
        if names[-1] != _name(number):
            return None  # a number of long ago: this process slept through many changes
        self._seen, self._seen_at = record, now
        self._held_until = now + self._seconds
        self._takes_over = self._dropped = False
        for name in names[:-RECORDS_KEPT]:
            self._records.delete(name)
        return term


def _name(number: int) -> str:
    return f"{_PREFIX}{number:0{_DIGITS}}"
