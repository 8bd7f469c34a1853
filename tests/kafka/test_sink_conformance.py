"""The Kafka sink on a real broker: the conformance suite, killed and paused at every step."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.sinks import kafka as kafka_sink
from penstock.sinks.kafka import KafkaSink
from penstock.testing.sinks import SinkConformance, Target
from tests.kafka.committed import committed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.sinks.two_phase import Batch, Part
    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

NUMBERS = itertools.count()


class IdSink(KafkaSink):
    """Of rows with an id: the id is the key and the value."""

    def stage(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> Part | None:
        return super().stage(batch, partition, (keyed(each) for each in rows))


def keyed(rows: pa.RecordBatch) -> pa.RecordBatch:
    ids: pa.Array[Any] = pc.cast(rows.column("id"), pa.string())
    return pa.record_batch([ids, ids], names=["key", "value"])


class TopicTarget(Target):
    def __init__(self, kafka: KafkaCluster, folder: Path, transaction_bytes: int) -> None:
        self.kafka, self.folder, self.bytes = kafka, folder, transaction_bytes
        self.name = f"sink-{os.getpid()}-{next(NUMBERS)}"
        kafka.topics.create(self.name, partitions=3)

    def sink(self) -> KafkaSink:
        # The checks' queries have the same ids for every target.
        options = {"bootstrap.servers": self.kafka.bootstrap_servers}
        return IdSink(
            options,
            str(self.folder),
            self.name,
            prefix=f"{self.name}-",
            transaction_bytes=self.bytes,
        )

    def contents(self) -> Iterator[int]:
        return (int(message.value() or b"") for message in committed(self.kafka, self.name))

    def leftovers(self) -> list[Path]:
        return [path for path in (self.folder / "staged").rglob("*") if path.is_file()]


class TestKafkaSink(SinkConformance):
    hooks = (*SinkConformance.hooks, (kafka_sink, kafka_sink.Step))

    @pytest.fixture(autouse=True)
    def _targets(self, kafka: KafkaCluster, tmp_path: Path) -> None:
        self.kafka = kafka
        self.folders = (tmp_path / str(number) for number in itertools.count())

    def new_target(self) -> Target:
        return TopicTarget(self.kafka, next(self.folders), kafka_sink.TRANSACTION_BYTES)
