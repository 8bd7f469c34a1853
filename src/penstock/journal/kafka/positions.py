"""Positions of named producers in Kafka: records of a compacted topic, by name.

The position is a record of the transaction that it belongs to, so it is committed if and only if
that is. Offsets of a group could hold it, too (the Spark sink's proof is one), but brokers forget
these after some days without a word, and who has no other record would begin from the start.

All are in partition 0: a name's last record is then the one with the greatest offset, whatever
becomes of the topic. It is looked for from the end, as transactions of the name are over by then.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.journal.cut import JournalCut
from penstock.journal.documents import read_range
from penstock.journal.kafka.client.configs import topic_settings
from penstock.journal.kafka.client.creating import create_topic
from penstock.journal.kafka.errors import KafkaAccessError
from penstock.journal.names import journal_name
from penstock.journal.positions import POSITIONS
from penstock.journal.store import Range

if TYPE_CHECKING:
    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.store import ReadableStore

TOPIC: Final = POSITIONS.name
PARTITION: Final = 0
SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),  # the newest segment is never compacted
}
LOOK_ROWS: Final = 4_096
"""Of the end at first, and then each time as many as of all before: most names are found there."""
_JOURNAL: Final = journal_name(TOPIC, ("topic", "partition"), (TOPIC, PARTITION))


def ensure_topic(cluster: Cluster, deadline: Deadline) -> bool:
    """Makes the topic of the positions unless it is there. Whether it was there, for certain: a
    broker that has not heard of it would have a program begin from the start."""
    is_there = TOPIC in cluster.topics((TOPIC,), deadline)
    if not is_there:
        is_there = not create_topic(cluster, TOPIC, 1, SETTINGS, deadline)
    else:
        _check_compacted(cluster, deadline)
    return is_there


def read_position(store: ReadableStore, name: str) -> str | None:
    """The last one of the name that was committed. Its transactions are over."""
    # A leader that was just elected does not tell the end of its log before it knows that it is
    # not below what the leader before had committed (KIP-207).
    probe = store.probe(_JOURNAL)
    cut = JournalCut(_JOURNAL, probe.first_kept, probe.write_head)
    end, rows = probe.write_head, LOOK_ROWS
    wanted = name.encode()
    while end > probe.first_kept:
        begin = max(probe.first_kept, end - rows)
        last = None
        for found in read_range(store, Range(_JOURNAL, begin, end), cut, ["key", "value"]):
            keys = found.documents.column("key").to_pylist()
            for row, key in enumerate(keys):
                if key == wanted:
                    last = found.documents.column("value")[row].as_py()
        if last is not None:
            return _parsed(name, last)
        end, rows = begin, 4 * rows
    return None


def record_of(name: str, position: str) -> dict[str, bytes]:
    """As a row of the topic."""
    return {"key": name.encode(), "value": json.dumps({"position": position}).encode()}


def _parsed(name: str, value: bytes) -> str:
    try:
        return str(json.loads(value)["position"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStorageError(
            f"the topic {TOPIC!r} has a record of {name!r} that Penstock has not written "
            f"({error!r}). Whoever wrote it has to choose another topic"
        ) from error


def _check_compacted(cluster: Cluster, deadline: Deadline) -> None:
    try:
        policy = topic_settings(cluster, TOPIC, ["cleanup.policy"], deadline)["cleanup.policy"]
    except KafkaAccessError:
        return  # who may not ask has to know
    if policy != SETTINGS["cleanup.policy"]:
        raise ConfigurationError(
            f"the topic {TOPIC!r} has cleanup.policy={policy}: positions would be lost after a "
            "while. Set it to compact: kafka-configs.sh --alter --entity-type topics "
            f"--entity-name {TOPIC} --add-config cleanup.policy=compact"
        )
