"""Producers that will never write again leave segments' headers, and nobody sees a difference."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checksum import checksum
from penstock.ids import CLOCK_FLOOR, Kind, Producer
from penstock.journal import Collection
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import AppendFailedError, ProducerFencedError
from penstock.journal.file import ledger, rolling, segment_header, store
from penstock.journal.file.retention import Retention
from penstock.journal.file.segment import SegmentReader, list_segments
from penstock.journal.file.segment_header import SEGMENT_MAGIC, SegmentHeader
from penstock.journal.recovery import _settle_by_record
from penstock.sequence import StateColumns
from tests.unit.journal.journal_files import (
    JOURNAL,
    NUMBERS,
    Writer,
    append,
    fast_folder,
    ids_of,
    journal_folder,
    open_numbers,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.journal import OpenStore
    from penstock.journal.cut import AsOf

STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(("outside", "span", "commit", "rollback", "repeat", "leave")),
    ),
    min_size=4,
    max_size=40,
)
SIZES = st.sampled_from((1, 600, 1_200, 3_000))


@pytest.fixture
def no_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "HORIZON", 0)


class Twins:
    """The same rows in two stores. In one, producers that left may depart; in the other, nobody."""

    def __init__(self, folder: Path, size: int, patch: pytest.MonkeyPatch) -> None:
        self.alive: set[int] = set()
        self.ever: set[int] = set()
        patch.setattr(rolling, "HORIZON", 0)
        patch.setattr(
            store,
            "registered_producers",
            lambda root: self.alive if root.name == "departing" else self.ever,
        )
        self.stores = [
            open_numbers(folder / name, segment_bytes_max=size) for name in ("departing", "staying")
        ]

    def append(self, payloads: list[Any]) -> None:
        for each in self.stores:
            append(each, payloads)

    def agree(self, look: Callable[[OpenStore], Any]) -> Any:
        departing, staying = map(look, self.stores)
        assert departing == staying
        return departing


class Life:
    """A producer as the protocol has it: it repeats only its own last append."""

    def __init__(self, twins: Twins, clock: int) -> None:
        self._twins = twins
        self._writer = Writer(clock=clock)
        self._commit = CLOCK_FLOOR
        self._last: list[Any] = []
        self.is_open = False
        twins.alive.add(self._writer.producer.int64)
        twins.ever.add(self._writer.producer.int64)

    @property
    def clock(self) -> int:
        return self._writer.clock

    def do(self, what: str, number: int) -> None:
        payloads = self._last
        if what == "outside" and not self.is_open:
            payloads = self._writer.documents([number])
            self._commit = self.clock
        elif what == "span":
            payloads = self._writer.documents([number, number], Kind.CONTINUE)
            self.is_open = True
        elif what == "commit" and self.is_open:
            payloads = [self._writer.ack()]
            self._commit, self.is_open = self.clock, False
        elif what == "rollback" and self.is_open:
            payloads = [self._writer.ack(self._commit)]
            self.is_open = False
        elif what == "repeat" and self.is_open:
            return
        if payloads:
            self._last = payloads
            self._twins.append(payloads)

    def leave(self) -> None:
        """What it had open is rolled back, and then nobody writes as this producer any more."""
        self.do("rollback", 0)
        self._twins.alive.discard(self._writer.producer.int64)


def documents(opened: OpenStore, as_of: AsOf = None) -> list[tuple[int, Any]]:
    (cut,) = take_cut(opened, [JOURNAL], as_of)
    return [
        (offset, number)
        for part in read_documents(opened, cut)
        for offset, number in zip(
            part.offsets.tolist(), part.documents.column("id").to_pylist(), strict=True
        )
    ]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(STEPS, SIZES)
def test_documents_and_frontiers_are_those_of_a_store_that_keeps_all_states(
    steps: list[tuple[int, str]], size: int
) -> None:
    with fast_folder() as folder, pytest.MonkeyPatch.context() as patch:
        twins = Twins(folder, size, patch)
        lives = [Life(twins, 1_000_000 * place) for place in range(1, 5)]
        seen = []
        for number, (who, what) in enumerate(steps):
            if what != "leave":
                lives[who].do(what, number)
                continue
            lives[who].leave()
            lives[who] = Life(twins, max(life.clock for life in lives))
            if any(opened.journals("numbers") for opened in twins.stores):
                frontier = twins.agree(lambda opened: opened.frontier("numbers"))
                seen.append((frontier, twins.agree(documents)))
        for life in lives:
            life.leave()
        Life(twins, max(life.clock for life in lives)).do("outside", -1)
        Life(twins, max(life.clock for life in lives)).do("outside", -2)
        twins.agree(documents)
        twins.agree(lambda opened: opened.frontier("numbers"))
        for frontier, before in seen:
            assert twins.agree(lambda opened: documents(opened, frontier)) == before  # noqa: B023
            again = twins.agree(lambda opened: opened.frontier("numbers", as_of=frontier))  # noqa: B023
            assert twins.agree(lambda opened: documents(opened, again)) == before  # noqa: B023


def known(opened: OpenStore, at: int) -> set[int]:
    return set(opened.states(JOURNAL, at)[1])


@pytest.mark.usefixtures("no_horizon")
def test_headers_do_not_grow_with_producers_that_are_gone(tmp_path: Path) -> None:
    opened = open_numbers(tmp_path, segment_bytes_max=1)
    for number in range(40):
        append(opened, Writer().documents([number]))
    positions = []
    for first in range(40):
        with SegmentReader(JOURNAL, journal_folder(tmp_path), first) as reader:
            positions.append(reader.header()[1])
    assert max(positions) < positions[0] + 200
    assert len(known(opened, 40)) <= 1
    assert opened.frontier("numbers").entry_count == 40


@pytest.mark.usefixtures("no_horizon")
def test_who_has_a_ledger_or_an_open_span_stays(tmp_path: Path) -> None:
    opened = open_numbers(tmp_path, segment_bytes_max=1)
    gone, spanning = Writer(), Writer()
    with opened.producer() as owner:
        owner.append("numbers", [{"id": 1}])
        append(opened, gone.documents([2]))
        append(opened, spanning.documents([3], Kind.CONTINUE))
        append(opened, Writer().documents([4]))
        append(opened, Writer().documents([5]))
        stay = {owner.id.int64, spanning.producer.int64}
        assert stay <= known(opened, 4)
        assert gone.producer.int64 not in known(opened, 4)
    append(opened, Writer().documents([6]))
    assert owner.id.int64 in known(opened, 5)  # settled, and not forgotten yet


def test_a_producer_without_a_ledger_stays_for_a_day(tmp_path: Path) -> None:
    opened = open_numbers(tmp_path, segment_bytes_max=1)
    day = rolling.HORIZON
    old, young = Writer(clock=day), Writer(clock=day + 1_000)
    append(opened, old.documents([1]))
    append(opened, young.documents([2]))
    append(opened, Writer(clock=2 * day + 200).documents([3]))
    append(opened, Writer(clock=2 * day + 200).documents([4]))
    assert old.producer.int64 not in known(opened, 3)
    assert young.producer.int64 in known(opened, 3)


@pytest.mark.usefixtures("no_horizon")
def test_what_retention_dropped_has_no_departed_producers_any_more(tmp_path: Path) -> None:
    opened = open_numbers(tmp_path, segment_bytes_max=1)
    for number in range(6):
        append(opened, Writer().documents([number]))
    assert opened.drop_before(JOURNAL, 4) == 4
    frontier = opened.frontier("numbers")
    assert [number for _, number in documents(opened, frontier)] == [4, 5]
    assert frontier.entry_count <= 4


def late_settler(opened: OpenStore) -> tuple[Any, Any]:
    """Somebody who has read the ledger of a dead producer and is about to settle it."""
    producer = opened.producer()
    transaction = producer.transaction()
    transaction.append("numbers", [{"id": 7}])
    (found,) = opened.ledgers()
    found.retire()
    found.confirm()
    return found, found.record()


def test_who_settles_a_producer_that_is_forgotten_writes_nothing(tmp_path: Path) -> None:
    """An acknowledgement of a producer that journals know no more would be one of its own."""
    opened = open_numbers(tmp_path)
    late, record = late_settler(opened)
    opened.recover()
    head = opened.probe(JOURNAL).write_head
    _settle_by_record(opened, late, record)  # a duplicate: still known
    assert opened.probe(JOURNAL).write_head == head + 1
    for path in (tmp_path / "retired").glob("*/settled"):
        os.utime(path, (0, 0))
    opened.retire_dead()
    assert not ledger.registered_producers(tmp_path)
    with pytest.raises(ProducerFencedError):
        _settle_by_record(opened, late, record)
    assert opened.probe(JOURNAL).write_head == head + 1


def test_a_header_that_no_reader_would_accept_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_numbers(tmp_path, segment_bytes_max=1_500)
    monkeypatch.setattr(segment_header, "STATES_MAX", 12)
    kept = 0
    refused = None
    while refused is None:
        try:
            append(opened, Writer().documents([kept]))
        except AppendFailedError as error:
            refused = str(error)
        else:
            kept += 1
    assert kept >= 12
    assert refused.startswith("numbers/000: ")
    assert "fewer producers" in refused
    before = segments(tmp_path)
    with pytest.raises(AppendFailedError):
        append(opened, Writer().documents([-1]))
    assert segments(tmp_path) == before
    again = open_numbers(tmp_path, segment_bytes_max=1_500)
    assert ids_of(again) == list(range(kept))
    monkeypatch.setattr(rolling, "HORIZON", 0)  # a day later
    append(again, Writer().documents([kept]))
    assert ids_of(again) == list(range(kept + 1))


def test_a_roll_makes_states_of_the_producers_in_one_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_numbers(tmp_path, segment_bytes_max=1)
    first = Writer()
    for number in range(30):
        append(opened, Writer().documents([number]))
    made: list[int] = []
    of = StateColumns.of

    def counted(states: Any) -> StateColumns:
        rows = list(states)
        made.append(len(rows))
        return of(rows)

    monkeypatch.setattr(StateColumns, "of", counted)
    monkeypatch.setattr(StateColumns, "to_dict", None)
    append(opened, first.documents([99]))
    assert sum(made) == 1


LIMITS: list[dict[str, Any]] = [{}, {"retention_bytes": 10**9}, {"retention_seconds": 10**6}]


@pytest.mark.parametrize("limits", LIMITS)
def test_a_roll_that_drops_nothing_looks_at_the_first_segment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    collection = Collection.define("numbers", NUMBERS.schema, "id", **limits)
    opened = open_numbers(tmp_path, segment_bytes_max=1, collection=collection)
    looked: list[str] = []
    _count_looks(monkeypatch, looked)
    for number in range(20):
        looked.clear()
        append(opened, Writer().documents([number]))
        assert len(looked) <= bool(limits)
    assert len(segments(tmp_path)) == 20


def test_segments_beyond_the_limit_are_dropped_each_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = Collection.define("numbers", NUMBERS.schema, "id", retention_bytes=5_000)
    opened = open_numbers(tmp_path, segment_bytes_max=1, collection=limited)
    looked: list[str] = []
    _count_looks(monkeypatch, looked)
    for number in range(60):
        append(opened, Writer(clock=10**9 + number).documents([number]))
        assert sum(path.stat().st_size for path in segments(tmp_path)) <= 5_000 + 1_000
    dropped = 60 - len(segments(tmp_path))
    assert looked.count("list") <= dropped / 2
    assert looked.count("status") <= 2 * dropped
    (leftover,) = segments(tmp_path)[:1]
    opened.close()

    # Somebody died between noting what is dropped and dropping it.
    copy = leftover.with_name("0" * 20 + ".segment")
    copy.write_bytes(leftover.read_bytes())
    opened = open_numbers(tmp_path, segment_bytes_max=1, collection=limited)
    for number in range(60, 70):
        append(opened, Writer(clock=10**9 + number).documents([number]))
    assert not copy.exists()


def _count_looks(monkeypatch: pytest.MonkeyPatch, looked: list[str]) -> None:
    status = Retention._status

    def counted(self: Retention, first: int) -> os.stat_result:
        looked.append("status")
        return status(self, first)

    def listed(folder: Path) -> list[int]:
        looked.append("list")
        return list_segments(folder)

    monkeypatch.setattr(Retention, "_status", counted)
    monkeypatch.setattr("penstock.journal.file.retention.list_segments", listed)


def as_version_1(header: SegmentHeader) -> bytes:
    text = json.dumps(
        {
            "journal": header.journal,
            "first_offset": header.first_offset,
            "collection": header.collection,
            "states": [
                [str(Producer.from_int64(who)), state.last_commit, state.max_continue, state.offset]
                for who, state in header.states.items()
            ],
            "fault": header.fault,
        }
    ).encode()
    text += b" " * (-len(text) % 8)
    return segment_header.PREFIX.pack(SEGMENT_MAGIC, 1, len(text), checksum(text)) + text


@pytest.fixture
def written_by_version_1() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentHeader, "encode", as_version_1)
        yield patch


@pytest.mark.parametrize("limits", LIMITS)
def test_segments_of_the_old_version_are_read_and_followed(
    tmp_path: Path, written_by_version_1: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    collection = Collection.define("numbers", NUMBERS.schema, "id", **limits)
    opened = open_numbers(tmp_path, segment_bytes_max=1, collection=collection)
    writer = Writer()
    for number in range(3):
        append(opened, writer.documents([number]))
    written_by_version_1.undo()
    for number in range(3, 6):
        append(opened, writer.documents([number]))
    again = open_numbers(tmp_path, segment_bytes_max=1, collection=collection)
    assert ids_of(again) == list(range(6))
    at, states = again.states(JOURNAL, 5)
    assert at == 5
    assert {who: state.offset for who, state in states.items()} == {writer.producer.int64: -5}
