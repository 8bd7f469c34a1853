"""Where stores that can be written are, of each kind. A new kind gets a class here."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Protocol

from penstock.journal import Collection, open_store
from penstock.journal.documents import read_documents
from penstock.journal.kafka.address import KafkaAddress, Subscription
from penstock.journal.kafka.store import KafkaStore
from tests.kafka.broker import require_kafka, shared_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from penstock.journal import OpenStore, ProducingStore
    from penstock.journal.cut import AsOf
    from penstock.journal.store import ReadableStore

BOTH = ("orders", "payments")


class ProducingPlace(Protocol):
    """Of a store that producers write to. It has the collections `orders` and `payments`, each with
    one journal and the column `id`."""

    def open(self) -> ProducingStore:
        """The store, as one more process has it."""

    def named(self, name: str) -> str:
        """A name of producers that no other test has."""


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
        for name in BOTH:
            store.create(Collection.define(name, "id BIGINT NOT NULL", "id"))


class CreatedFilePlace(FilePlace):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with self.open() as store:
            self.create(store)

    def named(self, name: str) -> str:
        return name


class KafkaPlace:
    """Topics whose values are JSON. Transactional ids are the cluster's, and so each test's names
    have something of their own in front."""

    def __init__(self, _folder: Path) -> None:
        require_kafka()
        self._kafka = shared_cluster()
        self._own = f"{os.getpid()}-{secrets.token_hex(4)}"
        for name in BOTH:
            self._kafka.topics.create(f"{name}-{self._own}", partitions=1)

    def open(self) -> ProducingStore:
        values = {"format": "json", "schema": "id BIGINT"}
        return KafkaStore(
            KafkaAddress(
                {"bootstrap.servers": self._kafka.bootstrap_servers},
                {name: Subscription((f"{name}-{self._own}",), values=values) for name in BOTH},
            )
        )

    def named(self, name: str) -> str:
        return f"{name}-{self._own}"


KINDS: dict[str, Callable[[Path], Place]] = {"file": FilePlace}
PRODUCING_KINDS: dict[str, Callable[[Path], ProducingPlace]] = {
    "file": CreatedFilePlace,
    "kafka": KafkaPlace,
}


def documents(numbers: Iterable[int]) -> list[dict[str, int]]:
    return [{"id": number} for number in numbers]


def journal_of(store: ReadableStore, collection: str) -> str:
    (found,) = store.journals(collection)
    return found.name


def seen(store: ReadableStore, as_of: AsOf = None) -> dict[str, list[int]]:
    """By collection, the documents of one cut."""
    found: dict[str, list[int]] = {name: [] for name in BOTH}
    journals = {one.name: name for name in BOTH for one in store.journals(name)}
    for cut in store.cut(list(journals), as_of):
        for part in read_documents(store, cut):
            found[journals[cut.journal]] += part.documents.column("id").to_numpy().tolist()
    return found
