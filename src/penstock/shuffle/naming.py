"""What people call the journals and producers of a feed. Pure.

A partition of Kafka's is `orders-3`, as Kafka's own tools call it, and a producer of transactions
there is its transactional id, if the transaction log tells it. All others keep their names.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from penstock.journal.names import dashed, name_of, parse_journal_name

if TYPE_CHECKING:
    from penstock.shuffle.session.view import SessionView
    from penstock.watch.standing import Seen


class Naming:
    def __init__(self, view: SessionView) -> None:
        self._external = {each.collection for each in view.plan.bindings if each.by_offset}
        self._named = view.named

    def journal(self, known: str) -> str:
        """By its name, or by what frontiers call it."""
        name = name_of(known)
        return dashed(name) if self.is_partition(name) else name

    def is_partition(self, name: str) -> bool:
        """Of a topic."""
        return bool(self._external) and parse_journal_name(name)[0] in self._external

    def producer(self, producer: str) -> str:
        found = self._named.get(producer)
        return producer if found is None else found.name

    def began(self, producer: str) -> float | None:
        """When its open transaction did, if the transaction log tells."""
        found = self._named.get(producer)
        return None if found is None else found.began

    def seen(self, seen: Seen) -> Seen:
        """A wait, with these names in its sentence."""
        changed = {
            each.name: told
            for each in fields(seen.cause)
            if (told := self._told(each.name, getattr(seen.cause, each.name))) is not None
        }
        return replace(seen, cause=replace(seen.cause, **changed)) if changed else seen

    def _told(self, name: str, value: object) -> object:
        match name, value:
            case "journal" | "hinted_by", str():
                return self.journal(value)
            case "journals", tuple():
                return tuple(map(self.journal, value))
            case "producer", str():
                return self.producer(value)
        return None
