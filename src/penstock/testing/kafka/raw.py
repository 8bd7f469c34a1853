"""What a cluster has stored, dumped raw: records of partitions, entries of the transaction log.

The bytes are fetched and decoded by aiokafka, and by nothing of `penstock.journal`: whoever judges
a reader of ours must not share its mistakes.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.testing.kafka.machine import wait_until

try:
    from aiokafka.client import AIOKafkaClient
    from aiokafka.errors import KafkaError, LeaderNotAvailableError, for_code
    from aiokafka.protocol import types
    from aiokafka.protocol.fetch import FetchRequest
    from aiokafka.protocol.offset import OffsetRequest
    from aiokafka.record.memory_records import MemoryRecords
    from aiokafka.structs import TopicPartition
except ImportError as error:
    raise ConfigurationError(
        "raw logs are dumped with the package aiokafka: pip install 'aiokafka[lz4,snappy,zstd]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SECONDS_MAX: Final = 120.0
FETCH_BYTES: Final = 8 << 20
TRANSACTION_LOG: Final = "__transaction_state"
STATUSES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""Of a transactional id, by the numbers that coordinators give them."""
_IN_FLIGHT: Final = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_EARLIEST, _LATEST = -2, -1
_CONTROL: Final = struct.Struct(">hh")
_CONTROL_TYPES: Final = {0: "ABORT", 1: "COMMIT"}
_TIMES: Final = (("updated_ms", types.Int64), ("started_ms", types.Int64))
_FIXED: Final = (
    ("producer_id", types.Int64),
    ("producer_epoch", types.Int16),
    ("timeout_ms", types.Int32),
    ("status", types.Int8),
)
_VALUES: Final = {
    0: types.Schema(
        *_FIXED,
        (
            "topics",
            types.Array(("topic", types.String("utf-8")), ("partitions", types.Array(types.Int32))),
        ),
        *_TIMES,
    ),
    1: types.Schema(
        *_FIXED,
        (
            "topics",
            types.CompactArray(
                ("topic", types.CompactString("utf-8")),
                ("partitions", types.CompactArray(types.Int32)),
                ("tags", types.TaggedFields),
            ),
        ),
        *_TIMES,
        ("tags", types.TaggedFields),
    ),
}
"""Kafka's TransactionLogValue, by its version."""
_REACHED: Final = pa.struct([pa.field("topic", pa.string()), pa.field("partition", pa.int32())])
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("producer_id", pa.int64()),
    pa.field("producer_epoch", pa.int32()),
    pa.field("sequence", pa.int32()),
    pa.field("is_transactional", pa.bool_()),
    pa.field("is_control", pa.bool_()),
    pa.field("control_type", pa.string()),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("timestamp", pa.int64()),
]
RECORDS: Final = pa.schema(_FIELDS)
_ENTRY_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("log_partition", pa.int32()),
    pa.field("log_offset", pa.int64()),
    pa.field("transactional_id", pa.string()),
    pa.field("producer_id", pa.int64()),
    pa.field("producer_epoch", pa.int32()),
    pa.field("status", pa.string()),
    pa.field("partitions", pa.list_(_REACHED)),
    pa.field("updated_ms", pa.int64()),
]
ENTRIES: Final = pa.schema(_ENTRY_FIELDS)


@dataclass(frozen=True, slots=True)
class RawLogs:
    """`records` has every record of the partitions, markers too (`RECORDS`); `entries` every entry
    that the transaction log still has (`ENTRIES`). Ids that were forgotten have no entry."""

    records: pa.Table
    entries: pa.Table


def dump(
    bootstrap_servers: str, topics: Sequence[str], *, seconds_max: float = SECONDS_MAX
) -> RawLogs:
    """All that these topics and the transaction log have, at a moment at which no coordinator is in
    the middle of a commit or an abort. It waits for that moment: stop the producers first. A
    transaction may be open. Raises NotInTimeError if the moment does not come, and retries whatever
    a broker refuses, also one that was killed and comes back."""
    found: list[RawLogs] = []
    failures: list[str] = []

    def is_dumped() -> bool:
        try:
            raw = asyncio.run(_dump(bootstrap_servers, topics))
        except (KafkaError, OSError, _NotStillError) as error:
            failures[:] = [f"{type(error).__name__}: {error}"]
            return False
        found.append(raw)
        return True

    wait_until(is_dumped, "a dump of Kafka's logs", seconds_max, lambda: "; ".join(failures))
    return found[0]


class _NotStillError(Exception):
    """Something moved while it was dumped."""


async def _dump(bootstrap_servers: str, topics: Sequence[str]) -> RawLogs:

    client = AIOKafkaClient(bootstrap_servers=bootstrap_servers)
    await client.bootstrap()
    try:
        await client.set_topics([*topics, TRANSACTION_LOG])
        reader = _Reader(client)
        logs = await reader.ends([TRANSACTION_LOG], _LATEST)
        entries = pa.Table.from_pylist(
            list(_entries(await reader.records([TRANSACTION_LOG], logs))), ENTRIES
        )
        _check_still(entries)
        ends = await reader.ends(topics, _LATEST)
        records = await reader.records(topics, ends)
        if await reader.ends([TRANSACTION_LOG], _LATEST) != logs:
            raise _NotStillError("the transaction log moves: stop the producers")
        return RawLogs(pa.Table.from_pylist(records, RECORDS), entries)
    finally:
        await client.close()


def _check_still(entries: pa.Table) -> None:
    newest = {
        entry["transactional_id"]: entry["status"]
        for entry in entries.select(["transactional_id", "status"]).to_pylist()
    }
    in_flight = [name for name, status in newest.items() if status in _IN_FLIGHT]
    if in_flight:
        raise _NotStillError(f"markers of {in_flight[:3]} are still being written")


class _Reader:
    """Asks leaders of partitions. Errors of brokers are raised: the whole dump is tried again."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def _by_leader(self, topics: Iterable[str]) -> dict[int, list[tuple[str, int]]]:

        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        cluster = self._client.cluster
        for topic in topics:
            partitions = cluster.partitions_for_topic(topic)
            if not partitions and topic == TRANSACTION_LOG:
                continue  # nobody ever had a transaction
            for partition in sorted(partitions or ()):
                leader = cluster.leader_for_partition(TopicPartition(topic, partition))
                if leader is None or leader < 0:
                    raise LeaderNotAvailableError(f"{topic}-{partition}")
                found[leader].append((topic, partition))
            if not partitions:
                raise LeaderNotAvailableError(f"there is no topic {topic}")
        return found

    async def ends(self, topics: Iterable[str], at: int) -> dict[tuple[str, int], int]:

        found = {}
        for leader, partitions in self._by_leader(topics).items():
            asked = [(topic, [(partition, at)]) for topic, partition in partitions]
            answer = await self._client.send(leader, OffsetRequest(-1, 0, asked))
            for topic, answered in answer.topics:
                for partition, code, *_, offset in answered:
                    if code:
                        raise for_code(code)(f"{topic}-{partition}")
                    found[topic, partition] = offset
        return found

    async def records(
        self, topics: Iterable[str], ends: dict[tuple[str, int], int]
    ) -> list[dict[str, Any]]:
        begins = await self.ends(topics, _EARLIEST)
        found: list[dict[str, Any]] = []
        for leader, partitions in self._by_leader(topics).items():
            for topic, partition in partitions:
                at, end = begins[topic, partition], ends[topic, partition]
                while at < end:
                    content = await self._fetch(leader, topic, partition, at)
                    rows, reached = _decoded(topic, partition, content)
                    found += [row for row in rows if at <= row["offset"] < end]
                    if reached <= at:
                        raise _NotStillError(f"{topic}-{partition} has nothing at {at} of {end}")
                    at = reached
        return found

    async def _fetch(self, leader: int, topic: str, partition: int, at: int) -> bytes:

        asked = [(topic, [(partition, at, FETCH_BYTES)])]
        answer = await self._client.send(leader, FetchRequest(500, 1, FETCH_BYTES, 0, asked))
        ((_, ((_, code, *_, content),)),) = answer.topics
        if code:
            raise for_code(code)(f"{topic}-{partition} at {at}")
        return bytes(content or b"")


def _decoded(topic: str, partition: int, content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The records, and where the next one begins: compaction may leave batches without any."""

    found: list[dict[str, Any]] = []
    reached = -1
    batches = MemoryRecords(content)
    while batches.has_next():
        batch = batches.next_batch()
        reached = batch.next_offset
        for record in batch:
            is_control = bool(batch.is_control_batch)
            found.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": record.offset,
                    "producer_id": batch.producer_id,
                    "producer_epoch": batch.producer_epoch,
                    "sequence": _sequence(batch.base_sequence, record.offset - batch.base_offset),
                    "is_transactional": bool(batch.is_transactional),
                    "is_control": is_control,
                    "control_type": _control_type(record.key) if is_control else None,
                    "key": record.key,
                    "value": record.value,
                    "timestamp": record.timestamp,
                }
            )
    return found, reached


def _sequence(first: int, place: int) -> int | None:
    """Of a record of an idempotent producer: they begin again at 0 behind the highest number."""
    return None if first < 0 else (first + place) % (1 << 31)


def _control_type(key: bytes) -> str:
    _, number = _CONTROL.unpack_from(key)
    return _CONTROL_TYPES.get(number, str(number))


def _entries(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the records of the transaction log say; of ids that were forgotten nothing."""

    for record in records:
        key, value = io.BytesIO(record["key"]), record["value"]
        types.Int16.decode(key)
        name = types.String("utf-8").decode(key)
        if value is None:
            continue
        content = io.BytesIO(value)
        schema = _VALUES[types.Int16.decode(content)]
        got = dict(zip(schema.names, schema.decode(content), strict=True))
        yield {
            "log_partition": record["partition"],
            "log_offset": record["offset"],
            "transactional_id": name,
            "producer_id": got["producer_id"],
            "producer_epoch": got["producer_epoch"],
            "status": STATUSES[got["status"]],
            "partitions": [
                {"topic": topic, "partition": partition}
                for topic, partitions, *_ in got["topics"] or ()
                for partition in partitions
            ],
            "updated_ms": got["updated_ms"],
        }
