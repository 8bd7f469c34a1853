"""Which member owns which vnode.

An assignment is balanced: no two members' shares differ by more than one vnode. When members come
and go, the next assignment is made from the one before, and as few vnodes change their owner as
balance allows. So an assignment depends on those before it: one process makes it, and the others
are told (`to_json`).

Where several vnodes could stay or move equally well, rendezvous weights choose: a hash of vnode
and member. All processes choose alike, and the vnodes of a member that leaves go to all others.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import xxhash

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.routing.keyhash import VNODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MEMBER_MAX: Final = 2**64 - 1
"""Members are numbered from 1; 0 is nobody, and owns nothing here."""
VERSION_MAX: Final = 2**64 - 1
TEXT_FORMAT: Final = 1

Members: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
MemberIndexes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

_NOBODY: Final = 0
_MEMBER_TEXT: Final = re.compile("[1-9][0-9]{0,19}")
_WEIGHED: Final = struct.Struct("<QQ")


class AssignmentTextError(RemoteProtocolError):
    """Text that another process left as an assignment is not one. Look at what wrote it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"this is not an assignment of vnodes: {self.problem}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The owner of each vnode, and the number of this decision. A newer one replaces an older."""

    version: int
    owners: tuple[int, ...]
    members: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Those who own something, ascending."""
    owners_array: Members = field(init=False, repr=False, compare=False)
    """The owners again, to be indexed with a column of vnodes."""
    member_indexes: MemberIndexes = field(init=False, repr=False, compare=False)
    """By vnode, where in `members` its owner is. A byte each, to sort rows by."""

    def __post_init__(self) -> None:
        if not 1 <= self.version <= VERSION_MAX:
            raise LocalProtocolError(f"versions go from 1 to {VERSION_MAX}, not {self.version}")
        if len(self.owners) != VNODES:
            raise LocalProtocolError(f"{VNODES} vnodes have an owner each, not {len(self.owners)}")
        for vnode, owner in enumerate(self.owners):
            if not 1 <= owner <= MEMBER_MAX:
                raise LocalProtocolError(f"vnode {vnode} cannot be of member {owner}")
        owners = np.array(self.owners, np.uint64)
        members, indexes = np.unique(owners, return_inverse=True)
        for name, value in (
            ("members", tuple(members.tolist())),
            ("owners_array", _read_only(owners)),
            ("member_indexes", _read_only(indexes.astype(np.uint8))),
        ):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[Assignment], tuple[int, tuple[int, ...]]]:
        return Assignment, (self.version, self.owners)

    def owner_of(self, vnode: int) -> int:
        if not 0 <= vnode < VNODES:
            raise LocalProtocolError(f"vnodes go from 0 to {VNODES - 1}, not {vnode}")
        return self.owners[vnode]

    def vnodes_of(self, member: int) -> tuple[int, ...]:
        """What a member owns, ascending; nothing, if it is no member."""
        return tuple(vnode for vnode, owner in enumerate(self.owners) if owner == member)

    def reassign(self, members: Iterable[int]) -> Assignment:
        """The assignment to these members that moves the fewest vnodes.

        The version moves by one in any case: it numbers decisions, and two of them are never
        confused. With the same members, if they are in balance, the owners stay as they are.
        """
        return Assignment(self.version + 1, _balanced(self.owners, members))

    def to_json(self) -> str:
        """One line of JSON. Members are text in it, because not every reader of JSON has numbers
        of 64 bits."""
        owned = {str(member): list(self.vnodes_of(member)) for member in self.members}
        return json.dumps({"format": TEXT_FORMAT, "version": self.version, "members": owned})

    @classmethod
    def from_json(cls, text: str | bytes) -> Assignment:
        """What `to_json` wrote, or an `AssignmentTextError` that says what is wrong."""
        try:
            fields = json.loads(text, object_pairs_hook=_distinct_fields)
        except (ValueError, RecursionError) as error:
            raise AssignmentTextError(f"it is not JSON: {error}") from None
        return _from_fields(fields)


def assign(members: Iterable[int]) -> Assignment:
    """The first assignment. It depends on nothing but who the members are."""
    return Assignment(1, _balanced((_NOBODY,) * VNODES, members))


def _read_only(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    array.setflags(write=False)
    return array


def _checked(members: Iterable[int]) -> list[int]:
    given = sorted(map(index, members))
    if not given:
        raise ConfigurationError("vnodes cannot be assigned to no members: name at least one")
    if len(given) > VNODES:
        raise ConfigurationError(
            f"{len(given)} members are too many: there are {VNODES} vnodes to share out"
        )
    for before, member in zip([_NOBODY, *given], given, strict=False):
        if not 1 <= member <= MEMBER_MAX:
            raise ConfigurationError(f"a member is a number from 1 to {MEMBER_MAX}, not {member}")
        if member == before:
            raise ConfigurationError(f"member {member} is named twice: name each member once")
    return given


def _balanced(owners: Sequence[int], members: Iterable[int]) -> tuple[int, ...]:
    """The owners of all vnodes, as few of them changed as balance among the members allows."""
    present = _checked(members)
    held: dict[int, list[int]] = {member: [] for member in present}
    homeless: list[int] = []
    for vnode, owner in enumerate(owners):
        held.get(owner, homeless).append(vnode)

    # 1. Shares. All get the same, and some get one more: first those who hold more already, since
    # each of them keeps a vnode by it. Which of several equals is drawn by a vnode beyond the last.
    share, remainder = divmod(VNODES, len(present))
    by_claim = sorted(
        present,
        key=lambda member: (len(held[member]) > share, _weight(VNODES, member)),
        reverse=True,
    )
    shares = dict.fromkeys(present, share)
    shares |= dict.fromkeys(by_claim[:remainder], share + 1)

    # 2. Who holds more than the share keeps what weighs most.
    for member, vnodes in held.items():
        heaviest_first = sorted(vnodes, key=partial(_weight, member=member), reverse=True)
        held[member] = heaviest_first[: shares[member]]
        homeless += heaviest_first[shares[member] :]

    # 3. What is left goes where it weighs most, the heaviest first.
    wanting = [member for member in present if len(held[member]) < shares[member]]
    claims = [(_weight(vnode, member), vnode, member) for vnode in homeless for member in wanting]
    chosen = {vnode: member for member, vnodes in held.items() for vnode in vnodes}
    for _, vnode, member in sorted(claims, reverse=True):
        if vnode not in chosen and len(held[member]) < shares[member]:
            held[member].append(vnode)
            chosen[vnode] = member
    return tuple(chosen[vnode] for vnode in range(VNODES))


def _weight(vnode: int, member: int) -> int:
    return xxhash.xxh3_64_intdigest(_WEIGHED.pack(vnode, member))


def _distinct_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise AssignmentTextError(f"it has two fields {twice!r} in one object")
    return fields


def _from_fields(fields: object) -> Assignment:
    if not isinstance(fields, dict):
        raise AssignmentTextError(f"it must be an object, not {_shown(fields)}")
    found = fields.get("format")
    if not _is_number(found, TEXT_FORMAT, TEXT_FORMAT):
        raise AssignmentTextError(
            f"its format is {_shown(found)}, and this reader knows {TEXT_FORMAT}"
        )
    if fields.keys() != {"format", "version", "members"}:
        raise AssignmentTextError(
            f"its fields must be format, version and members, not {', '.join(sorted(fields))}"
        )
    version = fields["version"]
    if not _is_number(version, 1, VERSION_MAX):
        raise AssignmentTextError(
            f"its version must be a whole number from 1 to {VERSION_MAX}, not {_shown(version)}"
        )
    return Assignment(version, _read_owners(fields["members"]))


def _read_owners(owned: object) -> tuple[int, ...]:
    if not isinstance(owned, dict):
        raise AssignmentTextError(f"its members must be an object, not {_shown(owned)}")
    owners: dict[int, int] = {}
    for name, vnodes in owned.items():
        if not _MEMBER_TEXT.fullmatch(name) or int(name) > MEMBER_MAX:
            raise AssignmentTextError(
                f"a member is a number from 1 to {MEMBER_MAX}, not {_shown(name)}"
            )
        if not isinstance(vnodes, list) or not vnodes:
            raise AssignmentTextError(
                f"member {name} must have a list of vnodes, not {_shown(vnodes)}"
            )
        for vnode in vnodes:
            if not _is_number(vnode, 0, VNODES - 1):
                raise AssignmentTextError(
                    f"member {name} has {_shown(vnode)}, and vnodes go from 0 to {VNODES - 1}"
                )
            if vnode in owners:
                raise AssignmentTextError(f"vnode {vnode} is there twice")
            owners[vnode] = int(name)
    missing = next((vnode for vnode in range(VNODES) if vnode not in owners), None)
    if missing is not None:
        raise AssignmentTextError(f"nobody has vnode {missing}")
    return tuple(owners[vnode] for vnode in range(VNODES))


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
