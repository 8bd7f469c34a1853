"""The cluster's key-value interface: every member writes its own slot, and reads everybody's."""

from __future__ import annotations

from typing import Protocol


class KeyValue(Protocol):
    """One member's view."""

    @property
    def member(self) -> int: ...

    def write(self, key: str, value: str) -> None:
        """Sets a key of this member's own slot."""

    def read(self, member: int, key: str) -> str | None:
        """A key of any member's slot, as far as it is known here."""


class MemoryKeyValue:
    """For members in one process: all views of one family share their slots."""

    def __init__(self, member: int, slots: dict[tuple[int, str], str] | None = None) -> None:
        self.member = member
        self._slots = {} if slots is None else slots

    def view(self, member: int) -> MemoryKeyValue:
        """The same slots, as another member sees them."""
        return MemoryKeyValue(member, self._slots)

    def write(self, key: str, value: str) -> None:
        self._slots[self.member, key] = value

    def read(self, member: int, key: str) -> str | None:
        return self._slots.get((member, key))
