"""What a connector wrote once more is left out of a partition, wherever a reader begins.

Whoever reads on knows the rows before. Who begins in the middle (a member that starts again, a task
of a batch) looks back first: no row that was sent before a change was committed stands above it in
the database's log. So it is enough to begin where Kafka's timestamps reach the commit of the first
change, less what the clocks of the database and of the connector may differ.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.journal.kafka.client.fetching import Want
from penstock.journal.kafka.errors import ChangeLogError
from penstock.journal.kafka.repetitions import COLUMNS, changes_in, repeated
from penstock.journal.kafka.rows import selected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from numpy.typing import NDArray

    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.log import KafkaLog, Read
    from penstock.journal.kafka.records.batches import Partition
    from penstock.journal.kafka.records.columns import Decoded
    from penstock.journal.kafka.repetitions import Changes, Known
    from penstock.journal.kafka.shapes import Shape

CLOCKS_DIFFER_SECONDS: Final = 600
"""At most, the database's and the connector's. And so long after a commit the next one is not taken
for the same."""
REMEMBERED_MAX: Final = 1 << 14
"""Partitions that are read, and reads that were given up."""
_Reached: TypeAlias = "tuple[Partition, UUID | None, int]"
"""A partition, of which topic, and an offset."""
_PATIENCE_US: Final = CLOCKS_DIFFER_SECONDS * 1_000_000


class ChangeReader:
    """The rows of one subscription, without repetitions. Threads read different partitions."""

    def __init__(self, log: KafkaLog, shape: Shape) -> None:
        self._log = log
        self._shape = shape
        self._behind: OrderedDict[_Reached, Known] = OrderedDict()
        """Where reads of partitions have come, and what is known there: the next one goes on."""
        self._lock = threading.Lock()

    def documents(
        self,
        partition: Partition,
        want: Want,
        read: Read,
        columns: Sequence[str] | None,
        deadline: Deadline,
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Of what was read from `want` on: the documents that are new, of these columns, and which
        rows they are."""
        decoded = read.decoded
        documents, kept, placed, changes = self._changes(partition, decoded, columns)
        with self._lock:
            known = self._behind.pop((partition, want.topic_id, want.offset), None)
        if known is None and len(placed) and want.offset:
            known = self._look_back(partition, want, changes, deadline)
        told = repeated(changes, known, _PATIENCE_US)
        if told.begun_anew is not None:
            row = kept[placed[told.begun_anew]]
            at = int(decoded.rows.column("offset")[int(row)].as_py())
            raise ChangeLogError(partition.topic, partition.number, at)
        if told.known is not None:
            with self._lock:
                self._behind[partition, want.topic_id, read.behind.offset] = told.known
                if len(self._behind) > REMEMBERED_MAX:
                    self._behind.popitem(last=False)
        if told.is_repeated.any():
            is_new = np.ones(len(kept), np.bool_)
            is_new[placed[told.is_repeated]] = False
            documents, kept = documents.filter(pa.array(is_new)), kept[is_new]
        if columns is not None:
            documents = selected(documents, columns)
        return documents, kept

    def _changes(
        self, partition: Partition, decoded: Decoded, columns: Sequence[str] | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.intp], Changes]:
        wanted = None if columns is None else {*columns, *COLUMNS}
        documents, some = self._shape.documents(partition, decoded, wanted)
        kept = np.arange(documents.num_rows) if some is None else some
        changes, placed = changes_in(documents)
        # Of Kafka's transactions those that were aborted are written again, and were never shown.
        is_outside = np.repeat(~decoded.batches.is_transactional, decoded.batches.rows)[kept]
        if not is_outside[placed].all():
            changes = changes.chosen(is_outside[placed])
            placed = placed[is_outside[placed]]
        return documents, kept, placed, changes

    def _look_back(
        self, partition: Partition, want: Want, first: Changes, deadline: Deadline
    ) -> Known | None:
        """What is known before a row that nobody has read up to."""
        moment_ms = int(first.committed_us[0]) // 1_000 - CLOCKS_DIFFER_SECONDS * 1_000
        begin = self._log.offsets_for_times({partition: max(moment_ms, 0)}, deadline)[partition]
        if begin is None or begin >= want.offset:
            return None
        known = None
        back = Want(begin, topic_id=want.topic_id)
        while back.offset < want.offset:
            found = self._log.read(partition, back, deadline)
            if found.behind.offset == back.offset:
                break
            _, kept, placed, changes = self._changes(partition, found.decoded, ())
            offsets = found.decoded.rows.column("offset").to_numpy()[kept[placed]]
            known = repeated(changes.chosen(offsets < want.offset), known, _PATIENCE_US).known
            back = found.behind
        return known
