"""What can be read from a store of journals, whatever holds the bytes: one half of what a store is.

`file://` is the first form. Nothing here speaks of files: journals are lists of rows addressed by
offset, they only grow at the end and shrink at the front, and their number grows. A log broker's
topics fit the same words. The other half, writing, is writable.py; a store may lack it.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock.journal.errors import UnknownJournalError
from penstock.journal.names import EVERYTHING, Selector
from penstock.journal.progress import frontier_of
from penstock.sequence import ProducerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from penstock.frontier import Frontier
    from penstock.journal.collection import Collection
    from penstock.journal.cut import AsOf, JournalCut
    from penstock.journal.transaction_log import TransactionLog

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Clocks: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

States = dict[int, ProducerState]
"""Producer (as int64) to where sequencing stands for it."""


@dataclass(frozen=True, slots=True)
class Journal:
    """One physical partition of a collection."""

    name: str
    collection: str
    labels: dict[str, str]
    identity: str = ""
    """Made once, with the journal, and never again: one that is deleted and made anew under the
    same name has another, and one that was out of reach for a while has the same. What a log broker
    calls the id of a topic. Empty where a store has none: there a name is all there is."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a journal holds just now: rows at offsets `first_kept` up to, not with, `write_head`."""

    first_kept: int
    write_head: int
    suspended: bool = False
    identity: str = field(default="", compare=False)
    """Which journal that is, as in `Journal`. Probes are equal if what is held is."""
    begin: int | None = field(default=None, compare=False)
    """Where the user asked to begin, if that is known: rows below are nobody's loss."""

    def lost_from(self, offset: int) -> int:
        """Where the rows begin that retention took from a reader that had come to `offset`. They
        end at `first_kept`; at or above it, there are none."""
        if self.begin is None:
            return offset or self.first_kept  # who begins takes what is there
        return max(offset, self.begin)


@dataclass(frozen=True, slots=True)
class Range:
    """Rows [begin, end) of a journal that can be read and sequenced apart from the others,
    because the store knows the states at `begin`."""

    journal: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Rows of a journal, one behind another, as they were written.

    `documents` has a row for each, all null where the row is an acknowledgement; `hints` gives
    the acknowledgements' hints by row. A batch without rows says only that none come before
    `next_offset`, which lies beyond where the reader stood.
    """

    journal: str
    offsets: Int64s
    """The log's own numbers: they ascend, with any gaps between them."""
    ends: Int64s
    """The least offset that a row behind each one can have. Nobody else adds to an offset."""
    next_offset: int
    """Where a reader goes on: at the last row's end, or beyond it where the log holds no row."""
    producers: Int64s
    clocks: Clocks
    """Identity: with the producer, what sequencing and frontiers compare."""
    times: Clocks
    """What the shuffle orders rows by, in units of a clock. The very array `clocks`, unless the
    store `is_timed`."""
    flags: np.ndarray[Any, np.dtype[np.uint16]]
    documents: pa.RecordBatch
    hints: Mapping[int, tuple[str, ...]]
    epochs: Mapping[int, int] = field(default_factory=dict)
    """The producer epochs of transaction markers by row, where a transaction log and not the
    acknowledgements say which journals belong together."""
    behind_lost: frozenset[int] = frozenset()
    """Rows right before which the journal has lost others, and perhaps transaction markers."""
    probe: Probe | None = None
    """What the journal held when these rows were read, where that comes with the rows: whoever
    wants to know does not ask again."""

    @classmethod
    def numbered(  # noqa: PLR0917 - a column each
        cls,
        journal: str,
        first_offset: int,
        producers: Int64s,
        clocks: Clocks,
        flags: np.ndarray[Any, np.dtype[np.uint16]],
        documents: pa.RecordBatch,
        hints: Mapping[int, tuple[str, ...]],
    ) -> JournalBatch:
        """Rows of a journal that numbers them without gaps, and whose clocks are times."""
        end = first_offset + len(clocks)
        numbers = np.arange(first_offset, end + 1, dtype=np.int64)
        return cls(
            journal,
            numbers[:-1],
            numbers[1:],
            end,
            producers,
            clocks,
            clocks,
            flags,
            documents,
            hints,
        )

    @property
    def rows(self) -> int:
        return len(self.clocks)

    def within(self, begin: int, end: int) -> JournalBatch:
        """The rows whose offsets are in [begin, end)."""
        first, last = np.searchsorted(self.offsets, (begin, end)).tolist()
        return self if last - first == self.rows else self.part(first, last)

    def part(self, begin: int, end: int, *, copied: bool = False) -> JournalBatch:
        """Rows [begin, end) of the batch, by their numbers in it. With `copied` they do not hold
        the memory of the others."""
        rows: Any = np.arange(begin, end) if copied else slice(begin, end)
        clocks = self.clocks[rows]
        return replace(
            self,
            offsets=self.offsets[rows],
            ends=self.ends[rows],
            next_offset=self.next_offset if end >= self.rows else int(self.offsets[end]),
            producers=self.producers[rows],
            clocks=clocks,
            times=clocks if self.times is self.clocks else self.times[rows],
            flags=self.flags[rows],
            documents=(
                self.documents.take(rows) if copied else self.documents.slice(begin, end - begin)
            ),
            hints={row - begin: hints for row, hints in self.hints.items() if begin <= row < end},
            epochs={row - begin: one for row, one in self.epochs.items() if begin <= row < end},
            behind_lost=frozenset(row - begin for row in self.behind_lost if begin <= row < end),
        )


@dataclass(frozen=True, slots=True)
class Silence:
    """Somebody waits for a store's answer."""

    begun: float
    """By the process's own clock: who waits on has the same."""
    reason: str


@dataclass(frozen=True, slots=True)
class NextRows:
    """What comes next in a journal."""

    batch: JournalBatch | None
    """None: nothing yet."""
    probe: Probe


class ReadableStore(abc.ABC):
    """Collections and their journals, as readers see them. Nothing here is changed by reading."""

    url: str
    is_timed: bool = False
    """Rows have times apart from their clocks: identity is no time here."""

    @property
    def address(self) -> str:
        """By which another process of ours opens the same store. Unlike `url` it may hold secrets:
        it goes to members and tasks, and nobody shows or keeps it."""
        return self.url

    own_key: str = ""
    """The column that is a row's key in the log itself, if it has such: null is no key there."""
    fails_on_loss: bool = False
    """A reader fails if rows are gone that it had not read. Else it logs that, and goes on."""
    by_offset: bool = False
    """A row's identity is its offset (`offset_identity.py`): reads tell how far they have come."""
    reads_together: bool = False
    """`read_together` costs less than to read one journal after another."""

    def is_own_key(self, key: Sequence[str]) -> bool:
        """Whether null in such a key is no key, and its rows belong to nobody."""
        return tuple(key) == (self.own_key,)

    def holding(self, name: str) -> ReadableStore:  # noqa: ARG002
        """The store that has this collection, or this journal, and to which all of the above
        applies: itself, unless it is several as one."""
        return self

    # Collections

    @abc.abstractmethod
    def collection(self, name: str) -> Collection: ...

    @abc.abstractmethod
    def collections(self) -> list[str]: ...

    # Journals

    @abc.abstractmethod
    def journals(self, collection: str, selector: Selector = EVERYTHING) -> list[Journal]:
        """The collection's journals that the selector accepts, by name."""

    @abc.abstractmethod
    def probes(self, journals: Iterable[str]) -> dict[str, Probe]:
        """What each of these journals holds, in one call. Those that are not there are left out."""

    def probe(self, journal: str) -> Probe:
        """What one journal holds. UnknownJournalError if it is not there."""
        found = self.probes([journal])
        if journal not in found:
            raise UnknownJournalError(journal)
        return found[journal]

    @abc.abstractmethod
    def read(
        self,
        journal: str,
        begin: int,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        fetch_bytes: int | None = None,
    ) -> Iterator[JournalBatch]:
        """The rows with offsets in [begin, end) in order, up to the write head of now. Both may
        lie between rows. OffsetDroppedError if `begin` is below the first kept offset.

        Whoever takes about `fetch_bytes` of documents at a time says so: a store that gets rows
        over a network does not ask for many more, which it would decode in vain."""

    def read_together(
        self,
        wanted: Mapping[str, tuple[int, int]],  # noqa: ARG002
    ) -> dict[str, NextRows]:
        """The next rows of many journals at once: of each from an offset on, about so many bytes
        of documents, in memory of their own. Journals that have more to tell than rows are left
        out: `read` tells it."""
        return {}

    @abc.abstractmethod
    def wait(self, journal: str, beyond: int, timeout_s: float) -> int:
        """Waits until the write head is above `beyond`, or time is up; gives the write head."""

    @abc.abstractmethod
    def ranges(self, journal: str, begin: int, end: int) -> list[Range]:
        """[begin, end) cut where the store knows the sequencing states."""

    @abc.abstractmethod
    def states(self, journal: str, at: int) -> tuple[int, States]:
        """The closest offset at or below `at` with known states, and the states there of all
        producers that have rows behind it or an open span before it. The caller may change them."""

    def departures(
        self,
        journal: str,  # noqa: ARG002
        at: int,  # noqa: ARG002
    ) -> Iterator[tuple[int, Mapping[int, ProducerState]]]:
        """Of the producers that will never write to the journal again, those that `states` has no
        more: from which offset on, and where they ended. From the closest offset at or below `at`
        down, as far as the producers' rows are kept."""
        yield from ()

    def silence(self) -> Silence | None:
        """What this store has been asked for, and has not answered yet. By any thread."""
        return None

    # Transactions

    @abc.abstractmethod
    def cut(
        self,
        journals: Sequence[str] | Callable[[], Sequence[str]],
        as_of: AsOf = None,
        binding: int = 0,
    ) -> list[JournalCut]:
        """A cut of these journals in which every transaction is whole, while writers go on. Take
        one for all journals that are to be seen together; `binding` tells a frontier's entries.

        Give who lists the journals, because a transaction may make one just now: those that vanish
        meanwhile are left out. Of journals that are given by name, all have to be there.
        """

    def frontier_of(self, cuts: Sequence[JournalCut], binding: int = 0) -> Frontier:
        """The frontier at which exactly the documents of the cut are visible."""
        return frontier_of(self, cuts, binding)

    def frontier(self, *collections: str, as_of: AsOf = None) -> Frontier:
        """How far these collections have come together: no transaction is seen in part. Read each
        of them `as_of` this frontier to see them at one and the same point."""

        def journals() -> list[str]:
            return [
                journal.name for collection in collections for journal in self.journals(collection)
            ]

        return self.frontier_of(self.cut(journals, as_of))

    def transaction_log(
        self,
        begins: Mapping[int, int] | None = None,  # noqa: ARG002
    ) -> TransactionLog | None:
        """A new reader of the log that says which commits belong together, where acknowledgements
        do not name each other's journals. None: they do. With `begins` it goes on at these places
        of the log's partitions, and tells if the log lacks anything from there on; partitions that
        are not named are new."""
        return None

    def open_transactions(self) -> Mapping[str, int]:
        """How many transactions are in flight in each journal, as far as the store knows."""
        return {}

    def recover_if_possible(self) -> None:
        """Before a read: where readers can help to end what dead producers left, they do, so that
        it is seen. Nothing waits for it, and nothing is wrong if it cannot be done."""
        return

    @abc.abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
