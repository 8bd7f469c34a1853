"""Reads the bytes of many partitions: one request for each broker that leads some of them.

Isolation is `read_uncommitted`: what is committed is known from the transaction log. Requests name
topics by their ids where brokers know them, so that a topic that was made again is noticed, and
name the epoch of the last row that was read, so that a log that lost this row is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.consumer import FetchRequest

from penstock.journal.errors import OffsetDroppedError
from penstock.journal.kafka.client.asking import by_topic
from penstock.journal.kafka.client.cluster import READ_ADVICE
from penstock.journal.kafka.client.failures import (
    NO_ERROR,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_CODES,
    AskAgainError,
    described,
    is_refusal,
    is_retriable,
)
from penstock.journal.kafka.client.offsets import NO_EPOCH, UNCOMMITTED, bounds
from penstock.journal.kafka.errors import (
    CorruptRecordsError,
    KafkaAccessError,
    KafkaProtocolError,
    LogTruncatedError,
    TopicMadeAgainError,
    UnknownTopicError,
)
from penstock.journal.kafka.records.batches import Partition

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from penstock.errors import PenstockError
    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline

ANSWER_SECONDS: Final = 1.0
"""A broker that waits for rows as long as it was told answers within this time after it."""
CORRUPT_MESSAGE: Final = 2


@dataclass(frozen=True, slots=True)
class Want:
    """What to read of a partition."""

    offset: int
    read_epoch: int = NO_EPOCH
    """Of the leader that wrote the row before `offset`, if that was read."""
    topic_id: uuid.UUID | None = None
    """The topic's, as it was when the read began; None: whatever has the name now."""
    bytes_max: int | None = None
    """None: as the settings have it."""
    is_behind_lost: bool = False
    """Rows right before `offset` are gone, and nobody was told yet."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a broker gave of a partition: whole record batches, and perhaps a part of the next."""

    records: bytes
    high_watermark: int
    last_stable: int
    log_start: int


@dataclass(frozen=True, slots=True)
class FetchResult:
    found: dict[Partition, Fetched] = field(default_factory=dict)
    """With no bytes where nothing new was there in time."""
    failed: dict[Partition, PenstockError] = field(default_factory=dict)
    """What asking again does not mend."""
    waiting: dict[Partition, str] = field(default_factory=dict)
    """Not read this time, and why: their leader is elsewhere or gone. The next call asks again."""

    @property
    def is_empty(self) -> bool:
        return not self.found and not self.failed


def fetch(
    cluster: Cluster,
    wants: Mapping[Partition, Want],
    deadline: Deadline,
    *,
    wait_ms: int | None = None,
) -> FetchResult:
    """One round over the brokers, repeated until one partition at least has an answer. Brokers wait
    up to `wait_ms` for rows. Raises `BrokersUnavailableError` if nobody answered."""

    def attempt() -> FetchResult:
        result = _round(cluster, wants, deadline, wait_ms)
        if result.is_empty and wants:
            raise AskAgainError("(leader)", "; ".join(sorted(set(result.waiting.values()))[:3]))
        return result

    names = ", ".join(sorted(map(str, wants))[:3])
    return cluster.repeated(f"read {names}", attempt, deadline)


def _round(
    cluster: Cluster, wants: Mapping[Partition, Want], deadline: Deadline, wait_ms: int | None
) -> FetchResult:
    result = FetchResult()
    led = _led(cluster, wants, deadline, result)
    wait = cluster.settings.fetch_wait_ms_max if wait_ms is None else wait_ms
    wait = min(wait, int(max(deadline.left() - ANSWER_SECONDS, 0) * 1000))
    requests = {
        node: [_request(cluster, {each: wants[each] for each in mine}, wait)]
        for node, mine in led.items()
    }
    ids = {cluster.seen(p.topic).id: p.topic for mine in led.values() for p in mine}
    answers, failures = cluster.ask_all(requests, deadline, wait / 1000)
    for node, error in failures.items():
        result.waiting.update(dict.fromkeys(led[node], str(error)))
    for node, (response,) in answers.items():
        if response.error_code:
            reason = f"broker {node}: {described(response.error_code)}"
            result.waiting.update(dict.fromkeys(led[node], reason))
            continue
        for topic in response.responses:
            name = ids.get(topic.topic_id) if topic.topic_id is not None else topic.topic
            for answer in topic.partitions:
                partition = Partition(str(name), answer.partition_index)
                if partition in wants:
                    _sort(
                        cluster,
                        partition,
                        wants[partition],
                        answer,
                        result=result,
                        deadline=deadline,
                    )
    return result


def _led(
    cluster: Cluster, wants: Mapping[Partition, Want], deadline: Deadline, result: FetchResult
) -> dict[int, list[Partition]]:
    """Partitions by leader, without those whose topic is gone or is another one."""
    led: dict[int, list[Partition]] = {}
    for name, mine in by_topic(wants).items():
        try:
            topic = cluster.topic(name, deadline)
            for partition in mine:
                known_id = wants[partition].topic_id
                if known_id is not None and topic.id is not None and known_id != topic.id:
                    raise TopicMadeAgainError(name, str(known_id), str(topic.id))
            nodes, waiting = cluster.by_leader(mine, deadline)
        except UnknownTopicError as error:
            if cluster.is_gone(error):
                result.failed.update(dict.fromkeys(mine, error))
            else:
                result.waiting.update(dict.fromkeys(mine, str(error)))
            continue
        except (TopicMadeAgainError, KafkaAccessError) as error:
            result.failed.update(dict.fromkeys(mine, error))
            continue
        result.waiting.update(waiting)
        for node, partitions in nodes.items():
            led.setdefault(node, []).extend(partitions)
    return led


def _request(cluster: Cluster, wants: Mapping[Partition, Want], wait_ms: int) -> Any:
    settings = cluster.settings
    kind = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=settings.fetch_bytes_min,
        max_bytes=settings.fetch_bytes_max,
        isolation_level=UNCOMMITTED,
        session_id=0,
        session_epoch=-1,
        rack_id=settings.client_rack,
        forgotten_topics_data=[],
        topics=[
            kind(
                topic=name,
                topic_id=cluster.seen(name).id,
                partitions=[
                    kind.FetchPartition(
                        partition=each.number,
                        current_leader_epoch=cluster.leader(each).epoch,
                        fetch_offset=wants[each].offset,
                        last_fetched_epoch=wants[each].read_epoch,
                        log_start_offset=-1,
                        partition_max_bytes=wants[each].bytes_max or settings.partition_bytes_max,
                    )
                    for each in partitions
                ],
            )
            for name, partitions in by_topic(wants).items()
        ],
    )


def _sort(
    cluster: Cluster,
    partition: Partition,
    want: Want,
    answer: Any,
    *,
    result: FetchResult,
    deadline: Deadline,
) -> None:
    """Puts an answer where it belongs."""
    code = answer.error_code
    diverging = answer.diverging_epoch
    if code == NO_ERROR and diverging is not None and diverging.end_offset >= 0:
        result.failed[partition] = LogTruncatedError(
            partition.topic, partition.number, want.offset, diverging.end_offset
        )
    elif code == NO_ERROR:
        result.found[partition] = Fetched(
            bytes(answer.records or b""),
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
        )
    elif code == OFFSET_OUT_OF_RANGE:
        error = _out_of_range(cluster, partition, want, deadline)
        if error is not None:
            result.failed[partition] = error
        else:
            result.waiting[partition] = f"{partition}: its leader lags behind"
    elif is_refusal(code):
        task = f"read {partition}"
        result.failed[partition] = KafkaAccessError(task, described(code), READ_ADVICE)
    elif code == CORRUPT_MESSAGE:
        reason = "the broker says that its own log is damaged"
        result.failed[partition] = CorruptRecordsError(
            partition.topic, partition.number, want.offset, reason
        )
    elif code in UNKNOWN_TOPIC_CODES or is_retriable(code):
        cluster.forget(partition.topic)
        result.waiting[partition] = f"{partition}: {described(code)}"
    else:
        result.failed[partition] = KafkaProtocolError(
            "(leader)", f"read {partition}", described(code)
        )


def _out_of_range(
    cluster: Cluster, partition: Partition, want: Want, deadline: Deadline
) -> PenstockError | None:
    """Retention dropped the offset, or an election took it or its epoch back."""
    now = bounds(cluster, [partition], deadline)[partition]
    if want.offset < now.earliest:
        return OffsetDroppedError(str(partition), want.offset, now.earliest)
    if want.offset > now.high_watermark:
        end: int | None = now.high_watermark
    elif want.read_epoch != NO_EPOCH:
        end = None
    else:
        return None
    return LogTruncatedError(partition.topic, partition.number, want.offset, end)
