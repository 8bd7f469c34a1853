"""Where reading of topics began: decided once, and kept in the feed's folder.

`latest` means the ends of partitions when the feed was started for the first time. A restart reads
what was noted then: what came meanwhile is not left out. Partitions that appear later are read from
their begin, and so are topics of which nobody says where to begin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from penstock.journal import kind_of_store
from penstock.journal.joined import SCHEME as JOINED
from penstock.journal.joined import JoinedAddress
from penstock.journal.names import Selector
from penstock.sealed import sealed_json, unsealed_json
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.journal.kafka.address import KafkaAddress
    from penstock.journal.kafka.edges import Edge
    from penstock.journal.kafka.store import KafkaStore
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Feed

NAME: Final = "begin.json"
_FORMAT: Final = 1
_KAFKA: Final = "kafka"
_WAY_OUT: Final = "restore it from a copy, or begin with a new checkpoint"

Starts = dict[str, dict[str, int]]
"""Offsets by topic and partition."""


def settled_address(feed: Feed, store: ReadableStore, folder: Path, *, is_new: bool) -> str:
    """The address of the same store, with where reading begins. A feed that is new decides it."""
    if cluster_in(store.address) is None:
        return store.address
    if is_new:
        found = starts_of(feed, store)
        Storage.open(folder).create(NAME, sealed_json({"format": _FORMAT, "starts": found}))
    path = folder / NAME
    noted = unsealed_json(str(path), path.read_bytes(), ("format", "starts"), _WAY_OUT)
    return _starting_at(store.address, noted["starts"])


def starts_of(feed: Feed, store: ReadableStore) -> dict[str, Starts]:
    """Of each collection of topics, the offsets at which users ask to begin, if they do."""
    from penstock.journal.kafka.edges import misnamed  # noqa: PLC0415 - Kafka is an extra
    from penstock.journal.kafka.store import partition_of  # noqa: PLC0415

    cluster = cluster_in(store.address)
    edges: dict[str, Edge] = {}
    for name, one in ({} if cluster is None else cluster.subscriptions).items():
        if one.starting is not None:
            edges[name] = one.starting
    journals = {name: journals_of(feed, store, name) for name in edges}
    starts = {}
    for name, edge in edges.items():
        # What an option names may be of several bindings, and each takes its own.
        together = (names for other, names in journals.items() if edges[other] == edge)
        read = {partition_of(journal) for names in together for journal in names}
        if strange := edge.named - read:
            what = f"names {min(map(str, strange))}, which is not read or not there"
            raise misnamed(edge.option, what)
        own = edge.of(map(partition_of, journals[name]))
        holder = cast("KafkaStore", store.holding(name))
        starts[name] = holder.offsets_at(journals[name], own)
    return starts


def journals_of(feed: Feed, store: ReadableStore, collection: str) -> set[str]:
    """The journals that any binding of the collection reads."""
    partition_by = store.collection(collection).partition_by
    return {
        journal.name
        for binding in feed.bindings
        if binding.collection == collection
        for journal in store.journals(collection, Selector.parse(binding.partitions, partition_by))
    }


def cluster_in(address: str) -> KafkaAddress | None:
    """That of the Kafka cluster that the store is, or is among others."""
    kind = kind_of_store(address)
    if kind == _KAFKA:
        from penstock.journal.kafka.address import KafkaAddress  # noqa: PLC0415 - it is an extra

        return KafkaAddress.parse(address)
    parts = JoinedAddress.parse(address).parts if kind == JOINED else ()
    return next((found for text, _ in parts if (found := cluster_in(text)) is not None), None)


def _starting_at(address: str, starts: Mapping[str, Starts]) -> str:
    if kind_of_store(address) == JOINED:
        parts = JoinedAddress.parse(address).parts
        return JoinedAddress(
            tuple((_starting_at(text, starts), names) for text, names in parts)
        ).text
    found = cluster_in(address)
    if found is None:
        return address
    subscriptions = {
        name: replace(one, starts=starts.get(name, {})) for name, one in found.subscriptions.items()
    }
    return replace(found, subscriptions=subscriptions).text
