"""Fixtures of tests that need a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.testing.kafka import spark_kafka_jars
from tests.integration.conftest import spark as spark  # noqa: PLC0414 - a fixture of ours, too
from tests.kafka.broker import require_kafka, shared_cluster, unique_topic
from tests.kafka.side_by_side import Sources, add_kafka_jars

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.testing.kafka import KafkaCluster


@pytest.fixture(scope="session")
def kafka() -> KafkaCluster:
    """The broker of this process."""
    require_kafka()
    return shared_cluster()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name for this test. The test makes the topic."""
    return unique_topic(request)


@pytest.fixture(scope="session")
def kafka_spark(spark: SparkSession) -> SparkSession:
    """A session that also has Spark's own Kafka source."""
    require_kafka(spark_kafka_jars)
    add_kafka_jars(spark)
    return spark


@pytest.fixture
def sources(kafka: KafkaCluster, kafka_spark: SparkSession, tmp_path: Path) -> Sources:
    """Ours and Spark's own."""
    return Sources(kafka_spark, kafka, tmp_path)
