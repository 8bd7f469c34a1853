"""A frontier as columns: how far every producer of every journal has been read.

Journals and their producers' entries are two levels of one table. The entries of journal `j` are
the rows `producer_starts[j] : producer_starts[j + 1]` of the entry columns, so that a frontier of
many journals is a dozen arrays and every rule over it is arithmetic on whole columns.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.frontier.validation import (
    ARRAY_TYPES,
    CLOCK_MAPS,
    FrontierColumnError,
    check_entries,
    check_journals,
    freeze_columns,
)
from penstock.ids import CLOCK_NONE, Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt16Array: TypeAlias = npt.NDArray[np.uint16]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]

_Integer = TypeVar("_Integer", bound=np.integer[Any])


@dataclass(frozen=True, slots=True)
class ProducerFrontier:
    """How far one producer has been read in one journal."""

    producer: Producer
    last_commit: int
    """Every commit up to here is known. Zero only in an entry that is nothing but a hint."""
    hinted_commit: int = CLOCK_NONE
    """A commit that some other journal says this one holds."""
    offset: int = 0
    """Begin of the open span if not negative, else minus the end of the last close."""

    @property
    def is_unresolved(self) -> bool:
        return self.hinted_commit > self.last_commit


@dataclass(frozen=True, slots=True)
class JournalFrontier:
    """One journal as one binding reads it. Producers ascend by their bytes."""

    journal: str
    binding: int
    producers: tuple[ProducerFrontier, ...] = ()
    bytes_read_delta: int = 0
    bytes_behind_delta: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Frontier:
    """Progress over many journals. Never changed: every rule makes another one.

    Arrays given to it are frozen, not copied; their maker lets go of them.
    """

    journal_names: pa.StringArray
    bindings: UInt16Array
    bytes_read_delta: Int64Array
    bytes_behind_delta: Int64Array
    producer_starts: Int64Array
    """One more than there are journals; the last is the number of entries."""
    producers: Int64Array
    """As `Producer.int64`, but ordered by their bytes: compare them as `producer_bytes`."""
    last_commits: UInt64Array
    hinted_commits: UInt64Array
    offsets: Int64Array
    flushed_lsn: UInt64Array
    """Per member, up to where its Queue is durable."""
    backfill_begin: Mapping[int, int]
    """Per binding, a clock; so too the next two."""
    backfill_complete: Mapping[int, int]
    gap_floor: Mapping[int, int]
    unresolved_hints: int = field(init=False)
    """How many entries hint at a commit that was not read yet."""

    def __post_init__(self) -> None:
        freeze_columns(self)
        check_journals(self)
        check_entries(self)
        unresolved = int(np.count_nonzero(self.hinted_commits > self.last_commits))
        object.__setattr__(self, "unresolved_hints", unresolved)

    @classmethod
    def of(
        cls,
        journals: Iterable[JournalFrontier] = (),
        *,
        flushed_lsn: Iterable[int] = (),
        backfill_begin: Mapping[int, int] | None = None,
        backfill_complete: Mapping[int, int] | None = None,
        gap_floor: Mapping[int, int] | None = None,
    ) -> Frontier:
        """A frontier from one object per entry: for tests, for printing, for small uses."""
        rows = list(journals)
        entries = [entry for row in rows for entry in row.producers]
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row.producers) for row in rows], out=starts[1:])
        try:
            # An empty one is made while modules are imported, and `pa.array` imports pandas.
            names = (
                pa.array([row.journal for row in rows], pa.string())
                if rows
                else pa.nulls(0, pa.string())
            )
        except UnicodeEncodeError as error:
            raise FrontierColumnError("journal_names", str(error)) from None
        return cls(
            journal_names=names,
            bindings=_column("bindings", (row.binding for row in rows), np.uint16),
            bytes_read_delta=_column(
                "bytes_read_delta", (row.bytes_read_delta for row in rows), np.int64
            ),
            bytes_behind_delta=_column(
                "bytes_behind_delta", (row.bytes_behind_delta for row in rows), np.int64
            ),
            producer_starts=starts,
            producers=_column("producers", (e.producer.int64 for e in entries), np.int64),
            last_commits=_column("last_commits", (e.last_commit for e in entries), np.uint64),
            hinted_commits=_column("hinted_commits", (e.hinted_commit for e in entries), np.uint64),
            offsets=_column("offsets", (e.offset for e in entries), np.int64),
            flushed_lsn=_column("flushed_lsn", flushed_lsn, np.uint64),
            backfill_begin=backfill_begin or {},
            backfill_complete=backfill_complete or {},
            gap_floor=gap_floor or {},
        )

    @property
    def journal_count(self) -> int:
        return len(self.bindings)

    @property
    def entry_count(self) -> int:
        return len(self.producers)

    @property
    def producer_counts(self) -> Int64Array:
        """Entries per journal."""
        return np.diff(self.producer_starts)

    @property
    def producer_bytes(self) -> UInt64Array:
        """The producers as numbers that sort as their bytes do."""
        return self.producers.view(np.uint64)

    @property
    def unresolved(self) -> BoolArray:
        """Per entry, whether it hints at a commit that was not read yet."""
        return self.hinted_commits > self.last_commits

    def journal_indices(self) -> Int64Array:
        """Per entry, the index of its journal."""
        return np.repeat(np.arange(self.journal_count), self.producer_counts)

    def entry_bindings(self) -> UInt16Array:
        """Per entry, the binding of its journal."""
        return np.repeat(self.bindings, self.producer_counts)

    def cut_floors(self) -> Int64Array:
        """Per journal, the greatest offset of its entries without their sign; zero if none."""
        floors = np.zeros(self.journal_count, np.int64)
        filled = self.producer_counts > 0
        if filled.any():
            # Journals without entries would make reduceat take a neighbour's entry.
            starts = self.producer_starts[:-1][filled]
            floors[filled] = np.maximum.reduceat(np.abs(self.offsets), starts)
        return floors

    def journals(self) -> Iterator[JournalFrontier]:
        for index in range(self.journal_count):
            yield self.journal_at(index)

    def journal_at(self, index: int) -> JournalFrontier:
        rows = slice(int(self.producer_starts[index]), int(self.producer_starts[index + 1]))
        columns = (self.producers, self.last_commits, self.hinted_commits, self.offsets)
        return JournalFrontier(
            journal=self.journal_names[index].as_py(),
            binding=int(self.bindings[index]),
            producers=tuple(
                ProducerFrontier(Producer.from_int64(producer), last_commit, hinted_commit, offset)
                for producer, last_commit, hinted_commit, offset in zip(
                    *(column[rows].tolist() for column in columns), strict=True
                )
            ),
            bytes_read_delta=int(self.bytes_read_delta[index]),
            bytes_behind_delta=int(self.bytes_behind_delta[index]),
        )

    def entry_at(self, row: int) -> ProducerFrontier:
        return ProducerFrontier(
            producer=Producer.from_int64(int(self.producers[row])),
            last_commit=int(self.last_commits[row]),
            hinted_commit=int(self.hinted_commits[row]),
            offset=int(self.offsets[row]),
        )

    def journal(self, journal: str, binding: int) -> JournalFrontier | None:
        """The journal as that binding reads it, if the frontier has it."""
        index = self._find_journal(journal, binding)
        return None if index is None else self.journal_at(index)

    def entry(self, journal: str, binding: int, producer: Producer) -> ProducerFrontier | None:
        """One producer's entry, if the frontier has it."""
        index = self._find_journal(journal, binding)
        if index is None:
            return None
        start, stop = int(self.producer_starts[index]), int(self.producer_starts[index + 1])
        sought = np.uint64(int.from_bytes(producer.raw, "big") << 16)
        row = start + int(np.searchsorted(self.producer_bytes[start:stop], sought))
        return self.entry_at(row) if row < stop and self.producer_bytes[row] == sought else None

    def _find_journal(self, journal: str, binding: int) -> int | None:
        def key(index: int) -> tuple[str, int]:
            return self.journal_names[index].as_py(), int(self.bindings[index])

        index = bisect.bisect_left(range(self.journal_count), (journal, binding), key=key)
        found = index < self.journal_count and key(index) == (journal, binding)
        return index if found else None

    def keep_entries(self, keep: BoolArray) -> Frontier:
        """Only these entries, and only the journals that still have any."""
        kept_before = np.zeros(self.entry_count + 1, np.int64)
        np.cumsum(keep, out=kept_before[1:])
        starts = kept_before[self.producer_starts]
        filled = np.diff(starts) > 0
        return self._select(filled, keep, np.append(starts[:-1][filled], starts[-1:]))

    def keep_journals(self, keep: BoolArray) -> Frontier:
        """Only these journals, with all their entries."""
        counts = self.producer_counts
        starts = np.zeros(int(np.count_nonzero(keep)) + 1, np.int64)
        np.cumsum(counts[keep], out=starts[1:])
        return self._select(keep, np.repeat(keep, counts), starts)

    def _select(self, journals: BoolArray, entries: BoolArray, starts: Int64Array) -> Frontier:
        return Frontier(
            journal_names=self.journal_names.filter(pa.array(journals)),
            bindings=self.bindings[journals],
            bytes_read_delta=self.bytes_read_delta[journals],
            bytes_behind_delta=self.bytes_behind_delta[journals],
            producer_starts=starts,
            producers=self.producers[entries],
            last_commits=self.last_commits[entries],
            hinted_commits=self.hinted_commits[entries],
            offsets=self.offsets[entries],
            flushed_lsn=self.flushed_lsn,
            backfill_begin=self.backfill_begin,
            backfill_complete=self.backfill_complete,
            gap_floor=self.gap_floor,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frontier):
            return NotImplemented
        return (
            self.journal_names.equals(other.journal_names)
            and all(
                np.array_equal(getattr(self, name), getattr(other, name)) for name in ARRAY_TYPES
            )
            and all(getattr(self, name) == getattr(other, name) for name in CLOCK_MAPS)
        )

    __hash__ = None  # type: ignore[assignment] # equal by content, and content is large

    def __repr__(self) -> str:
        return (
            f"Frontier(journals={self.journal_count}, entries={self.entry_count}, "
            f"unresolved_hints={self.unresolved_hints})"
        )

    def __reduce__(self) -> tuple[type[Frontier], tuple[object, ...]]:
        # Through the constructor, because pickled arrays come back writeable.
        columns = [getattr(self, name) for name in ("journal_names", *ARRAY_TYPES)]
        maps = [dict(getattr(self, name)) for name in CLOCK_MAPS]
        return Frontier, (*columns, *maps)


def _column(name: str, values: Iterable[int], dtype: type[_Integer]) -> npt.NDArray[_Integer]:
    try:
        return np.array(list(values), dtype)
    except OverflowError as error:
        raise FrontierColumnError(name, str(error)) from None
