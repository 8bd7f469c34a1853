"""A member's disk: what is written, what is durable, and what a crash leaves of it.

The list of blocks is the model: a row is visible by the definition in docs/shuffle.md, looked at
one row and one rollback at a time. With a folder, the real log, reader and reclaim do the same, and
have to agree.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import LocalProtocolError
from penstock.shuffle.parcels import fields_of
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.handover import Source, take
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.reclaim import reclaim
from penstock.shuffle.queue.segment import list_segments, lsn_of, segment_of, segment_path
from tests.simulation.choices import Menu
from tests.simulation.world import Violation
from tests.simulation_shuffle.oracle import VNODES_OF_KEYS, Document, commits_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from penstock.frontier import Frontier
    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.block import Order, Parcel
    from penstock.shuffle.queue.handover import Settled
    from penstock.shuffle.queue.reader import QueueBatch
    from tests.simulation.world import World
    from tests.simulation_shuffle.oracle import Commits
    from tests.simulation_shuffle.oracle import Source as DocumentSource

    Names: TypeAlias = Mapping[int, tuple[int, str]]

SEGMENT_BLOCKS: Final = 4
SEGMENT_BYTES: Final = 4096
_KEPT: Final = Menu((1, 1.0), (1, 0.0), (1, 0.5))
"""How much of what is not durable a crash leaves."""


@dataclass(frozen=True, slots=True)
class Forget:
    source: DocumentSource
    after: int
    through: int


@dataclass(slots=True)
class Block:
    lsn: int
    entries: list[Document | Forget]
    size_bytes: int
    gives: frozenset[int] = frozenset()
    """Vnodes whose documents in blocks before it are another queue's."""


class Disk:
    def __init__(self, world: World, member: int, folder: Path | None) -> None:
        self._world = world
        self.member = member
        self._folder = folder
        self._log: QueueLog | None = None
        self._real_sizes: dict[int, int] = {}
        """Of segments, as far as they are durable."""
        self.blocks: list[Block] = []
        self.has_queue = False
        self.generation = 0
        self.last_lsn = self.durable_lsn = 0
        self._floor = 0
        """Up to here the consumer is done, and knows what it has."""
        self._consumed: Commits = {}

    # The log

    def open(self, lsn: int, generation: int | None) -> None:
        """As `QueueLog.open` with `discard`. Raises QueueLostError."""
        if self._folder is not None:
            self._log = QueueLog.open(
                self._folder,
                lsn,
                generation=generation,
                discard=True,
                segment_bytes_max=SEGMENT_BYTES,
            )
        if lsn == 0:
            self.blocks, self.has_queue = [], True
            self._floor, self._consumed = 0, {}
            self.generation += 1
            if self._log is not None:
                self.generation = self._log.generation
        elif not self._is_there(lsn, generation):
            raise QueueLostError(f"disk {self.member}", segment_of(lsn), "it is not there")
        self.blocks = [block for block in self.blocks if block.lsn <= lsn]
        self.last_lsn = self.durable_lsn = lsn
        self._note_sizes()

    def _is_there(self, lsn: int, generation: int | None) -> bool:
        is_same = generation in (None, self.generation)
        return self.has_queue and is_same and any(block.lsn == lsn for block in self.blocks)

    def append(self, parts: list[Parcel], order: Order | None, names: Names) -> int:
        entries = entries_in_order(parts, order, names)
        if self._log is not None:
            self.last_lsn = self._log.append(parts, order, names)
        else:
            self.last_lsn = self._next_lsn()
        size_bytes = sum(batch.nbytes for _, batch in parts)
        self.blocks.append(Block(self.last_lsn, entries, size_bytes))
        return self.last_lsn

    def _next_lsn(self) -> int:
        number, segment = (self.last_lsn & 0xFFFF) + 1, segment_of(self.last_lsn)
        if segment == 0 or number == SEGMENT_BLOCKS:
            return lsn_of(segment + 1, 0)
        return lsn_of(segment, number)

    def give(self, vnodes: set[int]) -> None:
        if self._log is not None:
            self.last_lsn = self._log.append((), None, {}, gives=sorted(vnodes))
        else:
            self.last_lsn = self._next_lsn()
        self.blocks.append(Block(self.last_lsn, [], 0, frozenset(vnodes)))

    def check(self, lsn: int, generation: int) -> None:
        """As who takes vnodes over from it finds it."""
        if lsn and not self._is_there(lsn, generation):
            raise QueueLostError(f"disk {self.member}", segment_of(lsn), "it is not there")

    def take(
        self, other: Disk, lsn: int, settled: Settled, consumed: Frontier, vnodes: set[int]
    ) -> None:
        """What is needed of these vnodes is written here, from another disk as an epoch left it."""
        blocks = [block for block in other.blocks if block.lsn <= lsn]
        for parcels, order in settled.blocks:
            entries = entries_in_order(parcels, order, settled.names)
            blocks.append(Block(lsn + 1, entries, 0))
        found = [
            entry
            for entry in visible(blocks, commits_of(consumed), None)
            if VNODES_OF_KEYS[entry.key] in vnodes
        ]
        if self._log is not None and other._folder is not None:
            source = Source(other._folder, other.generation, lsn, settled)
            batches = _Remembered(source.alive(consumed, vnodes))
            count = take(self._log, batches)
            found = self._check_taken(batches.documents(), found, other)
            if count != len(found):
                raise Violation(f"{count} rows were taken, and read were {len(found)}")
            self.last_lsn = self._log.last_lsn
        elif found:
            self.last_lsn = self._next_lsn()
        if found:
            self.blocks.append(Block(self.last_lsn, list(found), 50 * len(found)))
        self._world.counts["documents taken over"] += len(found)

    def _check_taken(
        self, real: list[Document], found: list[Document], other: Disk
    ) -> list[Document]:
        """The epoch's record knows what was consumed when the epoch began. The consumer may have
        said more since, and then reclaim has dropped segments: of what is consumed by now a part
        may be missing, of the rest nothing."""
        is_real = set(real)
        missing = [entry for entry in found if entry not in is_real and other._is_open(entry)]
        if missing:
            raise Violation(f"not taken from disk {other.member}: {missing[:3]}")
        if real != [entry for entry in found if entry in is_real]:
            raise Violation(f"taken from disk {other.member} was {real}, the model has {found}")
        return real

    def sync_to(self, lsn: int) -> int:
        """What was written up to here is durable from now on. Gives up to where all is."""
        if self._log is not None:
            lsn = max(lsn, self._log.sync())
        self.durable_lsn = max(self.durable_lsn, lsn)
        self._note_sizes()
        return self.durable_lsn

    def consumed(self, frontier: Frontier, lsn: int) -> None:
        if self._log is not None:
            reclaimed = reclaim(self._log, frontier, lsn)
            self._world.counts["segments dropped"] += len(reclaimed.segments)
            if reclaimed.survivors_lsn is not None:
                self._world.counts["survivors written"] += 1
                self.last_lsn = reclaimed.survivors_lsn
                self.blocks.append(Block(self.last_lsn, [], 0))  # nothing that is not there
        self._floor, self._consumed = max(self._floor, lsn), commits_of(frontier)

    @property
    def size_bytes(self) -> int:
        """What is left of it after reclaim; about so much if there is no real log."""
        if self._log is not None:
            return self._log.size_bytes
        return sum(
            block.size_bytes
            for block in self.blocks
            if block.lsn > self._floor or any(map(self._is_open, block.entries))
        )

    def _is_open(self, entry: Document | Forget) -> bool:
        return isinstance(entry, Document) and entry.clock > self._consumed.get(entry.source, 0)

    @property
    def durable_documents(self) -> set[Document]:
        return {
            entry
            for block in self.blocks
            if block.lsn <= self.durable_lsn
            for entry in block.entries
            if isinstance(entry, Document)
        }

    # Crashes

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def crash(self) -> None:
        """What is not durable is lost, or a part of it."""
        share = self._world.choices.choose(f"disk {self.member} kept", _KEPT)
        self.close()
        later = [block for block in self.blocks if block.lsn > self.durable_lsn]
        kept = int(len(later) * share)
        self.blocks = [block for block in self.blocks if block not in later[kept:]]
        if self._folder is not None and self.has_queue:
            for segment in list_segments(self._folder):
                path = segment_path(self._folder, segment)
                size_bytes = path.stat().st_size
                durable_bytes = min(self._real_sizes.get(segment, 0), size_bytes)
                os.truncate(path, durable_bytes + int((size_bytes - durable_bytes) * share))

    def lose(self) -> None:
        self.blocks, self.has_queue = [], False
        if self._folder is not None and self._folder.exists():
            shutil.rmtree(self._folder)

    def _note_sizes(self) -> None:
        if self._log is not None and self._folder is not None:
            self._real_sizes = {
                segment: segment_path(self._folder, segment).stat().st_size
                for segment in list_segments(self._folder)
            }

    # Reading

    def read(self, start: Frontier, end: Frontier, lsn: int) -> list[Document]:
        """The documents of (start, end], in queue order."""
        first, last = commits_of(start), commits_of(end)
        if lsn > self.durable_lsn:
            raise Violation(f"epoch at LSN {lsn:#x}, and durable is {self.durable_lsn:#x}")
        found = visible([block for block in self.blocks if block.lsn <= lsn], first, last)
        if self._folder is not None:
            real = _read(self._folder, start, end, lsn)
            if real != found:
                raise Violation(f"the reader gives {real}, the model {found}")
        return found


def visible(blocks: list[Block], first: Commits, last: Commits | None) -> list[Document]:
    """By the definition; without an end, all behind the start."""
    placed = [(block.lsn, entry) for block in blocks for entry in block.entries]
    given: dict[int, int] = {}
    for block in blocks:
        given |= dict.fromkeys(block.gives, block.lsn)
    forgets: dict[DocumentSource, list[tuple[int, Forget]]] = {}
    for place, (_, entry) in enumerate(placed):
        if isinstance(entry, Forget):
            forgets.setdefault(entry.source, []).append((place, entry))
    return [
        entry
        for place, (lsn, entry) in enumerate(placed)
        if isinstance(entry, Document)
        and first.get(entry.source, 0) < entry.clock
        and (last is None or entry.clock <= last.get(entry.source, 0))
        and lsn >= given.get(VNODES_OF_KEYS[entry.key], 0)
        and not any(
            at > place and forget.after < entry.clock <= forget.through
            for at, forget in forgets.get(entry.source, ())
        )
    ]


def entries_in_order(
    parts: list[Parcel], order: Order | None, names: Names
) -> list[Document | Forget]:
    entries = [entry for stage, batch in parts for entry in entries_of(stage, batch, names)]
    return entries if order is None else [entries[place] for place in order.tolist()]


def entries_of(stage: Stage, batch: pa.RecordBatch, names: Names) -> list[Document | Forget]:
    columns = [column.to_pylist() for column in batch.columns]
    found: list[Document | Forget] = []
    for row in zip(*columns, strict=True):
        binding, journal = names[row[0]]
        if binding != stage.binding:
            raise LocalProtocolError(f"{stage} has a row of binding {binding}")
        if stage.is_rollbacks:
            found.append(Forget((journal, binding, row[1]), row[2], row[3]))
        else:
            key, value, _, *added = row[len(fields_of(batch.schema)) :]
            if added not in ([], [None], [2 * value]):
                raise LocalProtocolError(f"{stage} has {row}")
            found.append(Document(journal, binding, row[2], row[1], row[3], key, value))
    return found


def _read(folder: Path, start: Frontier, end: Frontier, lsn: int) -> list[Document]:
    with QueueReader(folder) as reader:
        batches = _Remembered((batch.lsn, batch) for batch in reader.read(start, end, lsn))
        for _ in batches:
            pass
        return batches.documents()


class _Remembered:
    """Passes batches on, and remembers their documents. Each comes with the number of its block."""

    def __init__(self, batches: Iterable[tuple[int, QueueBatch]]) -> None:
        self._batches = batches
        self._blocks: dict[int, list[tuple[int, Document | Forget]]] = {}

    def __iter__(self) -> Iterator[tuple[int, QueueBatch]]:
        for block, batch in self._batches:
            rows = entries_of(batch.stage, batch.batch, batch.names)
            placed = self._blocks.setdefault(block, [])
            placed += zip(batch.places.tolist(), rows, strict=True)
            yield block, batch

    def documents(self) -> list[Document]:
        """In queue order, which is not that of LSNs: a block of survivors comes first."""
        return [
            row
            for placed in self._blocks.values()
            for _, row in sorted(placed, key=lambda each: each[0])
            if isinstance(row, Document)
        ]
