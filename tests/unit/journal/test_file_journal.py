"""A journal on disk is a list of rows: it grows at its end, and shrinks at its front."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.ids import CLOCK_FLOOR, Kind, Producer
from penstock.journal import Collection
from penstock.journal.errors import CorruptJournalError, OffsetDroppedError, UnknownJournalError
from penstock.journal.file import journal as journal_module
from penstock.journal.file.segment import list_segments
from penstock.journal.frames import KIND_ACK, Payload
from penstock.journal.store import Probe
from penstock.sequence import sequence_rows
from tests.unit.journal.journal_files import (
    JOURNAL,
    NUMBERS,
    Writer,
    append,
    fast_folder,
    ids_of,
    journal_folder,
    open_numbers,
    rows_of,
    segments,
    text_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal import OpenStore

on_disk = settings(max_examples=40, suppress_health_check=list(HealthCheck))
PRODUCERS = [Producer.from_hex(f"0{n}0000000000") for n in (1, 3, 5)]

# One append: who, what, how many rows (0 stands for an ACK)
appends = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["sync", "later", "reopen"]), st.integers(0, 9)),
    max_size=14,
)


@on_disk
@given(appends, st.integers(1, 4_000), st.integers(1, 4_000), st.data())
def test_a_journal_is_a_list(
    steps: list[tuple[int, str, int]], size: int, other_size: int, data: st.DataObject
) -> None:
    """Random appends of several producers, with any segment size, also changed on the way."""
    with fast_folder() as folder:
        store = open_numbers(folder, segment_bytes_max=size)
        writers = [Writer(producer) for producer in PRODUCERS]
        model: list[tuple[Any, ...]] = []
        hints: dict[int, tuple[str, ...]] = {}
        next_id = 0
        for number, then, count in steps:
            writer = writers[number]
            offset = len(model)
            if count:
                ids = range(next_id, next_id + count)
                next_id += count
                first = writer.clock
                payloads = writer.documents(ids)
                model += [
                    (offset + n, writer.producer.int64, first + 160 * (n + 1), row, text_of(row))
                    for n, row in enumerate(ids)
                ]
            else:
                hints[offset] = (f"other/{offset}",)
                payloads = [writer.ack(hints=hints[offset])]
                model.append((offset, writer.producer.int64, writer.clock, None, None))
            appended = store.append(JOURNAL, payloads, None)
            assert (appended.begin, appended.end) == (offset, len(model))
            if then == "sync":
                store.sync(JOURNAL, appended.end)
                assert store.probe(JOURNAL) == Probe(0, len(model))
            if then == "reopen":
                store.close()
                store = open_numbers(folder, segment_bytes_max=other_size)
        if not model:
            with pytest.raises(UnknownJournalError):
                store.probe(JOURNAL)
            return
        store.sync(JOURNAL, len(model))
        assert rows_of(store) == model
        begin = data.draw(st.integers(0, len(model)))
        stop = data.draw(st.none() | st.integers(0, len(model) + 3))
        assert rows_of(store, begin, stop) == model[begin:stop]
        columns = data.draw(st.permutations(["id", "text"]).map(lambda names: names[:1]))
        check_columns(store, model, hints, (begin, stop), columns)
        check_columns(store, model, hints, (begin, stop), [])
        check_ranges(store, model)
        store.close()


def check_columns(
    store: OpenStore,
    model: list[tuple[Any, ...]],
    hints: dict[int, tuple[str, ...]],
    within: tuple[int, int | None],
    columns: list[str],
) -> None:
    begin, stop = within
    found: list[Any] = []
    found_hints: dict[int, tuple[str, ...]] = {}
    for batch in store.read(JOURNAL, begin, stop, columns):
        assert batch.documents.schema.names == columns
        assert batch.documents.num_rows == batch.rows
        for name in columns:
            found += batch.documents.column(name).to_pylist()
        found_hints |= {int(batch.offsets[row]): told for row, told in batch.hints.items()}
    place = {"id": 3, "text": 4}
    assert found == [row[place[name]] for name in columns for row in model[begin:stop]]
    end = len(model) if stop is None else stop
    assert found_hints == {at: told for at, told in hints.items() if begin <= at < end}


def check_ranges(store: OpenStore, model: list[tuple[Any, ...]]) -> None:
    ranges = store.ranges(JOURNAL, 0, len(model))
    assert [part.begin for part in ranges] == [0, *(part.end for part in ranges)][:-1]
    assert ranges[-1].end == len(model)
    for part in ranges:
        assert rows_of(store, part.begin, part.end) == model[part.begin : part.end]
        assert store.states(JOURNAL, part.begin)[0] == part.begin


def test_segments_roll_and_are_named_by_their_first_offset(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1_500)
    writer = Writer()
    firsts = {append(store, writer.documents(range(n * 3, n * 3 + 3))) for n in range(30)}
    names = [int(path.stem) for path in segments(tmp_path)]
    assert len(names) > 5
    assert names[0] == 0
    assert set(names) <= firsts
    assert ids_of(store) == list(range(90))


def test_a_limit_below_the_header_still_keeps_every_row(tmp_path: Path) -> None:
    """Each append then has a segment of its own, and the first, empty one is not thrown away."""
    store = open_numbers(tmp_path, segment_bytes_max=1)
    writer = Writer()
    for number in range(5):
        append(store, writer.documents([number]))
    assert ids_of(store) == [0, 1, 2, 3, 4]
    assert [int(path.stem) for path in segments(tmp_path)] == [0, 1, 2, 3, 4]
    assert ids_of(open_numbers(tmp_path)) == [0, 1, 2, 3, 4]


def test_an_append_of_many_frames_is_one_append(tmp_path: Path) -> None:
    """More buffers than one gathered write takes."""
    store = open_numbers(tmp_path)
    writer = Writer()
    payloads: list[Payload] = []
    for number in range(1_500):
        payloads += writer.documents([number])
    appended = store.append(JOURNAL, payloads, None)
    assert (appended.begin, appended.end) == (0, 1_500)
    store.sync(JOURNAL, appended.end)
    assert ids_of(store) == list(range(1_500))


def test_large_frames_between_small_ones(tmp_path: Path) -> None:
    """Small frames are read in groups, large ones by themselves: all in one order."""
    store = open_numbers(tmp_path)
    writer = Writer()
    expected = 0
    for count in (1, 20_000, 2, 3, 9_000, 9_000, 1, 1, 40_000, 5):
        append(store, writer.documents(range(expected, expected + count)))
        expected += count
    assert ids_of(store) == list(range(expected))
    assert ids_of(store, 20_001, 20_005) == [20_001, 20_002, 20_003, 20_004]


def test_a_journal_is_made_by_its_first_append(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    assert store.journals("numbers") == []
    for use in (store.probe, lambda name: list(store.read(name, 0)), lambda n: store.sync(n, 0)):
        with pytest.raises(UnknownJournalError, match="there is no journal 'numbers/000'"):
            use(JOURNAL)
    append(store, Writer().documents([1]))
    (journal,) = store.journals("numbers")
    assert (journal.name, journal.collection, journal.labels) == (JOURNAL, "numbers", {})


@pytest.mark.parametrize("by", ["who syncs", "who opens"])
def test_readers_never_see_what_is_not_synced(tmp_path: Path, by: str) -> None:
    store, other = open_numbers(tmp_path), open_numbers(tmp_path)
    writer = Writer()
    append(store, writer.documents([0]))
    assert ids_of(other) == [0]
    unsynced = store.append(JOURNAL, writer.documents([1, 2]), None)
    for reader in (store, other):
        assert reader.probe(JOURNAL) == Probe(0, 1)
        assert ids_of(reader) == ids_of(reader, 0, 99) == [0]
        assert reader.wait(JOURNAL, 1, 0.0) == 1
    if by == "who syncs":
        other.sync(JOURNAL, unsynced.end)
    late = open_numbers(tmp_path)
    if by == "who opens":  # it may be after a power cut, and the rows acknowledged: see repair.py
        assert late.probe(JOURNAL) == Probe(0, 3)
    for reader in (store, other, late):
        assert ids_of(reader) == [0, 1, 2]
        assert reader.wait(JOURNAL, 1, 0.0) == 3


# Retention and suspension


def test_rows_are_dropped_by_whole_segments(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1)
    writer = Writer()
    for number in range(6):
        append(store, writer.documents([number * 2, number * 2 + 1]))
    assert store.drop_before(JOURNAL, 5) == 4
    assert store.drop_before(JOURNAL, 3) == 4
    assert store.probe(JOURNAL) == Probe(4, 12)
    assert ids_of(store, 4) == list(range(4, 12))
    with pytest.raises(OffsetDroppedError) as caught:
        ids_of(store, 3)
    assert (caught.value.journal, caught.value.asked, caught.value.first_kept) == (JOURNAL, 3, 4)
    assert "offset 3 was asked for" in str(caught.value)
    assert "start at 4 or later" in str(caught.value)
    with pytest.raises(OffsetDroppedError):
        store.states(JOURNAL, 3)
    assert store.drop_before(JOURNAL, 10**9) == 10
    assert ids_of(store, 10) == [10, 11]
    append(store, writer.documents([12]))
    assert ids_of(open_numbers(tmp_path), 10) == [10, 11, 12]


def test_a_reader_that_retention_overtakes_is_told(tmp_path: Path) -> None:
    """The rows it still has open it may read; the next it must not skip in silence."""
    store = open_numbers(tmp_path, segment_bytes_max=1)
    writer = Writer()
    for number in range(6):
        append(store, writer.documents([number]))
    reading = store.read(JOURNAL, 0)
    assert next(reading).offsets[0] == 0
    store.drop_before(JOURNAL, 4)
    with pytest.raises(OffsetDroppedError) as caught:
        next(reading)
    assert caught.value.first_kept == 4


def test_retention_between_looking_and_reading_loses_no_row_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = (open_numbers(tmp_path, segment_bytes_max=1) for _ in range(2))
    writer = Writer()
    for number in range(6):
        append(store, writer.documents([number]))
    listing = list_segments

    def list_after_a_drop(folder: Path) -> list[int]:
        monkeypatch.setattr(journal_module, "list_segments", listing)
        other.drop_before(JOURNAL, 3)
        return listing(folder)

    monkeypatch.setattr(journal_module, "list_segments", list_after_a_drop)
    with pytest.raises(OffsetDroppedError, match="start at 3"):
        ids_of(store, 0)


@pytest.mark.parametrize("limit", [{"retention_bytes": 2_500}, {"retention_seconds": 3_600}])
def test_old_segments_are_dropped_when_a_segment_is_rolled(
    tmp_path: Path, limit: dict[str, int]
) -> None:
    collection = Collection.define("numbers", NUMBERS.schema, "id", **limit)  # type: ignore[arg-type]
    store = open_numbers(tmp_path, segment_bytes_max=1, collection=collection)
    writer = Writer()
    for number in range(10):
        append(store, writer.documents([number]))
        if "retention_seconds" in limit and number == 5:
            for path in segments(tmp_path):
                os.utime(path, (0, time.time() - 3_601))
    probe = store.probe(JOURNAL)
    assert probe.write_head == 10
    if "retention_seconds" in limit:
        assert probe.first_kept == 6
    else:
        sizes = [path.stat().st_size for path in segments(tmp_path)]
        assert 0 < probe.first_kept < 9
        assert sum(sizes[:-1]) <= 2_500 < sum(sizes) + sizes[0]
    assert ids_of(store, probe.first_kept) == list(range(probe.first_kept, 10))
    assert int(segments(tmp_path)[0].stem) == probe.first_kept


def test_suspension_keeps_nothing_but_the_place(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    writer = Writer()
    append(store, [*writer.documents([1, 2]), *writer.documents([3], Kind.CONTINUE)])
    states = {writer.producer.int64: (writer.clock - 160, writer.clock)}
    store.suspend(JOURNAL)
    assert store.probe(JOURNAL) == Probe(3, 3, suspended=True)
    assert ids_of(store, 3) == []
    with pytest.raises(OffsetDroppedError, match="dropped everything below 3"):
        ids_of(store, 2)
    store.suspend(JOURNAL)
    store.close()
    store = open_numbers(tmp_path)
    assert store.probe(JOURNAL) == Probe(3, 3, suspended=True)
    at, known = store.states(JOURNAL, 3)
    assert at == 3
    assert {p: (s.last_commit, s.max_continue) for p, s in known.items()} == states
    assert append(store, [writer.ack()]) == 3
    assert store.probe(JOURNAL) == Probe(3, 4)
    assert append(store, writer.documents([5])) == 4
    assert ids_of(store, 3) == [None, 5]


def test_a_journal_without_rows_can_be_suspended(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1)
    append(store, Writer().documents([1]))
    store.suspend(JOURNAL)
    store.suspend(JOURNAL)
    assert append(store, Writer().documents([2])) == 1
    assert append(store, Writer().documents([3])) == 2
    assert ids_of(store, 1) == [2, 3]


# The states that segments begin with


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Steps of three producers that keep to the protocol, repeated and rolled back ones too."""
    steps: list[tuple[int, str]] = []
    is_open = [False] * 3
    for _ in range(draw(st.integers(1, 30))):
        who = draw(st.integers(0, 2))
        choices = ["continue", "commit", "rollback", "repeat"] if is_open[who] else [
            "outside", "continue", "repeat", "empty",
        ]  # fmt: skip
        what = draw(st.sampled_from(choices))
        is_open[who] = what == "continue" or (is_open[who] and what == "repeat")
        steps.append((who, what))
    return steps


@on_disk
@given(histories(), st.integers(1, 3_000))
def test_the_states_of_each_segment_are_those_of_sequencing_from_the_start(
    steps: list[tuple[int, str]], size: int
) -> None:
    with fast_folder() as folder:
        store = open_numbers(folder, segment_bytes_max=size)
        writers = [Writer(producer) for producer in PRODUCERS]
        commits = [CLOCK_FLOOR] * 3
        last: list[list[Payload]] = [[], [], []]
        for number, (who, what) in enumerate(steps):
            writer = writers[who]
            payloads = last[who]
            if what in ("outside", "continue"):
                kind = Kind.OUTSIDE if what == "outside" else Kind.CONTINUE
                payloads = writer.documents([number, number], kind)
            elif what == "rollback":
                payloads = [writer.ack(commits[who])]
            elif what in ("commit", "empty"):
                payloads = [writer.ack()]
            if what in ("outside", "commit", "empty"):
                commits[who] = writer.clock
            # An ACK that is repeated while a newer span is open would roll that back: legal, and
            # so would be a document outside of it, which is not.
            if payloads and not (what == "repeat" and payloads[0].kind == KIND_ACK):
                append(store, payloads)
                last[who] = payloads
        check_states(store)


def check_states(store: OpenStore) -> None:
    try:
        batches = list(store.read(JOURNAL, 0, columns=[]))
    except UnknownJournalError:
        return
    offsets = np.concatenate([batch.offsets for batch in batches])
    producers = np.concatenate([batch.producers for batch in batches])
    clocks = np.concatenate([batch.clocks for batch in batches])
    flags = np.concatenate([batch.flags for batch in batches])
    end = store.probe(JOURNAL).write_head
    for part in store.ranges(JOURNAL, 0, end):
        at, states = store.states(JOURNAL, part.begin)
        assert at == part.begin
        ends = offsets[:at] + 1
        expected = sequence_rows(offsets[:at], ends, producers[:at], clocks[:at], flags[:at], {})
        assert expected.fault is None
        departed = {
            producer: state
            for _, states_ in [*store.departures(JOURNAL, at)][::-1]
            for producer, state in states_.items()
        }
        assert departed | states == expected.states
        assert all(state.last_commit == CLOCK_FLOOR for state in departed.values())
        assert store.states(JOURNAL, part.end - 1) == (at, states)


def test_a_fault_of_the_protocol_does_not_stop_the_writers(tmp_path: Path) -> None:
    """It is the readers who are told, from the segment on in which it is."""
    store = open_numbers(tmp_path, segment_bytes_max=1)
    writer = Writer()
    append(store, writer.documents([1], Kind.CONTINUE))
    append(store, writer.documents([2], Kind.OUTSIDE))
    append(store, Writer().documents([3]))
    append(store, Writer().documents([4]))
    assert ids_of(store) == [1, 2, 3, 4]
    assert store.states(JOURNAL, 1)[0] == 1
    with pytest.raises(CorruptJournalError, match="while a transaction of it is open"):
        store.states(JOURNAL, 2)


def test_names_that_do_not_fit_a_folder_are_refused_before_anything_is_touched(
    tmp_path: Path,
) -> None:
    store = open_numbers(tmp_path)
    wide = Collection.define("wide", "id BIGINT, a STRING, b STRING", "id", ("a", "b"))
    store.create(wide)
    row = {"id": 1, "a": "x" * 150, "b": "y" * 150}
    with store.producer() as producer:
        with pytest.raises(ConfigurationError, match="is too long for this store"):
            producer.append("wide", row)
        with producer.transaction() as transaction:
            transaction.append("numbers", {"id": 1})
            with pytest.raises(ConfigurationError, match="is too long for this store"):
                transaction.append("wide", row)
    assert ids_of(store) == [1, None]
    assert store.journals("wide") == []


def test_the_files_are_where_the_format_says(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([1]))
    assert {path.name for path in journal_folder(tmp_path).iterdir()} == {
        "head", "sync.lock", "00000000000000000000.segment",
    }  # fmt: skip
    assert pa.py_buffer(segments(tmp_path)[0].read_bytes()[:8]).to_pybytes() == b"PENSTOCK"
