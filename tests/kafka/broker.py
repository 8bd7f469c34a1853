"""A Kafka of one node that all tests of a process share, started when the first of them asks.

Each process of the tests has its own: 250 MB and some seconds are less than what it takes to agree
on who starts it, who may restart it, and who stops it last. Whoever breaks a broker starts another.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import re
from typing import TYPE_CHECKING

import pytest

from penstock.testing.kafka import KafkaCluster, KafkaUnavailableError, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS = itertools.count(1)


def require_kafka(jars: Callable[[], object] = kafka_jars) -> None:
    """Skips a test where the jars cannot be had, and says why. In CI that is a failure."""
    try:
        jars()
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@functools.cache
def shared_cluster() -> KafkaCluster:
    """Tests leave it running, and take topics of their own."""
    cluster = KafkaCluster()
    atexit.register(cluster.close)
    return cluster.__enter__()


def unique_topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test has, and that tells which test it was."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:80]
    return f"{name}-{os.getpid()}-{next(_NUMBERS)}"
