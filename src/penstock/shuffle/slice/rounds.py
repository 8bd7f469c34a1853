"""A round: the rows that were chosen of many reads are sequenced together, and what is to be sent,
forgotten and told comes out of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.journal.markers import markers_in
from penstock.sequence import Discards, Outcome, Place, Sequenced, sequence_batch
from penstock.shuffle.parcels import ROLLBACK_SCHEMA, Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock.journal.transaction_log import Marker
    from penstock.sequence import ProducerState
    from penstock.shuffle.slice.events import HintIndex
    from penstock.shuffle.slice.reads import Forgotten, Int64s, Keys, Piece, Read

Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
HintKey: TypeAlias = tuple[str, int, int]
"""Journal, binding, producer."""

_PRODUCER_BITS: Final = ~0xFFFF
"""A producer's two low bytes are zero. Within a round they hold which of its reads a row is of."""
ROUND_READS_MAX: Final = 0x1_0000
"""So many reads two bytes tell apart."""
COMMITS_REMEMBERED_MAX: Final = 64
"""Commits whose acknowledgements are being read at about the same time. Each has the names of up to
a thousand journals."""
_COMMITTING: Final = (Outcome.ACK_COMMIT, Outcome.ACK_EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The rows of all pieces of a round, one piece after another. Pieces of one binding and schema
    stand together, by their first keys; so those of one read are in order."""

    pieces: tuple[Piece, ...]
    starts: Int64s
    """Of each piece, and the end of the last."""
    reads: tuple[Read, ...]
    offsets: Int64s
    ends: Int64s
    producers: Int64s
    """Told apart by read: see `_PRODUCER_BITS`."""
    clocks: Keys
    times: Keys
    """The clocks themselves, unless a binding of the round is timed."""
    flags: np.ndarray[Any, np.dtype[np.uint16]]
    keys: Keys

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Columns:
        chosen = sorted(
            pieces,
            key=lambda p: (p.read.binding.place, p.batch.version, p.batch.keys[p.begin]),
        )
        starts = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum([piece.rows for piece in chosen], out=starts[1:])
        numbers = {read: number for number, read in enumerate({p.read: None for p in chosen})}
        if len(numbers) > ROUND_READS_MAX:
            raise LocalProtocolError(f"a round of {len(numbers):,} reads cannot tell them apart")

        def column(name: str) -> np.ndarray[Any, Any]:
            parts = [getattr(p.batch, name)[p.begin : p.end] for p in chosen]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        producers = column("producers")
        if len(numbers) > 1:
            producers = producers | np.repeat([numbers[p.read] for p in chosen], np.diff(starts))
        clocks = column("clocks")
        is_timed = any(p.batch.times is not p.batch.clocks for p in chosen)
        return cls(
            tuple(chosen),
            starts,
            tuple(numbers),
            column("offsets"),
            column("ends"),
            producers,
            clocks,
            column("times") if is_timed else clocks,
            column("flags"),
            column("keys"),
        )

    def producers_of(self, rows: slice) -> Int64s:
        return (
            self.producers[rows] & _PRODUCER_BITS if len(self.reads) > 1 else self.producers[rows]
        )

    def piece_of(self, row: int) -> Piece:
        return self.pieces[int(np.searchsorted(self.starts, row, side="right")) - 1]


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    columns: Columns
    sequenced: Sequenced
    keep: Bools
    """The rows to send."""
    rollbacks: tuple[tuple[Stage, pa.RecordBatch], ...]
    """To be sent before the rows: those of the round that they discard are not kept."""

    @property
    def has_closes(self) -> bool:
        return bool(len(self.sequenced.closes))

    def changes(self) -> Iterator[tuple[Read, dict[int, ProducerState]]]:
        """The producers of each read that stand elsewhere after the round."""
        reads = self.columns.reads
        changed: list[dict[int, ProducerState]] = [{} for _ in reads]
        alone = len(reads) == 1
        for mixed, state in self.sequenced.changed.items():
            number = 0 if alone else mixed & ~_PRODUCER_BITS
            producer = mixed & _PRODUCER_BITS
            before = reads[number].states.get(producer)
            if state is not before and state != before:
                changed[number][producer] = state
        return zip(reads, changed, strict=True)

    def hints(self, index: HintIndex, named: NamedJournals) -> Iterator[tuple[HintKey, int]]:
        """Which journals are said to hold a commit, and its clock. What another acknowledgement of
        the same commit has named is not named again."""
        outcomes, columns = self.sequenced.outcomes, self.columns
        for piece, start in zip(columns.pieces, columns.starts.tolist(), strict=False):
            if not piece.batch.hints and not piece.read.siblings:
                continue
            rows = piece.begin + np.flatnonzero(
                np.isin(outcomes[start : start + piece.rows], _COMMITTING)
            )
            producers = piece.batch.producers[rows].tolist()
            clocks = piece.batch.clocks[rows].tolist()
            binding = piece.read.binding
            for row, producer, clock in zip(rows.tolist(), producers, clocks, strict=True):
                for sibling in piece.read.siblings:
                    yield (piece.read.journal, sibling, producer), clock
                hints = piece.batch.hints.get(row, ())
                commit = (producer, clock, binding.cohort)
                for journal in named.new(commit, hints, piece.read.journal):
                    for target in index.targets(journal, binding.cohort):
                        if (journal, target) != (piece.read.journal, binding.place):
                            yield (journal, target, producer), clock

    def markers(self) -> Iterator[Marker]:
        """The transaction markers among its rows."""
        outcomes, columns = self.sequenced.outcomes, self.columns
        for piece, start in zip(columns.pieces, columns.starts.tolist(), strict=False):
            if not piece.batch.epochs and not piece.batch.behind_lost:
                continue
            is_empty = outcomes[start : start + piece.rows] == Outcome.ACK_EMPTY
            empty = frozenset((np.flatnonzero(is_empty) + piece.begin).tolist())
            key = piece.read.known_as, piece.read.binding.place
            yield from markers_in(piece.batch, piece.begin, piece.end, key, empty)


class NamedJournals:
    """The journals that acknowledgements of the latest commits have named.

    Of a transaction over n journals each acknowledgement names the n - 1 others. They mostly name
    the same ones, and come at about the same time: without this, each would be looked up n times.
    """

    def __init__(self) -> None:
        self._commits: OrderedDict[tuple[int, int, int], set[str]] = OrderedDict()

    def new(
        self, commit: tuple[int, int, int], hints: tuple[str, ...], own: str
    ) -> Collection[str]:
        """Of the hints in the journal `own`, those that no other hint of the commit has named.
        `commit` is its producer, clock and cohort."""
        if not hints:
            return hints
        known = self._commits.get(commit)
        if known is None:
            known = self._commits[commit] = set()
            if len(self._commits) > COMMITS_REMEMBERED_MAX:
                self._commits.popitem(last=False)
        if known.issuperset(hints):
            return ()
        found = [journal for journal in hints if journal not in known]
        known.update(found)
        known.discard(own)  # a journal that names itself tells nothing; another that names it does
        return found


def make_round(pieces: Sequence[Piece]) -> Round:
    """Sequences the pieces. Raises the fault of the first row that may not follow those before."""
    columns = Columns.of(pieces)
    sequenced = sequence_batch(
        columns.offsets,
        columns.ends,
        columns.producers,
        columns.clocks,
        columns.flags,
        _states(columns.reads),
    )
    if (fault := sequenced.fault) is not None:
        place = Place(
            columns.piece_of(fault.row).read.journal, fault.offset, fault.producer & _PRODUCER_BITS
        )
        raise fault.error(fault.clock, fault.last_commit, fault.max_continue, place)
    keep = sequenced.keep
    if len(sequenced.discards.rows):
        keep = keep & ~_discarded(columns, sequenced.discards)
    keep = _in_time(columns, keep)
    return Round(columns, sequenced, keep, tuple(_rollbacks(columns, sequenced.discards)))


def _states(reads: tuple[Read, ...]) -> Mapping[int, ProducerState]:
    return reads[0].states if len(reads) == 1 else _MixedStates(reads)


class _MixedStates(Mapping[int, "ProducerState"]):
    """The states of all reads of a round, by producers that are told apart by read. They are looked
    up where they are: a round of a few rows must not walk over all producers there ever were."""

    def __init__(self, reads: tuple[Read, ...]) -> None:
        self._states = [read.states for read in reads]

    def __getitem__(self, mixed: int) -> ProducerState:
        return self._states[mixed & ~_PRODUCER_BITS][mixed & _PRODUCER_BITS]

    def __iter__(self) -> Iterator[int]:
        for number, states in enumerate(self._states):
            for producer in states:
                yield producer | number

    def __len__(self) -> int:
        return sum(map(len, self._states))


def _in_time(columns: Columns, keep: Bools) -> Bools:
    """Without the documents outside of their binding's times."""
    keep = keep.copy()
    bindings = [piece.read.binding for piece in columns.pieces]
    starts = columns.starts.tolist()
    begin = 0
    for place, binding in enumerate(bindings):
        if place + 1 < len(bindings) and bindings[place + 1] is binding:
            continue
        rows = slice(starts[begin], starts[place + 1])
        times = columns.times[rows]
        keep[rows] &= times >= np.uint64(binding.not_before)
        keep[rows] &= times < np.uint64(binding.not_after)
        begin = place + 1
    return keep


def _discarded(columns: Columns, discards: Discards) -> Bools:
    """The rows of the round that its own rollbacks discard.

    The first rollback of its producer behind a row decides. If it discards the row not, then a
    commit came before it, and no later one does.
    """
    producers, ranks = np.unique(discards.producers, return_inverse=True)
    count = len(columns.clocks) + 1
    order = np.lexsort((discards.rows, ranks))
    rollbacks = ranks[order] * count + discards.rows[order]
    rows = np.flatnonzero(np.isin(columns.producers, producers))
    own = np.searchsorted(producers, columns.producers[rows])
    nexts = np.searchsorted(rollbacks, own * count + rows)
    is_followed = nexts < len(rollbacks)
    rows, own, nexts = rows[is_followed], own[is_followed], nexts[is_followed]
    chosen = order[nexts]
    clocks = columns.clocks[rows]
    is_discarded = (
        (ranks[chosen] == own)
        & (discards.after[chosen] < clocks)
        & (clocks <= discards.through[chosen])
    )
    discarded = np.zeros(len(columns.clocks), np.bool_)
    discarded[rows[is_discarded]] = True
    return discarded


def _rollbacks(columns: Columns, discards: Discards) -> Iterator[tuple[Stage, pa.RecordBatch]]:
    """Those that discard something, by binding."""
    filled = np.flatnonzero(discards.after < discards.through)
    if not len(filled):
        return
    pieces = [columns.piece_of(row) for row in discards.rows[filled].tolist()]
    bindings = np.array([piece.read.binding.place for piece in pieces])
    numbers = np.array([piece.read.number for piece in pieces], np.uint32)
    for binding in np.unique(bindings).tolist():
        own = bindings == binding
        rows = filled[own]
        yield (
            Stage(binding, 0),
            pa.RecordBatch.from_arrays(
                [
                    pa.array(numbers[own]),
                    pa.array(discards.producers[rows] & _PRODUCER_BITS),
                    pa.array(discards.after[rows]),
                    pa.array(discards.through[rows]),
                ],
                schema=ROLLBACK_SCHEMA,
            ),
        )


def forgetting(read: Read, spans: Sequence[Forgotten]) -> pa.RecordBatch:
    """A rollback of each of these."""
    columns: list[pa.Array[Any]] = [
        pa.array([read.number] * len(spans), pa.uint32()),
        pa.array([span.producer for span in spans], pa.int64()),
        pa.array([span.after for span in spans], pa.uint64()),
        pa.array([span.through for span in spans], pa.uint64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROLLBACK_SCHEMA)
