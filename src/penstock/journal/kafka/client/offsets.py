"""Where partitions begin and end, and which offset a time or a leader's epoch has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from penstock.journal.kafka.client.asking import PartitionAsk, of_partitions
from penstock.journal.kafka.errors import LogTruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.records.batches import Partition

EARLIEST: Final = -2
LATEST: Final = -1
UNCOMMITTED: Final = 0
NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one partition."""

    earliest: int
    high_watermark: int
    """Rows below it are on all replicas that are in sync."""


def bounds(
    cluster: Cluster, partitions: Iterable[Partition], deadline: Deadline
) -> dict[Partition, Bounds]:
    """Of many partitions, by two requests to each broker."""
    wanted = tuple(partitions)
    asks = [
        PartitionAsk("offset of the beginning", _list_offsets(EARLIEST, UNCOMMITTED)),
        PartitionAsk("high watermark", _list_offsets(LATEST, UNCOMMITTED)),
    ]
    found = of_partitions(cluster, wanted, asks, deadline)
    return {each: Bounds(*(answer.offset for answer in found[each])) for each in wanted}


def high_watermarks(
    cluster: Cluster, partitions: Iterable[Partition], deadline: Deadline
) -> dict[Partition, int]:
    """Of many partitions, by one request to each broker."""
    ask = PartitionAsk("high watermark", _list_offsets(LATEST, UNCOMMITTED))
    found = of_partitions(cluster, tuple(partitions), [ask], deadline)
    return {partition: answer.offset for partition, (answer,) in found.items()}


def offsets_for_times(
    cluster: Cluster, times_ms: Mapping[Partition, int], deadline: Deadline
) -> dict[Partition, int | None]:
    """The first offset whose timestamp is not before the time; None if there is none."""
    ask = PartitionAsk("offset of a time", _list_offsets(times_ms, UNCOMMITTED))
    found = of_partitions(cluster, tuple(times_ms), [ask], deadline)
    return {
        partition: None if answer.offset < 0 else answer.offset
        for partition, (answer,) in found.items()
    }


def check_not_truncated(
    cluster: Cluster, read: Mapping[Partition, tuple[int, int]], deadline: Deadline
) -> None:
    """Raises `LogTruncatedError` for the first partition whose log does not have any more what was
    read of it. `read` has the next offset of each, and the leader's epoch of the row before."""
    known = {partition: at for partition, at in read.items() if at[1] != NO_EPOCH}
    ask = PartitionAsk("end of an epoch", _epoch_ends({p: at[1] for p, at in known.items()}))
    found = of_partitions(cluster, tuple(known), [ask], deadline)
    for partition, (answer,) in found.items():
        offset, epoch = known[partition]
        if answer.end_offset < 0:
            continue  # the broker does not know: its log begins later
        if answer.end_offset < offset or answer.leader_epoch < epoch:
            raise LogTruncatedError(
                partition.topic, partition.number, offset, min(answer.end_offset, offset)
            )


def _list_offsets(times: int | Mapping[Partition, int], isolation: int) -> Any:
    kind = ListOffsetsRequest.ListOffsetsTopic

    def request(topics: Mapping[str, list[Partition]], epochs: Mapping[Partition, int]) -> Any:
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                kind(
                    name=name,
                    partitions=[
                        kind.ListOffsetsPartition(
                            partition_index=each.number,
                            current_leader_epoch=epochs[each],
                            timestamp=times if isinstance(times, int) else times[each],
                        )
                        for each in partitions
                    ],
                )
                for name, partitions in topics.items()
            ],
        )

    return request


def _epoch_ends(read_epochs: Mapping[Partition, int]) -> Any:
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def request(topics: Mapping[str, list[Partition]], epochs: Mapping[Partition, int]) -> Any:
        return OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                kind(
                    topic=name,
                    partitions=[
                        kind.OffsetForLeaderPartition(
                            partition=each.number,
                            current_leader_epoch=epochs[each],
                            leader_epoch=read_epochs[each],
                        )
                        for each in partitions
                    ],
                )
                for name, partitions in topics.items()
            ],
        )

    return request
