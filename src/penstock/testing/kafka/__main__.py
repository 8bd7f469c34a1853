"""`python -m penstock.testing.kafka` gets everything ready that a cluster needs, once a machine.

It fetches the jars, and writes the archive of their classes. Where the jars cannot be had it says
so, and fails only in CI: the tests of Kafka are skipped with that reason.
"""

from __future__ import annotations

import os
import sys

from penstock.testing.kafka.archive import archive, writing_options
from penstock.testing.kafka.cluster import HEAP, KafkaCluster
from penstock.testing.kafka.jars import (
    KafkaUnavailableError,
    debezium_jars,
    kafka_jars,
    say,
    spark_kafka_jars,
)
from penstock.testing.kafka.machine import BRIEF


def prepare() -> None:
    kafka_jars()
    spark_kafka_jars()
    debezium_jars()
    if not archive().exists():
        _write_archive()


def _write_archive() -> None:
    """Starts a node and stops it in order. Without an archive nodes only start later."""
    say("writing an archive of Kafka's classes, once for this Java")
    unfinished = archive().with_name(f"{archive().name}.{os.getpid()}")
    options = (*HEAP, *BRIEF, *writing_options(unfinished))
    with KafkaCluster(java_options=options) as cluster:
        cluster.stop()
    if unfinished.exists():
        unfinished.rename(archive())
    else:
        say("this Java writes no archive of its classes: nodes will start later")


if __name__ == "__main__":
    try:
        prepare()
    except KafkaUnavailableError as error:
        say(str(error))
        sys.exit(1 if os.environ.get("CI") == "true" else 0)
