"""Where stores that can be written are, of each kind. A new kind gets a class here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.journal import Collection, open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.journal import OpenStore


class Place(Protocol):
    def open(self) -> OpenStore:
        """The store, as one more process has it."""

    def create(self, store: OpenStore) -> None:
        """The collections `orders` and `payments`, each with one journal."""


class FilePlace:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "store"

    def open(self) -> OpenStore:
        return open_store(self._folder, segment_bytes_max=2_000)

    def create(self, store: OpenStore) -> None:
        for name in ("orders", "payments"):
            store.create(Collection.define(name, "id BIGINT NOT NULL", "id"))


KINDS: dict[str, Callable[[Path], Place]] = {"file": FilePlace}
