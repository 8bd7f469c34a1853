"""Create-only records: what a decision and a lease are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Records(Protocol):
    """Named values that are written once. Safe for any number of processes: of those who create
    the same name, one succeeds. PeerUnavailableError and StorageError say that a call may be made
    again; any other error ends the caller."""

    @property
    def creates_atomically(self) -> bool:
        """Whether that holds also for those who create a name at the same moment. Where it does
        not, decisions and leases cannot be kept."""

    def create(self, name: str, value: bytes) -> bool:
        """Writes a record, durably. False if there is one of that name: then nothing changed. An
        exception leaves open whether it was written; read it to know."""

    def read(self, name: str) -> bytes | None:
        """A record, or None if there is none."""

    def replace(self, name: str, value: bytes) -> None:
        """Puts a newer form of a record in place of it, which says the same: the only change that a
        record ever sees. If it is deleted at the same time, it may stay."""

    def shown(self, name: str) -> str:
        """Which record this is, for errors: a path, where there is one."""

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin so, sorted."""

    def delete(self, name: str) -> None:
        """Does nothing if there is no such record."""

    def delete_all(self, names: Iterable[str]) -> None:
        """The same of many, which is faster than one after the other. A crash may leave any."""
