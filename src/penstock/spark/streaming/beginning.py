"""Where a query over Kafka began: decided once, and kept in the feed's folder.

`latest` means the ends of partitions when the query was started for the first time. A restart reads
what was noted then: what came meanwhile is not left out. Partitions that appear later are read from
their begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from penstock.journal.kafka.edges import LATEST, Edge
from penstock.sealed import sealed_json, unsealed_json
from penstock.spark.plan import opened
from penstock.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.kafka.store import KafkaStore
    from penstock.spark.streaming.options import StreamOptions

NAME: Final = "begin.json"
_FORMAT: Final = 1
_WAY_OUT: Final = "restore it from a copy, or begin with a new checkpoint"


def settled_store(options: StreamOptions, folder: Path, *, is_new: bool) -> str:
    """The address of the store, with where reading begins."""
    kafka = options.kafka
    if kafka is None:
        return options.store
    place = Storage.open(folder)
    if is_new:
        store = cast("KafkaStore", opened(options.store))
        edge = kafka.starting or Edge(LATEST)
        starts = store.offsets_at(kafka.collection, edge, "startingOffsets")
        place.create(NAME, sealed_json({"format": _FORMAT, "starts": starts}))
    path = folder / NAME
    found = unsealed_json(str(path), path.read_bytes(), ("format", "starts"), _WAY_OUT)
    return kafka.at(found["starts"]).text
