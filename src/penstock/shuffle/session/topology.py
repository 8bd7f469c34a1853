"""Which member reads which journal.

Where all documents of a journal have one key, because every column of the key is a partition
column, they all go to the member that owns its vnode: that one reads the journal, and nothing goes
over the network. Any other journal may be read by any member. Rendezvous weights choose: a hash of
member, binding and journal, the greatest wins. So all processes choose alike, a member that leaves
gives its journals to all others, and one that comes takes its share from all: no other moves.

How even: as if journals were dealt out at random. Of n journals with m members each gets n/m, give
or take the square root of it. Of 10,000 with 4 members, 2,500 and hardly ever 130 more or less; of
a dozen, one member may well have twice its share. Levelling them would move journals that could
stay; the Queues are even in any case, for documents go there by their keys.
"""

from __future__ import annotations

import datetime
import decimal
import json
import struct
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.checksum import checksum
from penstock.journal.names import encode_label, name_of, parse_journal_name
from penstock.routing import vnodes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.collection import Collection
    from penstock.journal.store import ReadableStore
    from penstock.routing import Assignment
    from penstock.shuffle.plan import BindingPlan, Plan

_WEIGHED: Final = struct.Struct("<QH")


class Topology:
    """The readers of a plan's journals, as long as an assignment holds."""

    def __init__(
        self, plan: Plan, collections: Mapping[str, Collection], assignment: Assignment
    ) -> None:
        """`collections` has those of the plan, by name: the types of their columns count."""
        self._plan = plan
        self._collections = collections
        self._assignment = assignment

    @classmethod
    def of(cls, plan: Plan, store: ReadableStore, assignment: Assignment) -> Topology:
        names = {binding.collection for binding in plan.bindings}
        return cls(plan, {name: store.collection(name) for name in names}, assignment)

    @property
    def members(self) -> tuple[int, ...]:
        return self._assignment.members

    def owner(self, vnode: int) -> int:
        return self._assignment.owner_of(vnode)

    def lister(self, binding: int) -> int:
        """The member whose Slice lists the journals of a binding."""
        return self.members[binding % len(self.members)]

    def reader(self, binding: int, journal: str) -> int:
        """The member whose Slice reads a journal for a binding. All that have one name are read by
        the same."""
        journal = name_of(journal)
        vnode = self.vnode(binding, journal)
        if vnode is not None:
            return self._assignment.owner_of(vnode)
        return max(self.members, key=lambda member: (_weight(member, binding, journal), member))

    def vnode(self, binding: int, journal: str) -> int | None:
        """The vnode of all documents of a journal; None if they may have several, or if the name
        does not tell."""
        plan = self._plan.bindings[binding]
        if not plan.key_from_partitions:
            return None
        columns = _key_columns(plan, self._collections[plan.collection], journal)
        return None if columns is None else int(vnodes_of(columns)[0])


def _weight(member: int, binding: int, journal: str) -> int:
    return checksum(_WEIGHED.pack(member, binding) + journal.encode())


def _key_columns(
    plan: BindingPlan, collection: Collection, journal: str
) -> list[pa.Array[Any]] | None:
    """The key of all documents of a journal, as a row, if its labels give it exactly."""
    _, labels = parse_journal_name(journal)
    columns = []
    for column in plan.key:
        text = labels.get(column)
        kind = collection.schema.field(column).type
        value = None if text is None else _value_of(text, kind)
        if value is None:
            return None
        columns.append(value)
    return columns


def _value_of(text: str, kind: pa.DataType) -> pa.Array[Any] | None:
    """The value that a label stands for, as a column of one; None unless the label is just what
    would be written for that value."""
    try:
        column = pa.array([_decoded(text, kind)], kind)
        is_exact = encode_label(column[0].as_py()) == text
    except (ValueError, ArithmeticError, TypeError, pa.ArrowException):
        return None
    return column if is_exact else None


def _decoded(text: str, kind: pa.DataType) -> object:
    if text == "%_null":
        return None
    if pa.types.is_string(kind):
        return urllib.parse.unquote(text, errors="strict")
    shown = urllib.parse.unquote(text.removeprefix("%_"), errors="strict")
    if pa.types.is_binary(kind):
        return bytes.fromhex(shown.removeprefix("b"))
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(shown)
    if pa.types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(shown)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(shown)
    return json.loads(shown)
