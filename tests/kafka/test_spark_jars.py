"""Spark's own Kafka source, from the jars that are fetched for it, reads what was committed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.testing.kafka import spark_kafka_jars
from tests.kafka.broker import require_kafka
from tests.kafka.reading import SECONDS_MAX

if TYPE_CHECKING:
    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

# Spark takes jars when its Java starts, so a process of its own has them.
PROGRAM = """\
import sys
from penstock.spark import local_session
servers, topic, jars = sys.argv[1:]
spark = local_session("peer", **{"spark.jars": jars})
read = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
read = read.option("subscribe", topic).option("kafka.isolation.level", "read_committed")
rows = read.load().selectExpr("CAST(value AS STRING) AS value").collect()
print(sorted(row.value for row in rows))
"""


def test_sparks_own_source_reads_committed_messages(kafka: KafkaCluster, topic: str) -> None:
    require_kafka(spark_kafka_jars)
    kafka.topics.create(topic, 2)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic}
    writer = Producer(settings)
    writer.init_transactions(SECONDS_MAX)
    for value, is_committed in (("a", True), ("b", False), ("c", True)):
        writer.begin_transaction()
        writer.produce(topic, value.encode(), partition=ord(value) % 2)
        if is_committed:
            writer.commit_transaction(SECONDS_MAX)
        else:
            writer.abort_transaction(SECONDS_MAX)
    jars = ",".join(map(str, spark_kafka_jars()))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, topic, jars],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['a', 'c']"
