"""A cluster as a client sees it: its brokers, who leads which partition, and connections to them.

Requests go to all brokers that they concern before the first answer is awaited, so that one thread
asks many brokers at once. Whatever a broker's death, a leader's move or a restart of all brokers
makes fail is asked again with backoff, until the caller's deadline.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kafka.protocol.metadata import MetadataRequest

from penstock.journal.kafka.client.connection import Connection
from penstock.journal.kafka.client.failures import (
    NO_ERROR,
    UNKNOWN_TOPIC_CODES,
    AskAgainError,
    described,
    is_refusal,
    is_retriable,
)
from penstock.journal.kafka.errors import (
    BrokersUnavailableError,
    KafkaAccessError,
    KafkaProtocolError,
    UnknownTopicError,
)
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.store import Silence

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping

    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.settings import KafkaSettings

UNKNOWN_SECONDS_MAX: Final = 5.0
"""A topic that was just made is not known to every broker at once. For longer, it is not there."""
MISSED_SECONDS_MAX: Final = 60.0
"""Who misses a topic after such a time without asking begins to wait for it anew."""
PATIENCE_SECONDS: Final = 5.0
"""So long a broker is waited for at first, and after each time in vain twice as long, up to the
request timeout: it may be paused or cut off, and others lead its partitions in a few seconds."""
READ_ADVICE: Final = "Give the reader the right to Describe and Read the topic"

log = logging.getLogger("penstock.journal.kafka")
T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, and since which election."""

    node: int
    """-1: nobody at the moment."""
    epoch: int


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: uuid.UUID | None
    """What tells it from another one that is made under its name later. None: an old broker."""
    is_internal: bool
    leaders: tuple[Leader, ...]
    """Of partitions 0, 1, ..."""

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(Partition(self.name, number) for number in range(len(self.leaders)))


@dataclass(slots=True)
class _Known:
    """What the cluster said of itself last."""

    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    """Topics to ask for before they are used again."""
    missed: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When a topic or partition was missed first, and last."""


class Cluster:
    """Connections and knowledge that one thread at a time uses: others wait for the lock. Whoever
    wants to read while another one waits for rows has a cluster of its own."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._known = _Known()
        self._connections: dict[tuple[str, int], Connection] = {}
        self._silent: dict[tuple[str, int], int] = {}
        """Brokers that did not answer, and how many times in a row."""
        self._asking: dict[int, tuple[float, str, str]] = {}
        """By thread, since when it asks, for what, and what came in the way."""

    def silence(self) -> Silence | None:
        """What has been asked for longest, and has no answer yet. By any thread."""
        asking = min(self._asking.copy().values(), default=None)
        if asking is None:
            return None
        begun, task, failure = asking
        return Silence(begun, f"could not {task}" + (f": {failure}" if failure else " yet"))

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def topics(self, names: Iterable[str] | None, deadline: Deadline) -> dict[str, Topic]:
        """These topics as they are now, or all. Those that do not exist are left out."""
        wanted = None if names is None else tuple(names)

        def attempt() -> dict[str, Topic]:
            return self._refresh(wanted, deadline)

        return self.repeated("list the topics", attempt, deadline)

    def topic(self, name: str, deadline: Deadline) -> Topic:
        """As it was last seen, or asked for. Raises `UnknownTopicError`, `AskAgainError`."""
        known = self._known.topics.get(name)
        if known is not None and name not in self._known.stale:
            return known
        found = self._refresh((name,), deadline).get(name)
        if found is None:
            raise UnknownTopicError(name)
        return found

    def seen(self, name: str) -> Topic:
        """A topic as `topic` or `by_leader` found it."""
        return self._known.topics[name]

    def forget(self, name: str) -> None:
        """A topic's leaders or its id turned out to be others."""
        self._known.stale.add(name)

    def is_gone(self, error: UnknownTopicError) -> bool:
        """Whether what was missed just now has been missed for long enough."""
        name = f"{error.topic}-{error.partition}"
        now = time.monotonic()
        first, last = self._known.missed.get(name, (now, now))
        if now - last > MISSED_SECONDS_MAX:
            first = now
        self._known.missed[name] = first, now
        return now - first >= UNKNOWN_SECONDS_MAX

    def nodes(self, deadline: Deadline) -> tuple[int, ...]:
        """All brokers, by their numbers. Raises `AskAgainError`."""
        self._refresh((), deadline)
        return tuple(self._known.addresses)

    def by_leader(
        self, partitions: Iterable[Partition], deadline: Deadline
    ) -> tuple[dict[int, list[Partition]], dict[Partition, str]]:
        """Partitions by the broker that leads them; and those that nobody leads, with the reason.
        Raises `UnknownTopicError`, `AskAgainError`."""
        led: dict[int, list[Partition]] = {}
        waiting: dict[Partition, str] = {}
        wanted = list(partitions)
        fresh = self._known.topics.keys() - self._known.stale
        missing = {partition.topic for partition in wanted} - fresh
        if missing:
            self._refresh(tuple(sorted(missing)), deadline)
        for partition in wanted:
            topic = self._known.topics.get(partition.topic)
            if topic is None:
                raise UnknownTopicError(partition.topic)
            if partition.number >= len(topic.leaders):
                self.forget(partition.topic)
                raise UnknownTopicError(partition.topic, partition.number)
            leader = topic.leaders[partition.number]
            if leader.node < 0:
                self.forget(partition.topic)
                waiting[partition] = f"no broker leads {partition} at the moment"
            else:
                led.setdefault(leader.node, []).append(partition)
        return led, waiting

    def leader(self, partition: Partition) -> Leader:
        """As `by_leader` found it."""
        return self._known.topics[partition.topic].leaders[partition.number]

    def ask_all(
        self, requests: Mapping[int, list[Any]], deadline: Deadline, wait_seconds: float = 0.0
    ) -> tuple[dict[int, list[Any]], dict[int, AskAgainError]]:
        """Sends requests to several brokers at once. The answers of each in order, or why it has to
        be asked again. `wait_seconds` is how long the requests let a broker wait."""
        answers: dict[int, list[Any]] = {}
        failures: dict[int, AskAgainError] = {}
        with self._lock:
            asked: dict[int, Connection] = {}
            until = {node: self._until(node, deadline, wait_seconds) for node in requests}
            try:
                for node, messages in requests.items():
                    try:
                        asked[node] = self._connection(node, until[node])
                        for message in messages:
                            asked[node].send(message, until[node])
                    except AskAgainError as error:
                        failures[node] = error
                for node in asked.keys() - failures.keys():
                    try:
                        answers[node] = [asked[node].receive(until[node]) for _ in requests[node]]
                    except AskAgainError as error:
                        failures[node] = error
            finally:
                # An answer that nobody received would be taken for that of the next request.
                for connection in asked.values():
                    connection.close_unless_idle()
            if failures:
                self._known.stale.update(self._known.topics)
            for node in requests:
                self._heard(self._known.addresses.get(node), answered=node in answers)
        return answers, failures

    def ask(self, node: int, request: Any, deadline: Deadline) -> Any:
        """Asks one broker. Raises `AskAgainError`."""
        answers, failures = self.ask_all({node: [request]}, deadline)
        if node in failures:
            raise failures[node]
        return answers[node][0]

    def ask_anyone(self, request: Any, deadline: Deadline) -> Any:
        """Any broker will do: those that are connected first, then those known, then those named
        in the settings; and last of all those that did not answer the last time. Raises
        `AskAgainError`."""
        failure = AskAgainError(self.settings.servers, "no address is left to try")
        with self._lock:
            addresses = dict.fromkeys(
                (
                    *self._connections,
                    *random.sample([*self._known.addresses.values()], len(self._known.addresses)),
                    *self.settings.bootstrap,
                )
            )
            for address in sorted(addresses, key=lambda each: self._silent.get(each, 0)):
                soon = deadline.sooner(self._patience(address))
                try:
                    answer = self._connection_to(address, soon).ask(request, soon)
                except AskAgainError as error:
                    self._heard(address, answered=False)
                    failure = error
                else:
                    self._heard(address, answered=True)
                    return answer
        raise failure

    def repeated(self, task: str, attempt: Callable[[], T], deadline: Deadline) -> T:
        """Attempts until it succeeds. Raises `BrokersUnavailableError` at the deadline."""
        backoff = self.settings.retry_backoff_seconds
        thread, begun = threading.get_ident(), (time.monotonic(), task, "")
        outermost = self._asking.setdefault(thread, begun)
        try:
            while True:
                try:
                    return attempt()
                except AskAgainError as error:
                    pause = backoff * random.uniform(0.8, 1.2)  # noqa: S311 - so that not all ask at once
                    if pause >= deadline.left():
                        raise BrokersUnavailableError(task, deadline.seconds, str(error)) from error
                    log.debug("could not %s, trying again in %.1f s: %s", task, pause, error)
                    self._asking[thread] = outermost[0], task, str(error)
                time.sleep(pause)
                backoff = min(2 * backoff, self.settings.retry_backoff_seconds_max)
        finally:
            if outermost is begun:
                del self._asking[thread]

    def _refresh(self, names: tuple[str, ...] | None, deadline: Deadline) -> dict[str, Topic]:
        wanted = None
        if names is not None:
            wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self.ask_anyone(request, deadline)
        with self._lock:
            self._known.addresses = {b.node_id: (b.host, b.port) for b in answer.brokers}
            found = dict(filter(None, map(_topic, answer.topics)))
            self._known.topics.update(found)
            self._known.stale -= found.keys()
            for name in found:
                self._known.missed.pop(f"{name}-None", None)
            for name in names or ():
                if name not in found:
                    self._known.topics.pop(name, None)
        return found

    def _until(self, node: int, deadline: Deadline, wait_seconds: float) -> Deadline:
        address = self._known.addresses.get(node)
        return deadline.sooner(wait_seconds + (0.0 if address is None else self._patience(address)))

    def _patience(self, address: tuple[str, int]) -> float:
        longest = self.settings.request_timeout_seconds
        return min(PATIENCE_SECONDS * 2.0 ** min(self._silent.get(address, 0), 10), longest)

    def _heard(self, address: tuple[str, int] | None, *, answered: bool) -> None:
        if address is None:
            return
        times = self._silent.pop(address, 0)
        if not answered:
            self._silent[address] = times + 1

    def _connection(self, node: int, deadline: Deadline) -> Connection:
        address = self._known.addresses.get(node)
        if address is None:
            raise AskAgainError(str(node), "the cluster has no such broker at the moment")
        return self._connection_to(address, deadline)

    def _connection_to(self, address: tuple[str, int], deadline: Deadline) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable:
            if connection is not None:
                connection.close()
                del self._connections[address]
            connection = Connection(self.settings, *address, deadline)
            self._connections[address] = connection
        return connection


def _topic(answer: Any) -> tuple[str, Topic] | None:
    name = answer.name
    if answer.error_code in UNKNOWN_TOPIC_CODES:
        return None
    if is_refusal(answer.error_code):
        reason = described(answer.error_code)
        raise KafkaAccessError(f"see the topic {name!r}", reason, READ_ADVICE)
    if is_retriable(answer.error_code):
        raise AskAgainError(str(name), described(answer.error_code))
    if answer.error_code != NO_ERROR:
        task = f"describe the topic {name!r}"
        raise KafkaProtocolError("(any)", task, described(answer.error_code))
    leaders = {p.partition_index: Leader(p.leader_id, p.leader_epoch) for p in answer.partitions}
    in_order = tuple(leaders.get(number, Leader(-1, -1)) for number in range(len(leaders)))
    return name, Topic(name, answer.topic_id, bool(answer.is_internal), in_order)
