"""A transactional producer: record batches into partitions, and offsets of a group, all or nothing.

    1  take      the coordinator gives the transactional id a new epoch. Whoever had it before is
                 fenced, and what he left open is ended
    2  open      partitions are added to the transaction
    3  send      record batches go to the leaders of their partitions
    4  note      offsets of a group are added to the transaction
    5  end       the coordinator decides: commit or abort

A batch that is sent again, because its answer was lost, has the same sequence number: the leader
keeps it once. One request at a time is under way to a broker, with one batch of each partition.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from penstock.journal.kafka.client.asking import by_topic
from penstock.journal.kafka.client.failures import (
    NO_ERROR,
    UNKNOWN_TOPIC_CODES,
    AskAgainError,
    described,
    is_retriable,
)
from penstock.journal.kafka.client.transactions import TRANSACTION_COORDINATOR, check, coordinator
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import (
    KafkaFencedError,
    KafkaProtocolError,
    KafkaSettingError,
    RecordsTooLargeError,
    UnknownTopicError,
)
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.records.encoding import stamped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.journal.kafka.client.cluster import Cluster

REQUEST_BYTES_MAX: Final = 8 << 20
"""Of record batches that go to a broker at once. Brokers take a hundred megabytes by default."""
GROUP_COORDINATOR: Final = 0
ACKS_ALL: Final = -1
SEQUENCES: Final = 1 << 31
"""Sequence numbers begin again behind this."""
_FENCED: Final = frozenset({47, 48, 49, 90})
"""Another epoch, another state of the transaction, another producer id, fenced."""
_TOO_LARGE: Final = frozenset({10, 18})
_DUPLICATE: Final = 46
_INVALID_TIMEOUT: Final = 50
_INVALID_RECORD: Final = 87
_NOT_ATTEMPTED: Final = 55
_OFFSETS_ADVICE: Final = (
    "Give the writer the right to Read the topic and the group {!r}: offsets are committed there"
)
_TOPIC_ADVICE: Final = "Give the writer the right to Write and Describe the topic"


@dataclass(frozen=True, slots=True)
class Sendable:
    """A record batch as `records/encoding.py` makes it."""

    partition: Partition
    records: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Of a group, in one partition."""

    partition: Partition
    offset: int
    metadata: str


class TransactionalProducer:
    """One thread at a time. After an exception it is of no use: take the id anew, or renew it."""

    def __init__(
        self, cluster: Cluster, transactional_id: str | None, timeout_ms: int, seconds_max: float
    ) -> None:
        """`seconds_max` is how long each request is repeated before it is given up. Without a
        transactional id there are no transactions: what is sent counts as it is sent, once."""
        self._cluster = cluster
        self._id = transactional_id
        self._name = transactional_id or ""
        self._timeout_ms = timeout_ms
        self._seconds_max = seconds_max
        self._coordinators: dict[tuple[int, str], int] = {}
        self._producer_id = self._epoch = -1
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()
        self._is_open = False
        self.is_commit_in_doubt = False
        """A coordinator was asked to commit, and has not answered: perhaps it did."""

    def take(self) -> None:
        """Step 1. Waits until what was open before is ended everywhere."""
        self._initialize(-1, -1)

    def renew(self) -> None:
        """Step 1 again, after a failure, but only if nobody else has taken the id since."""
        self._initialize(self._producer_id, self._epoch)

    def _initialize(self, producer_id: int, epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        task = f"take the transactional id {self._name!r}"

        def ask(node: int, deadline: Deadline) -> None:
            response = self._cluster.ask(node, request, deadline)
            if response.error_code == _INVALID_TIMEOUT:
                raise KafkaSettingError(
                    "kafka.transaction.timeout.ms",
                    f"{self._timeout_ms} is more than the brokers' transaction.max.timeout.ms",
                )
            self._check(response.error_code, node, task, self._own_advice())
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch

        if self._id is None:
            deadline = Deadline.after(self._seconds_max)
            self._cluster.repeated(
                "get a producer id",
                lambda: ask(self._cluster.nodes(deadline)[0], deadline),
                deadline,
            )
        else:
            self._coordinated(task, ask)
        self._sequences.clear()
        self._added.clear()
        self._is_open = False

    def open(self, partitions: Iterable[Partition]) -> None:
        """Step 2. Can be called again, with partitions that come later."""
        new = [each for each in dict.fromkeys(partitions) if each not in self._added]
        if not new:
            return
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                kind(name=topic, partitions=[each.number for each in mine])
                for topic, mine in by_topic(new).items()
            ],
        )
        task = f"add partitions to the transaction of {self._name!r}"

        def ask(node: int, deadline: Deadline) -> None:
            response = self._cluster.ask(node, request, deadline)
            codes = {
                Partition(topic.name, each.partition_index): each.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            for partition, code in codes.items():
                if code == _NOT_ATTEMPTED:
                    continue  # another one's error is why
                if code in UNKNOWN_TOPIC_CODES:
                    raise self._missed(UnknownTopicError(partition.topic, partition.number))
                self._check(code, node, f"{task}: {partition}", _TOPIC_ADVICE)

        self._coordinated(task, ask)
        self._added.update(new)
        self._is_open = True

    def send(self, batches: Iterable[Sendable]) -> None:
        """Step 3: into partitions that were added. Returns when all replicas in sync have them."""
        waiting: dict[Partition, deque[tuple[bytearray, int]]] = {}
        for batch in batches:
            sequence = self._sequences.get(batch.partition, 0)
            data = stamped(batch.data, self._producer_id, self._epoch, sequence)
            waiting.setdefault(batch.partition, deque()).append((data, batch.records))
            self._sequences[batch.partition] = (sequence + batch.records) % SEQUENCES
        while waiting:
            self._send_round(waiting)

    def note(self, group: str, offset: CommittedOffset) -> None:
        """Step 4: the offset is the group's once the transaction is committed."""
        task = f"add an offset of the group {group!r} to the transaction of {self._name!r}"
        added = AddOffsetsToTxnRequest(
            transactional_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=group,
        )

        def add(node: int, deadline: Deadline) -> None:
            code = self._cluster.ask(node, added, deadline).error_code
            self._check(code, node, task, _group_advice(group))

        self._coordinated(task, add)
        self._is_open = True
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        committed = TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                topic(
                    name=offset.partition.topic,
                    partitions=[
                        topic.TxnOffsetCommitRequestPartition(
                            partition_index=offset.partition.number,
                            committed_offset=offset.offset,
                            committed_leader_epoch=-1,
                            committed_metadata=offset.metadata,
                        )
                    ],
                )
            ],
        )

        def commit(node: int, deadline: Deadline) -> None:
            response = self._cluster.ask(node, committed, deadline)
            for each in response.topics:
                for answer in each.partitions:
                    self._check(answer.error_code, node, task, _OFFSETS_ADVICE.format(group))

        self._coordinated(task, commit, GROUP_COORDINATOR, group)

    def end(self, *, is_commit: bool) -> None:
        """Step 5. Raises if it is not known what became of the transaction."""
        task = f"{'commit' if is_commit else 'abort'} the transaction of {self._name!r}"
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=is_commit,
        )

        def ask(node: int, deadline: Deadline) -> None:
            try:
                code = self._cluster.ask(node, request, deadline).error_code
                self._check(code, node, task, self._own_advice())
            except AskAgainError:
                self.is_commit_in_doubt = is_commit
                raise

        if self._is_open:
            self._coordinated(task, ask)
        self.is_commit_in_doubt = False
        self._added.clear()
        self._is_open = False

    def _send_round(self, waiting: dict[Partition, deque[tuple[bytearray, int]]]) -> None:
        deadline = Deadline.after(self._seconds_max)

        def attempt() -> None:
            self._send_some(waiting, deadline)

        self._cluster.repeated("send record batches", attempt, deadline)

    def _send_some(
        self, waiting: dict[Partition, deque[tuple[bytearray, int]]], deadline: Deadline
    ) -> None:
        """One request to each broker; what it took is no longer waiting."""
        try:
            led, unled = self._cluster.by_leader(waiting, deadline)
        except UnknownTopicError as error:
            raise self._missed(error) from None
        requests: dict[int, list[Any]] = {}
        for node, mine in led.items():
            requests[node] = [self._produce(_fitting(mine, waiting), waiting)]
        answers, failures = self._cluster.ask_all(requests, deadline)
        reason = next(iter(unled.values()), "")
        sent = 0
        for node, (response,) in answers.items():
            for topic in response.responses:
                for answer in topic.partition_responses:
                    partition = Partition(topic.name, answer.index)
                    size_bytes = len(waiting[partition][0][0])
                    refused = self._refusal(partition, answer, node, size_bytes)
                    if refused:
                        reason = refused
                        continue
                    sent += 1
                    waiting[partition].popleft()
                    if not waiting[partition]:
                        del waiting[partition]
        if not sent:
            raise next(iter(failures.values()), AskAgainError("(leader)", reason))

    def _produce(
        self, partitions: Iterable[Partition], waiting: Mapping[Partition, deque[Any]]
    ) -> Any:
        kind = ProduceRequest.TopicProduceData
        return ProduceRequest(
            transactional_id=self._id,
            acks=ACKS_ALL,
            timeout_ms=int(self._cluster.settings.request_timeout_seconds * 1000),
            topic_data=[
                kind(
                    name=topic,
                    partition_data=[
                        kind.PartitionProduceData(index=each.number, records=waiting[each][0][0])
                        for each in mine
                    ],
                )
                for topic, mine in by_topic(partitions).items()
            ],
        )

    def _refusal(self, partition: Partition, answer: Any, node: int, size_bytes: int) -> str:
        """Why the batch has to be sent again; nothing if it was taken."""
        code = answer.error_code
        if code in (NO_ERROR, _DUPLICATE):
            return ""
        task = f"send record batches to {partition}"
        reason = f"{described(code)} {answer.error_message or ''}".rstrip()
        if code in _TOO_LARGE:
            raise RecordsTooLargeError(partition.topic, size_bytes, reason)
        if code == _INVALID_RECORD:
            raise KafkaProtocolError(str(node), task, reason)
        if is_retriable(code):
            self._cluster.forget(partition.topic)
            return reason
        self._check(code, node, task, _TOPIC_ADVICE)
        return reason

    def _coordinated(
        self,
        task: str,
        ask: Callable[[int, Deadline], None],
        kind: int = TRANSACTION_COORDINATOR,
        name: str = "",
    ) -> None:
        """Asks the coordinator, and looks for it again when it is another one."""
        deadline = Deadline.after(self._seconds_max)
        key = kind, name or self._name
        advice = self._own_advice() if kind == TRANSACTION_COORDINATOR else _group_advice(name)

        def attempt() -> None:
            node = self._coordinators.get(key)
            if node is None:
                node = coordinator(self._cluster, key[1], deadline, kind, advice)
                self._coordinators[key] = node
            try:
                ask(node, deadline)
            except AskAgainError:
                self._coordinators.pop(key, None)
                raise

        self._cluster.repeated(task, attempt, deadline)

    def _check(self, code: int, node: int, task: str, advice: str) -> None:
        if code in _FENCED:
            raise KafkaFencedError(self._name, task, described(code), self._timeout_ms)
        check(code, node, task, advice)

    def _missed(self, error: UnknownTopicError) -> Exception:
        """A topic that was just made is not known everywhere."""
        return error if self._cluster.is_gone(error) else AskAgainError("(any)", str(error))

    def _own_advice(self) -> str:
        return f"Give the writer the right to Write with the transactional id {self._name!r}"


def committed_offsets(
    cluster: Cluster, group: str, deadline: Deadline, *, are_stable: bool
) -> tuple[CommittedOffset, ...]:
    """All offsets of the group. Stable: waits for transactions that are about to change one."""
    task = f"see the offsets of the group {group!r}"
    advice = _group_advice(group)
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=group, member_epoch=-1, topics=None
    )
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[wanted], require_stable=are_stable
    )

    def attempt() -> tuple[CommittedOffset, ...]:
        node = coordinator(cluster, group, deadline, GROUP_COORDINATOR, advice)
        response = cluster.ask(node, request, deadline)
        found = response.groups[0] if response.groups else response
        check(found.error_code, node, task, advice)
        offsets = []
        for topic in found.topics:
            for each in topic.partitions:
                check(each.error_code, node, task, advice)
                partition = Partition(topic.name, each.partition_index)
                offsets.append(
                    CommittedOffset(partition, each.committed_offset, each.metadata or "")
                )
        return tuple(offsets)

    return cluster.repeated(task, attempt, deadline)


def _group_advice(group: str) -> str:
    return f"Give the writer the right to Read the group {group!r}"


def _fitting(
    partitions: Iterable[Partition], waiting: Mapping[Partition, deque[tuple[bytearray, int]]]
) -> list[Partition]:
    """As many partitions as have room in one request with their next batch, and one at least."""
    chosen: list[Partition] = []
    size_bytes = 0
    for partition in partitions:
        size_bytes += len(waiting[partition][0][0])
        if chosen and size_bytes > REQUEST_BYTES_MAX:
            break
        chosen.append(partition)
    return chosen
