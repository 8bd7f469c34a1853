"""A real Kafka for tests and demonstrations: started in seconds, from jars fetched by name.

Read in this order: jars.py (what is fetched, and where it is kept), settings.py (what a node is
told), machine.py (a Java that ends with us), archive.py (why it starts soon), node.py (one broker),
proxy.py (the way between brokers), security.py (TLS and SASL), cluster.py (all of them), topics.py,
java_client.py, raw.py (a dump of what is stored), oracle.py (what a reader has to deliver of it).
"""

from __future__ import annotations

from penstock.testing.kafka.cluster import KafkaCluster
from penstock.testing.kafka.jars import (
    KafkaUnavailableError,
    debezium_jars,
    kafka_jars,
    spark_kafka_jars,
)
from penstock.testing.kafka.java_client import (
    JavaClientError,
    JavaGatewayProcess,
    JavaProducer,
)
from penstock.testing.kafka.machine import NotInTimeError
from penstock.testing.kafka.node import KafkaNode, NodeFailedError
from penstock.testing.kafka.security import Users
from penstock.testing.kafka.topics import Topics

__all__ = [
    "JavaClientError",
    "JavaGatewayProcess",
    "JavaProducer",
    "debezium_jars",
    "KafkaCluster",
    "KafkaNode",
    "KafkaUnavailableError",
    "kafka_jars",
    "NodeFailedError",
    "NotInTimeError",
    "spark_kafka_jars",
    "Topics",
    "Users",
]
