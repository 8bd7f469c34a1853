"""Settings of topics and brokers, as the cluster has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import DescribeConfigsRequest

from penstock.journal.kafka.client.failures import (
    NO_ERROR,
    UNKNOWN_TOPIC_CODES,
    AskAgainError,
    described,
    is_refusal,
    is_retriable,
)
from penstock.journal.kafka.errors import (
    KafkaAccessError,
    KafkaProtocolError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline

TOPIC: Final = 2
_ADVICE: Final = "Give the reader the right to DescribeConfigs of the topic"


def topic_settings(
    cluster: Cluster, topic: str, names: Iterable[str], deadline: Deadline
) -> dict[str, str]:
    """The topic's settings of these names ("retention.ms", "cleanup.policy", ...)."""
    task = f"see the settings of the topic {topic!r}"
    wanted = list(names)

    def attempt() -> dict[str, str]:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=topic, configuration_keys=wanted
        )
        request = DescribeConfigsRequest(resources=[resource])
        (result,) = cluster.ask_anyone(request, deadline).results
        code = result.error_code
        if is_refusal(code):
            raise KafkaAccessError(task, described(code), _ADVICE)
        if code in UNKNOWN_TOPIC_CODES:
            raise UnknownTopicError(topic)
        if is_retriable(code):
            raise AskAgainError("(any)", described(code))
        if code != NO_ERROR:
            raise KafkaProtocolError("(any)", task, described(code))
        return {each.name: each.value for each in result.configs if each.value is not None}

    return cluster.repeated(task, attempt, deadline)
