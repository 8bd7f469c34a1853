"""What a batch read of Kafka shows: from the offsets asked for up to others, or to a cut of now."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from penstock.journal.cut import JournalCut
from penstock.journal.errors import DataLossError
from penstock.journal.kafka.edges import EARLIEST, LATEST, Edge
from penstock.journal.kafka.store import partition_of
from penstock.journal.names import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.journal.kafka.store import KafkaStore
    from penstock.journal.store import ReadableStore
    from penstock.spark.kafka_options import KafkaRead

log = logging.getLogger(__name__)


def kafka_cuts(
    store: ReadableStore, kafka: KafkaRead, listed: Callable[[], Sequence[str]]
) -> list[JournalCut]:
    """Without an ending, every transaction is whole. With one, a row counts if it stands below the
    end of its partition, and so does the marker that commits it."""
    cluster = cast("KafkaStore", store)
    starts = cluster.offsets_at(listed(), kafka.starting or Edge(EARLIEST))
    if kafka.ending is None or kafka.ending == Edge(LATEST):
        cuts = cluster.cut(listed)
    else:
        ends = cluster.offsets_at(listed(), kafka.ending)
        cuts = [
            JournalCut(name, probe.first_kept, _of(ends, name, probe.write_head))
            for name, probe in sorted(cluster.probes(listed()).items())
        ]
    return [begun_at(cluster, cut, starts) for cut in cuts]


def _of(offsets: Mapping[str, Mapping[str, int]], journal: str, otherwise: int) -> int:
    """Of a partition; one that was added just now has no offset there."""
    partition = partition_of(journal)
    return offsets.get(partition.topic, {}).get(str(partition.number), otherwise)


def begun_at(
    store: ReadableStore, cut: JournalCut, starts: Mapping[str, Mapping[str, int]]
) -> JournalCut:
    """The cut without what lies before the offsets that were asked for."""
    start = _of(starts, cut.journal, cut.begin)
    if start < cut.begin:
        what = f"offsets {start} to {cut.begin - 1} were asked for, and retention has dropped them"
        collection = cut.journal.partition("/")[0]
        if store.holding(collection).fails_on_loss:
            raise DataLossError(f"the read of {collection!r}", cut.journal, what)
        log.warning("%s: %s", shown(cut.journal), what)
    begin = max(start, cut.begin)
    return replace(cut, begin=begin, end=max(begin, cut.end))
