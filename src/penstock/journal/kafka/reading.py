"""Reads partitions from where a reader is up to given ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.journal.kafka.client.fetching import fetch
from penstock.journal.kafka.errors import BrokersUnavailableError
from penstock.journal.kafka.records.columns import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.client.fetching import Fetched, Want
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.records.batches import Partition
    from penstock.journal.kafka.records.columns import Decoded


def read_up_to(
    cluster: Cluster,
    wants: dict[Partition, Want],
    ends: Mapping[Partition, int],
    deadline: Deadline,
    *,
    with_headers: bool = False,
) -> Iterator[tuple[Partition, Decoded]]:
    """Everything below the ends, as it comes; rows at an end and above may come too. `wants` moves
    along: afterwards it says where to go on. Raises the first failure of a partition."""
    while rest := [each for each in wants if wants[each].offset < ends[each]]:
        # Brokers fill an answer in the order of the request: whoever came last is asked first.
        rest.sort(key=lambda each: wants[each].offset - ends[each])
        result = fetch(cluster, {each: wants[each] for each in rest}, deadline, wait_ms=0)
        for error in result.failed.values():
            raise error
        is_anything = False
        for partition, fetched in result.found.items():
            want = wants[partition]
            decoded = decode(partition, fetched.records, want.offset, with_headers=with_headers)
            if decoded.next_offset > want.offset:
                is_anything = True
                wants[partition] = moved(want, decoded)
                yield partition, decoded
        if not is_anything:
            for partition in rest:
                _pass_gap(wants, ends[partition], partition, result.found.get(partition))
            if deadline.is_over:
                left = next(iter(rest))
                raise BrokersUnavailableError(
                    f"read {left} up to offset {ends[left]}",
                    deadline.seconds,
                    result.waiting.get(left, "the broker gave nothing"),
                )


def moved(want: Want, decoded: Decoded) -> Want:
    """Behind what was read, with the epoch of its last batch."""
    epoch = int(decoded.batches.leader_epoch[-1])
    return replace(want, offset=decoded.next_offset, read_epoch=epoch)


def _pass_gap(
    wants: dict[Partition, Want], end: int, partition: Partition, fetched: Fetched | None
) -> None:
    """Compaction may take the last rows before an end away. When an answer had room for all that
    there is, and had nothing, the end is reached."""
    if fetched is not None and not fetched.records and fetched.high_watermark >= end:
        wants[partition] = replace(wants[partition], offset=end)
