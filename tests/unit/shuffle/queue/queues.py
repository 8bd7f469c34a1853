"""What the tests of a Queue's files share: parcels from rows, and a queue that is a plain list.

The list is the oracle. It knows nothing of segments, survivors or compression: a row is visible by
the definition, looked at one row and one rollback at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.frontier.table import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import Producer
from penstock.shuffle.parcels import PARCEL_FIELDS, ROLLBACK_SCHEMA, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.shuffle.queue.block import Parcel
    from penstock.shuffle.queue.log import QueueLog
    from penstock.shuffle.queue.reader import QueueReader

Source = tuple[int, str, int]
"""Binding, journal, producer."""

_ID: list[pa.Field[Any]] = [*PARCEL_FIELDS, pa.field("id", pa.int64())]
_TEXT: list[pa.Field[Any]] = [*_ID, pa.field("text", pa.string())]
SCHEMAS = {1: pa.schema(_ID), 2: pa.schema(_TEXT)}


def producer(number: int) -> int:
    """Both signs occur: the first byte's high bit is the number's sign."""
    return Producer(bytes([(0x81 if number % 2 else 0x01), 0, 0, 0, 0, number])).int64


@dataclass(frozen=True, slots=True)
class Row:
    binding: int
    journal: str
    producer: int
    clock: int
    id: int
    version: int = 1

    @property
    def source(self) -> Source:
        return self.binding, self.journal, self.producer


@dataclass(frozen=True, slots=True)
class Rollback:
    binding: int
    journal: str
    producer: int
    after: int
    through: int

    @property
    def source(self) -> Source:
        return self.binding, self.journal, self.producer

    def forgets(self, row: Row) -> bool:
        return self.source == row.source and self.after < row.clock <= self.through


Entry = Row | Rollback
Commits = dict[Source, int]


def names_of(entries: Iterable[Entry]) -> dict[tuple[int, str], int]:
    """Numbers for all reads that occur."""
    reads = sorted({(entry.binding, entry.journal) for entry in entries})
    return {read: number for number, read in enumerate(reads, 1)}


def stage_of(entry: Entry) -> Stage:
    return Stage(entry.binding, entry.version if isinstance(entry, Row) else 0)


def batch_of(entries: Sequence[Entry], numbers: Mapping[tuple[int, str], int]) -> pa.RecordBatch:
    """Entries of one stage."""
    reads = [numbers[entry.binding, entry.journal] for entry in entries]
    producers = [entry.producer for entry in entries]
    rollbacks = [entry for entry in entries if isinstance(entry, Rollback)]
    if rollbacks:
        columns = [reads, producers, [r.after for r in rollbacks], [r.through for r in rollbacks]]
        schema = ROLLBACK_SCHEMA
    else:
        rows = [entry for entry in entries if isinstance(entry, Row)]
        ids = [row.id for row in rows]
        columns = [reads, ids, producers, [row.clock for row in rows], [i % 256 for i in ids], ids]
        schema = SCHEMAS[rows[0].version]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=False)]
    if len(schema) > len(arrays):
        texts = [f"text of {row.id}" if row.id % 3 else None for row in rows]
        arrays.append(pa.array(texts, pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def parts_of(
    entries: Sequence[Entry], numbers: Mapping[tuple[int, str], int], part_of: Sequence[int]
) -> tuple[list[Parcel], np.ndarray[tuple[int], np.dtype[np.uint32]] | None]:
    """The entries as parts, with the order that they have. Entry i goes, with others of its stage,
    into the part with the number `part_of[i]`."""
    keyed = [
        (stage_of(entry), part, index)
        for index, (entry, part) in enumerate(zip(entries, part_of, strict=True))
    ]
    keyed.sort(key=lambda key: (key[1], str(key[0]), key[2]))
    parts, rows = [], []
    for (stage, _), found in groupby(keyed, key=lambda key: key[:2]):
        indices = [index for _, _, index in found]
        parts.append((stage, batch_of([entries[index] for index in indices], numbers)))
        rows += indices
    order = np.argsort(np.array(rows)).astype(np.uint32)
    return parts, None if (order == np.arange(len(order))).all() else order


def append(
    log: QueueLog,
    entries: Sequence[Entry],
    numbers: Mapping[tuple[int, str], int] | None = None,
    part_of: Sequence[int] | None = None,
) -> int:
    numbers = numbers or names_of(entries)
    parts, order = parts_of(entries, numbers, part_of or [0] * len(entries))
    return log.append(parts, order, {number: read for read, number in numbers.items()})


def frontier(commits: Commits) -> Frontier:
    found: dict[tuple[str, int], list[ProducerFrontier]] = {}
    for (binding, journal, number), commit in commits.items():
        if commit:
            entry = ProducerFrontier(Producer.from_int64(number), commit)
            found.setdefault((journal, binding), []).append(entry)
    return Frontier.of(
        JournalFrontier(journal, binding, tuple(sorted(entries, key=lambda e: e.producer.raw)))
        for (journal, binding), entries in sorted(found.items())
    )


@dataclass(slots=True)
class Model:
    blocks: list[tuple[int, Sequence[Entry]]] = field(default_factory=list)
    """LSN and entries."""
    given: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """LSN and vnodes."""

    def cut(self, lsn: int) -> None:
        self.blocks = [block for block in self.blocks if block[0] <= lsn]
        self.given = [given for given in self.given if given[0] <= lsn]

    def visible(self, start: Commits, end: Commits, lsn: int) -> list[Row]:
        placed = [(at, entry) for at, block in self.blocks if at <= lsn for entry in block]
        entries = [entry for _, entry in placed]
        given = [one for one in self.given if one[0] <= lsn]
        rollbacks = [(i, e) for i, e in enumerate(entries) if isinstance(e, Rollback)]
        return [
            row
            for place, row in enumerate(entries)
            if isinstance(row, Row)
            and start.get(row.source, 0) < row.clock <= end.get(row.source, 0)
            and not any(at > place and rollback.forgets(row) for at, rollback in rollbacks)
            and not any(placed[place][0] < at and row.id % 256 in vnodes for at, vnodes in given)
        ]


def read(reader: QueueReader, start: Commits, end: Commits, lsn: int) -> list[Row]:
    """What a reader gives, as rows, with the batches of each block put together by their places."""
    found: list[Row] = []
    batches = list(reader.read(frontier(start), frontier(end), lsn))
    assert all(batch.batch.num_rows for batch in batches), "a batch without rows"
    for _, group in groupby(batches, key=lambda batch: batch.lsn):
        of_block: list[tuple[int, Row]] = []
        for batch in group:
            assert batch.batch.schema.equals(SCHEMAS[batch.stage.version])
            assert (np.diff(batch.places.astype(np.int64)) > 0).all(), "not in queue order"
            rows = [_row(batch.stage, values, batch.names) for values in batch.batch.to_pylist()]
            of_block += zip(batch.places.tolist(), rows, strict=True)
        of_block.sort(key=lambda placed: placed[0])
        assert len({place for place, _ in of_block}) == len(of_block)
        found += [row for _, row in of_block]
    return found


def check_columns(reader: QueueReader, start: Commits, end: Commits, lsn: int) -> None:
    """Who asks for some columns gets the same batches with these, as far as they have them."""
    between = frontier(start), frontier(end), lsn
    for columns in ({"id", "text"}, {"_clock", "text"}, {"text"}):
        some = list(reader.read(*between, columns))
        for whole, part in zip(reader.read(*between), some, strict=True):
            names = [name for name in whole.batch.schema.names if name in columns]
            assert part.batch.select(names).equals(whole.batch.select(names))
            assert set(names) == columns & set(whole.batch.schema.names)
            assert part.batch.num_rows == whole.batch.num_rows
            assert part.places.tolist() == whole.places.tolist()
            assert (part.lsn, part.stage) == (whole.lsn, whole.stage)


def _row(stage: Stage, values: Mapping[str, Any], names: Mapping[int, tuple[int, str]]) -> Row:
    binding, journal = names[values["_read"]]
    assert binding == stage.binding
    number = values["id"]
    assert values["_offset"] == number
    assert values["_vnode"] == number % 256
    if stage.version == 2:
        assert values["text"] == (f"text of {number}" if number % 3 else None)
    return Row(binding, journal, values["_producer"], values["_clock"], number, stage.version)
