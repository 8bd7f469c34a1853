"""What whoever writes to topics has to know of them: how many partitions, and how large a batch."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.configs import topic_settings
from penstock.journal.kafka.client.failures import AskAgainError
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import KafkaAccessError, UnknownTopicError

if TYPE_CHECKING:
    from penstock.journal.kafka.settings import KafkaSettings

AGE_SECONDS_MAX: Final = 300.0
"""Then it is asked for again, as Java's clients do: a topic may have more partitions by now."""
_LIMIT: Final = "max.message.bytes"
_DEFAULT_BYTES_MAX: Final = 1_048_588
"""What brokers take by default. Whoever may not ask for a topic's settings goes by it."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    partitions: int
    batch_bytes_max: int


class KnownTopics:
    """Of one cluster, as seen by one process."""

    def __init__(self, settings: KafkaSettings, seconds_max: float) -> None:
        self._cluster = Cluster(settings)
        self._seconds_max = seconds_max
        self._known: dict[str, tuple[float, TopicLimits]] = {}

    def close(self) -> None:
        self._cluster.close()

    def limits(self, topic: str) -> TopicLimits:
        """Raises `UnknownTopicError`, `KafkaAccessError`, `BrokersUnavailableError`."""
        at, known = self._known.get(topic, (0.0, None))
        if known is None or time.monotonic() - at > AGE_SECONDS_MAX:
            known = self._asked(topic)
            self._known[topic] = time.monotonic(), known
        return known

    def _asked(self, topic: str) -> TopicLimits:
        deadline = Deadline.after(self._seconds_max)
        bytes_max = _DEFAULT_BYTES_MAX

        def attempt() -> int:
            self._cluster.forget(topic)
            try:
                return len(self._cluster.topic(topic, deadline).leaders)
            except UnknownTopicError as error:
                if self._cluster.is_gone(error):
                    raise
                raise AskAgainError("(any)", str(error)) from None

        count = self._cluster.repeated(f"see the topic {topic!r}", attempt, deadline)
        with contextlib.suppress(KafkaAccessError):
            found = topic_settings(self._cluster, topic, [_LIMIT], deadline)
            bytes_max = int(found.get(_LIMIT, bytes_max))
        return TopicLimits(count, bytes_max)
