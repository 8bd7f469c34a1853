"""Which member has which vnode, from one start of a shuffle to the next.

An assignment is made from the one before, so that few vnodes move when members come and go. It is
on record before anything is done under it, with the newest epoch of that moment: queues of epochs
up to that one were filled under an assignment before it. If nothing came of a start, no epoch has
its assignment: the next one is made from that of the newest epoch, whose queues are there.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError, CorruptStorageError, PenstockError
from penstock.routing import Assignment, assign
from penstock.sealed import DamagedFileError, is_sealed, sealed_json, unsealed_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.storage import Storage

_FOLDER: Final = "assignments/"
_FORMAT: Final = 1
_OLD_MEMBERS: Final = ("format", "after", "assignment")
_WAY_OUT: Final = (
    "restore it from a copy: without it nobody knows which member's queue has which rows. Or begin "
    "with a new checkpoint or folder: all documents are read again then"
)


@dataclass(frozen=True, slots=True)
class Assigned:
    assignment: Assignment
    after: int
    """The newest epoch when this was decided."""
    before: Assignment | None = None
    """Under which the queues of the newest epoch were filled, if that was another record."""


def settle_assignment(place: Storage, members: Iterable[int], newest: int) -> Assigned:
    """The assignment on record, if it is to these members; else the next one. By whoever has the
    shuffle's folder: nobody else decides at the same time."""
    wanted = tuple(sorted(members))
    records = _newest_first(place)
    last = next(records, None)
    if last is None:
        return _decide(place, assign(wanted), newest)
    filled = last if last.after < newest else None
    if last.assignment.members == wanted and (filled is not None or not newest):
        return last
    filled = filled or next((one for one in records if one.after < newest), None)
    before = None if filled is None else filled.assignment
    if last.assignment.members == wanted:
        return replace(last, before=before)
    owners = (before or last.assignment).reassign(wanted).owners
    made = Assignment(last.assignment.version + 1, owners)
    return replace(_decide(place, made, newest), before=before)


def _decide(place: Storage, made: Assignment, newest: int) -> Assigned:
    decided = Assigned(made, newest)
    place.create(f"{_FOLDER}{made.version:010d}", _encode(decided))
    return decided


def _newest_first(place: Storage) -> Iterator[Assigned]:
    for name in sorted(place.names(_FOLDER), reverse=True):
        data = place.read(name)
        if data is None:
            continue
        assigned = decode_assigned(place.shown(name), data)
        if not is_sealed(data):
            with contextlib.suppress(PenstockError):
                place.replace(name, _encode(assigned))
        yield assigned


def _encode(assigned: Assigned) -> bytes:
    assignment = json.loads(assigned.assignment.to_json())
    return sealed_json({"format": _FORMAT, "after": assigned.after, "assignment": assignment})


def decode_assigned(name: str, data: bytes) -> Assigned:
    """What a record says. The name is for the error."""
    fields = unsealed_json(name, data, _OLD_MEMBERS, _WAY_OUT)
    try:
        if fields["format"] != _FORMAT:
            raise CorruptStorageError(
                f"{name} has format {fields['format']}, and this release knows {_FORMAT}"
            )
        return Assigned(Assignment.from_json(json.dumps(fields["assignment"])), fields["after"])
    except (KeyError, TypeError, ValueError, ConfigurationError) as error:
        raise DamagedFileError(name, f"it is no assignment ({error!r})", _WAY_OUT) from error
