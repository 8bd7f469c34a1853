"""Record batches as a broker has them on its disk, by their headers alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.kafka import KafkaCluster

_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Offset, length, leader epoch, magic, checksum, attributes, last delta, two timestamps, producer
id, producer epoch, sequence, count: the record batch of version 2."""
_LENGTH_BEGINS_BEHIND = 12
_CONTROL = 0x20
_TRANSACTIONAL = 0x10


@dataclass(frozen=True, slots=True)
class Batch:
    offset: int
    producer: int
    epoch: int
    sequence: int
    count: int
    is_transactional: bool
    marker: str | None
    """Of a control batch: what it says."""


def batches(kafka: KafkaCluster, topic: str, partition: int, node: int = 1) -> Iterator[Batch]:
    """What a node has stored of a partition."""
    folder = kafka.nodes[node].folder / "data" / f"{topic}-{partition}"
    for path in sorted(folder.glob("*.log")):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # compacted, or deleted, since it was listed
        at = 0
        while len(content) - at >= _HEADER.size:
            fields = _HEADER.unpack_from(content, at)
            offset, length, attributes = fields[0], fields[1], fields[5]
            end = at + _LENGTH_BEGINS_BEHIND + length
            if length == 0 or end > len(content):
                return  # not written yet
            marker = None
            if attributes & _CONTROL:
                # One record: length, attributes, two deltas, key length, then version and type.
                marker = ("ABORT", "COMMIT")[content[at + _HEADER.size + 8]]
            producer, epoch, sequence, count = fields[9:]
            transactional = bool(attributes & _TRANSACTIONAL)
            yield Batch(offset, producer, epoch, sequence, count, transactional, marker)
            at = end
