"""Which member has which vnode, from one start of a shuffle to the next.

An assignment is made from the one before, so that few vnodes move when members come and go. It is
on record before anything is done under it, with the newest epoch of that moment: queues of epochs
up to that one were filled under another assignment, and are of no use to this one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import CorruptStorageError
from penstock.routing import Assignment, assign

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage import Storage

_FOLDER: Final = "assignments/"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Assigned:
    assignment: Assignment
    after: int
    """The newest epoch when this was decided."""


def settle_assignment(place: Storage, members: Iterable[int], newest: int) -> Assigned:
    """The assignment on record, if it is to these members; else the next one. By whoever has the
    shuffle's folder: nobody else decides at the same time."""
    wanted = tuple(sorted(members))
    last = _last(place)
    if last is not None and last.assignment.members == wanted:
        return last
    made = assign(wanted) if last is None else last.assignment.reassign(wanted)
    decided = Assigned(made, newest)
    place.create(f"{_FOLDER}{made.version:010d}", _encode(decided))
    return decided


def _last(place: Storage) -> Assigned | None:
    names = place.names(_FOLDER)
    if not names:
        return None
    data = place.read(max(names))
    return None if data is None else decode_assigned(max(names), data)


def _encode(assigned: Assigned) -> bytes:
    assignment = json.loads(assigned.assignment.to_json())
    return json.dumps(
        {"format": _FORMAT, "after": assigned.after, "assignment": assignment}
    ).encode()


def decode_assigned(name: str, data: bytes) -> Assigned:
    """What a record says. The name is for the error."""
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["format"] != _FORMAT:
            raise CorruptStorageError(
                f"{name} has format {fields['format']}, and this release knows {_FORMAT}"
            )
        return Assigned(Assignment.from_json(json.dumps(fields["assignment"])), fields["after"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStorageError(f"{name} is not an assignment of this release: {error!r}") from (
            error
        )
