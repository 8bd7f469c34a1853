"""Markers that are read again from a journal, and rows that Kafka has lost before them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.ids import Kind
from penstock.journal.errors import UnknownJournalError
from penstock.journal.kafka.client.fetching import Want
from penstock.journal.kafka.records.columns import ABORT, COMMIT, NO_MARKER, BatchTable, Decoded
from penstock.journal.kafka.rows import lost_before
from penstock.journal.markers import MarkersSought, markers_again
from penstock.journal.names import known_as
from penstock.journal.offset_identity import ROLLBACK_CLOCK, clock_of, transactional
from penstock.journal.store import JournalBatch, Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal.store import ReadableStore

JOURNAL = "orders/region=eu/000"
ONE, TWO = transactional(1), transactional(2)
ROW, COMMITS, ABORTS = "row", "commit", "abort"
ROWS = [(ONE, ROW), (TWO, ROW), (ONE, COMMITS), (TWO, COMMITS), (TWO, COMMITS), (TWO, ABORTS)]


class Store:
    """One journal, of which each read gives two rows at a time."""

    def probe(self, journal: str) -> Probe:
        assert journal == JOURNAL
        return Probe(0, len(ROWS), identity="a1")

    def read(self, journal: str, begin: int, end: int, columns: Any) -> Iterator[JournalBatch]:
        assert (journal, columns) == (JOURNAL, ())
        for at in range(begin, end, 2):
            yield _batch(at, min(at + 2, end))


def _batch(begin: int, end: int) -> JournalBatch:
    rows = ROWS[begin:end]
    clocks = [
        ROLLBACK_CLOCK if kind == ABORTS else clock_of(begin + place)
        for place, (_, kind) in enumerate(rows)
    ]
    kinds = [Kind.CONTINUE if kind == ROW else Kind.ACK for _, kind in rows]
    nothing: Any = pa.array([{}] * len(rows), pa.struct([]))
    found = JournalBatch.numbered(
        JOURNAL,
        begin,
        np.array([producer for producer, _ in rows], np.int64),
        np.array(clocks, np.uint64),
        np.array(kinds, np.uint16),
        pa.RecordBatch.from_struct_array(nothing),
        {},
    )
    return replace(found, epochs={at: 0 for at, (_, kind) in enumerate(rows) if kind != ROW})


STORE = cast("ReadableStore", Store())


def empty(sought: MarkersSought, known: str = JOURNAL) -> dict[int, bool]:
    """By offset, which markers there are, and which of them commit nothing."""
    return {one.offset: one.is_empty for one in markers_again(STORE, (known, 0), sought)}


def test_a_marker_behind_another_of_its_producer_commits_nothing() -> None:
    assert empty(MarkersSought(0, 0, 6, frozenset())) == {2: False, 3: False, 4: True, 5: False}


def test_who_had_rows_before_them_is_known() -> None:
    """The epoch knows who had an open transaction where markers were matched to."""
    known = MarkersSought(2, 2, 5, frozenset({ONE, TWO}))
    assert empty(known) == {2: False, 3: False, 4: True}
    assert empty(replace(known, open_producers=frozenset({TWO})))[2]


def test_markers_that_were_matched_before_are_no_repetitions() -> None:
    assert empty(MarkersSought(2, 4, 5, frozenset())) == {2: False, 3: False, 4: True}


def test_behind_a_look_the_first_marker_of_a_producer_is_no_repetition() -> None:
    assert empty(MarkersSought(2, 2, 5, None)) == {2: False, 3: False, 4: True}


def test_another_journal_of_the_name_has_other_markers() -> None:
    sought = MarkersSought(0, 0, 6, frozenset())
    assert len(empty(sought, known_as(JOURNAL, "a1"))) == 4
    with pytest.raises(UnknownJournalError):
        empty(sought, known_as(JOURNAL, "b2"))


def decoded(*batches: tuple[int, int, int]) -> Decoded:
    """Batches by their first and last offset, and what they mark; -2 for rows."""
    begins, ends, marks = (np.array(each) for each in zip(*batches, strict=True))
    zeros = np.zeros(len(batches), np.int64)
    table = BatchTable(
        *(begins, ends, zeros, zeros.astype(np.int32), zeros, zeros.astype(np.int16)),
        *(zeros.astype(np.int32), zeros > 0, zeros > 0),
        is_control=marks != -2,
        marker=np.maximum(marks, NO_MARKER).astype(np.int16),
        coordinator_epoch=zeros.astype(np.int32),
    )
    return Decoded(pa.table({}), table, int(ends[-1]) + 1)


@pytest.mark.parametrize(
    ("batches", "lost"),
    [
        ([(5, 7, -2), (8, 8, COMMIT), (9, 9, ABORT)], []),
        ([(3, 7, -2), (8, 8, COMMIT)], []),  # a batch from before the place that was asked for
        ([(6, 7, -2), (8, 8, COMMIT)], [6]),
        ([(5, 7, -2), (9, 9, COMMIT), (12, 13, -2)], [9, 12]),
        ([(5, 7, -2), (8, 8, NO_MARKER), (9, 9, -2)], [9]),  # its marker was cleaned away
    ],
)
def test_where_whole_batches_are_gone_is_known(
    batches: list[tuple[int, int, int]], lost: list[int]
) -> None:
    assert lost_before(Want(5), decoded(*batches), batches[-1][1] + 1).tolist() == lost


def test_what_was_lost_behind_all_rows_is_told_with_the_next() -> None:
    rows = decoded((5, 7, -2))
    assert lost_before(Want(5, is_behind_lost=True), rows, 8).tolist() == [5]
    assert lost_before(Want(5), replace(rows, batches=_none(rows.batches)), 9).tolist() == [9]


def _none(batches: BatchTable) -> BatchTable:
    return BatchTable(*(getattr(batches, name)[:0] for name in BatchTable.__slots__))
