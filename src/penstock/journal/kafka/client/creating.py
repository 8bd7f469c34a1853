"""A topic that is made, unless it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import CreateTopicsRequest

from penstock.journal.kafka.client.failures import NO_ERROR
from penstock.journal.kafka.client.transactions import check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline

_EXISTS: Final = 36
_AS_BROKERS_HAVE_IT: Final = -1


def create_topic(
    cluster: Cluster, name: str, partitions: int, settings: Mapping[str, str], deadline: Deadline
) -> bool:
    """Whether it was made just now. The controller says so, which knows of every topic; single
    brokers may not have heard of it yet."""
    task = f"make the topic {name!r}"
    shown = " ".join(f"--config {key}={value}" for key, value in settings.items())
    advice = (
        "Give the writer the right to Create the topic, or make it: kafka-topics.sh --create "
        f"--topic {name} --partitions {partitions} {shown}"
    )
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=_AS_BROKERS_HAVE_IT,
                assignments=[],
                configs=[
                    topic.CreatableTopicConfig(name=key, value=value)
                    for key, value in settings.items()
                ],
            )
        ],
        timeout_ms=int(cluster.settings.request_timeout_seconds * 1000),
        validate_only=False,
    )

    def attempt() -> bool:
        node = cluster.nodes(deadline)[0]
        (answer,) = cluster.ask(node, request, deadline).topics
        if answer.error_code in (NO_ERROR, _EXISTS):
            return bool(answer.error_code == NO_ERROR)
        check(answer.error_code, node, task, advice)
        return False

    return cluster.repeated(task, attempt, deadline)
