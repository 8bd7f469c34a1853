"""Reading once: cuts that split no transaction, and exactly the committed documents of them."""

from __future__ import annotations

import datetime
import itertools
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.frontier import Frontier, from_json, to_json
from penstock.ids import CLOCK_NONE, Kind
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal import transaction as transaction_module
from penstock.journal.cut import AsOf, parse_as_of, take_cut
from penstock.journal.documents import Documents, commit_clocks, read_documents, read_range
from penstock.journal.store import Range
from penstock.journal.transaction import Step, Transaction
from penstock.sequence import Outcome
from tests.unit.journal.journal_files import (
    JOURNAL,
    Writer,
    append,
    fast_folder,
    open_numbers,
)

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from penstock.journal.producer import OpenProducer

ORDERS = Collection.define("orders", "id BIGINT NOT NULL, part INT NOT NULL", "id", "part")
PAYMENTS = Collection.define("payments", "id BIGINT NOT NULL, part INT NOT NULL", "id")
PLACES = {
    ("orders", 0): "orders/part=%_0/000",
    ("orders", 1): "orders/part=%_1/000",
    ("payments", 0): "payments/000",
}
Seen = dict[str, list[int]]
"""For each journal, the ids of its documents in their order."""


def open_shop(folder: Path, segment_bytes_max: int = 1 << 20) -> OpenStore:
    store = open_store(folder, durability="buffered", segment_bytes_max=segment_bytes_max)
    store.create(ORDERS)
    store.create(PAYMENTS)
    return store


def journals_of(store: OpenStore) -> list[str]:
    return [journal.name for name in ("orders", "payments") for journal in store.journals(name)]


def seen(store: OpenStore, as_of: AsOf = None) -> Seen:
    """What a reader of everything gets, checked for what holds for every reading."""
    found: Seen = {}
    for cut in take_cut(store, journals_of(store), as_of):
        ids: list[int] = []
        offsets: list[int] = []
        for part in read_documents(store, cut):
            ids += ids_in(part)
            offsets += part.offsets.tolist()
        assert offsets == sorted(set(offsets))
        if ids:
            found[cut.journal] = ids
    return found


def ids_in(part: Documents) -> list[int]:
    return cast("list[int]", part.documents.column("id").to_pylist())


# An independent model: journals are lists of rows, each of which is seen, or not, or not yet.


@dataclass
class Row:
    id: int
    is_seen: bool = False


@dataclass
class Actor:
    producer: OpenProducer
    transaction: Transaction | None = None
    open_rows: list[Row] = field(default_factory=list)


class Shop:
    """Does the same to a store and to the model of it."""

    def __init__(self, store: OpenStore, producers: int) -> None:
        self.store = store
        self.actors = [Actor(store.producer()) for _ in range(producers)]
        self.journals: dict[str, list[Row]] = defaultdict(list)
        self.next_id = 0

    def close(self) -> None:
        for actor in self.actors:
            actor.producer.close()

    def expected(self) -> Seen:
        each = {
            name: [row.id for row in rows if row.is_seen] for name, rows in self.journals.items()
        }
        return {name: ids for name, ids in each.items() if ids}

    def _rows(self, where: list[tuple[str, int]], *, is_seen: bool) -> dict[str, list[Any]]:
        """New rows, in the store's form by collection; the model has them already."""
        given_: dict[str, list[Any]] = defaultdict(list)
        self.new: list[Row] = []
        for collection, part in where:
            row = Row(self.next_id, is_seen)
            self.next_id += 1
            given_[collection].append({"id": row.id, "part": part})
            self.journals[PLACES[collection, part]].append(row)
            self.new.append(row)
        return given_

    def step(self, who: int, what: str, where: list[tuple[str, int]]) -> None:
        actor = self.actors[who]
        match what:
            case "append" if actor.transaction is None:
                for collection, rows in self._rows(where, is_seen=True).items():
                    assert actor.producer.append(collection, rows) == len(rows)
            case "repeat" if actor.transaction is None:
                for collection, rows in self._rows(where, is_seen=True).items():
                    stamped = actor.producer.stamp(collection, rows)
                    for _ in range(3):
                        actor.producer.send(stamped)
            case "append" | "repeat":
                assert actor.transaction is not None
                for collection, rows in self._rows(where, is_seen=False).items():
                    actor.transaction.append(collection, rows)
                actor.open_rows += self.new
            case "begin" if actor.transaction is None:
                actor.transaction = actor.producer.transaction()
            case "commit" if actor.transaction is not None:
                actor.transaction.commit()
                for row in actor.open_rows:
                    row.is_seen = True
                actor.transaction, actor.open_rows = None, []
            case "rollback" if actor.transaction is not None:
                actor.transaction.rollback()
                actor.transaction, actor.open_rows = None, []
            case "replace":
                # Closing rolls back; another producer takes the place.
                actor.producer.close()
                self.actors[who] = Actor(self.store.producer())


steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            ["append", "repeat", "begin", "begin", "commit", "commit", "rollback", "replace"]
        ),
        st.lists(st.sampled_from(list(PLACES)), min_size=1, max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=22,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(steps, st.sampled_from([1, 900, 2_000, 1 << 20]), st.randoms(use_true_random=False))
def test_what_is_seen_is_what_was_committed(
    history: list[tuple[int, str, list[tuple[str, int]], bool]],
    segment_bytes_max: int,
    chance: random.Random,
) -> None:
    with fast_folder() as folder, open_shop(folder, segment_bytes_max) as store:
        shop = Shop(store, producers=3)
        looks: list[tuple[Frontier, datetime.datetime, Seen]] = []
        for who, what, where, look in history:
            shop.step(who, what, where)
            if look:
                frontier = store.frontier("orders", "payments")
                looks.append((frontier, now(), shop.expected()))
        assert seen(store) == shop.expected()
        check_ranges(store, chance)
        # Whatever came after: a frontier, and a moment, name what was seen then, for ever.
        for frontier, moment, expected in looks:
            assert seen(store, from_json(to_json(frontier))) == expected
            assert seen(store, moment) == expected
        shop.close()
        assert seen(store) == shop.expected()
        with open_shop(folder) as again:
            assert seen(again) == shop.expected()
            for frontier, moment, expected in looks:
                assert seen(again, frontier) == seen(again, moment) == expected


def now() -> datetime.datetime:
    """A moment after everything before it, and before everything that follows."""
    moment = datetime.datetime.now(datetime.UTC)
    while datetime.datetime.now(datetime.UTC) - moment < datetime.timedelta(microseconds=2):
        pass
    return moment


def check_ranges(store: OpenStore, chance: random.Random) -> None:
    """Any way to cut a journal into ranges gives the same documents."""
    for cut in take_cut(store, journals_of(store)):
        whole = [
            (offset, commit)
            for part in read_documents(store, cut, ["id"])
            for offset, commit in zip(part.offsets, part.commit_clocks, strict=True)
        ]
        inner = sorted(chance.sample(range(1, cut.end), min(3, cut.end - 1))) if cut.end else []
        bounds = [0, *inner, cut.end]
        for parts in (
            store.ranges(cut.journal, cut.begin, cut.end),
            [Range(cut.journal, *pair) for pair in itertools.pairwise(bounds)],
        ):
            found = [
                (offset, commit)
                for part in parts
                for read in read_range(store, part, cut, [])
                for offset, commit in zip(read.offsets, read.commit_clocks, strict=True)
            ]
            assert found == whole


def test_all_documents_of_a_transaction_have_its_commit_clock(tmp_path: Path) -> None:
    with open_shop(tmp_path) as store, store.producer() as producer:
        producer.append("orders", {"id": 1, "part": 0})
        with producer.transaction() as transaction:
            transaction.append("orders", [{"id": 2, "part": 0}, {"id": 3, "part": 1}])
            transaction.append("payments", {"id": 4, "part": 0})
        commits: dict[int, tuple[int, int]] = {}
        for cut in take_cut(store, journals_of(store)):
            for part in read_documents(store, cut):
                for number, clock, commit in zip(
                    ids_in(part),
                    part.clocks.tolist(),
                    part.commit_clocks.tolist(),
                    strict=True,
                ):
                    commits[number] = (clock, commit)
    assert commits[1][0] == commits[1][1]
    assert len({commits[number][1] for number in (2, 3, 4)}) == 1
    assert all(commits[number][0] < commits[number][1] for number in (2, 3, 4))


# Transactions in flight


def commit_over_three_journals(producer: OpenProducer) -> None:
    transaction = producer.transaction()
    transaction.append("orders", [{"id": 2, "part": 0}, {"id": 3, "part": 1}])
    transaction.append("payments", {"id": 4, "part": 0})
    transaction.commit()


class Stopped(BaseException):
    pass


def stop_at(monkeypatch: pytest.MonkeyPatch, step: Step, count: int) -> None:
    """The process stops at the step's n-th time, as far as the transaction can tell."""
    left = [count]

    def reached(found: Step) -> None:
        if found is step:
            left[0] -= 1
            if left[0] == 0:
                raise Stopped

    monkeypatch.setattr(transaction_module, "reached", reached)


@pytest.mark.parametrize(
    "stopped_at",
    [
        (Step.TOUCHED, 2, False),
        (Step.APPENDED, 2, False),
        (Step.SYNCED, 1, False),
        (Step.DECIDED, 1, True),
        (Step.ACKNOWLEDGED_ONE, 1, True),
        (Step.ACKNOWLEDGED_ONE, 2, True),
        (Step.ACKNOWLEDGED_ONE, 3, True),
        (Step.ACKNOWLEDGED, 1, True),
        (Step.COMPLETED, 1, True),
    ],
)
@pytest.mark.parametrize("segment_bytes_max", [900, 1 << 20])
def test_a_transaction_in_flight_is_hidden_everywhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped_at: tuple[Step, int, bool],
    segment_bytes_max: int,
) -> None:
    step, count, is_committed = stopped_at
    with open_shop(tmp_path, segment_bytes_max) as store:
        first, other = store.producer(), store.producer()
        first.append("orders", [{"id": 0, "part": 0}, {"id": 1, "part": 1}])
        before = seen(store)
        with monkeypatch.context() as patched:
            stop_at(patched, step, count)
            with pytest.raises(Stopped):
                commit_over_three_journals(first)
        # Others go on, so that all rows and ACKs so far are durable and lie below the cut.
        rows = [{"id": 5, "part": 0}, {"id": 6, "part": 1}]
        other.append("orders", rows)
        other.append("payments", {"id": 7, "part": 0})
        after = {
            PLACES["orders", 0]: [*before[PLACES["orders", 0]], 5],
            PLACES["orders", 1]: [*before[PLACES["orders", 1]], 6],
            PLACES["payments", 0]: [7],
        }
        whole = {
            PLACES["orders", 0]: [0, 2, 5],
            PLACES["orders", 1]: [1, 3, 6],
            PLACES["payments", 0]: [4, 7],
        }
        is_complete = step is Step.COMPLETED
        assert seen(store) == (whole if is_complete else after)
        frontier = store.frontier("orders", "payments")
        with open_shop(tmp_path) as reader:
            assert seen(reader) == (whole if is_complete else after)
        # The owner ends it, or somebody finishes after it: then it is whole, or gone.
        first.close()
        store.recover()
        assert seen(store) == (whole if is_committed else after)
        assert seen(store, frontier) == (whole if is_complete else after)
        assert store.recover() == []
        other.close()


def test_what_follows_a_hidden_transaction_of_the_same_producer_is_hidden_with_it(
    tmp_path: Path,
) -> None:
    """Only in the journals where the hidden one is: elsewhere it hides nothing."""
    with open_numbers(tmp_path) as store, store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("numbers", {"id": 1})
        ledger = producer._ledger
        (touch,) = ledger.record().touches
        writer = Writer(producer.id, producer.next_clock())
        # Acknowledged here, and not yet marked as complete; then a document outside.
        append(store, [writer.ack()])
        append(store, writer.documents([2]))
        append(store, Writer().documents([3]))
        assert ids(store) == [3]
        ledger.clear()
        assert touch.journal == JOURNAL


def ids(store: OpenStore, as_of: AsOf = None) -> list[int]:
    (cut,) = take_cut(store, [JOURNAL], as_of)
    return [number for part in read_documents(store, cut) for number in ids_in(part)]


def test_a_rollback_without_rows_hides_nothing(tmp_path: Path) -> None:
    """A span rolled back earlier must not make the ACK of a later rollback pass for a commit,
    also when another producer's old transaction makes the search begin before both."""
    with open_numbers(tmp_path) as store, store.producer() as old, store.producer() as producer:
        old.transaction().append("numbers", {"id": 0})
        with producer.transaction() as transaction:
            transaction.append("numbers", {"id": 1})
            transaction.rollback()
        producer.append("numbers", {"id": 2})
        clock = producer.last_commit(JOURNAL, store.probe(JOURNAL).identity)
        assert ids(store) == [2]
        append(store, [Writer(producer.id).ack(clock)])
        assert ids(store) == [2]


@pytest.mark.slow
def test_cuts_taken_while_transactions_commit_split_none(tmp_path: Path) -> None:
    with open_shop(tmp_path, 6_000) as store, open_shop(tmp_path) as reader:
        failures: list[BaseException] = []
        committed: list[int] = []
        permits = threading.Semaphore(0)  # a few transactions for each look of the reader
        total, writers = 25, 3

        def write(number: int) -> None:
            try:
                with store.producer() as producer:
                    for turn in range(total):
                        permits.acquire()
                        transaction = producer.transaction()
                        name = number * total + turn
                        rows = [{"id": name, "part": 0}, {"id": name, "part": 1}]
                        transaction.append("orders", rows)
                        transaction.append("payments", {"id": name, "part": 0})
                        if turn % 5 == 4:
                            transaction.rollback()
                        else:
                            transaction.commit()
                            committed.append(name)
            except BaseException as error:
                failures.append(error)
                raise

        with store.producer() as producer:
            for place in (("orders", 0), ("orders", 1), ("payments", 0)):
                producer.append(place[0], {"id": -1, "part": place[1]})
        threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
        for thread in threads:
            thread.start()
        looks = []
        while any(thread.is_alive() for thread in threads):
            permits.release(6)
            frontier = reader.frontier("orders", "payments")
            found = seen(reader)
            at_frontier = seen(reader, frontier)
            for one in (found, at_frontier):
                counted = [Counter(one[name]) for name in PLACES.values()]
                assert counted[0] == counted[1] == counted[2]
            looks.append((frontier, at_frontier))
        for thread in threads:
            thread.join()
        assert failures == []
        expected = Counter([*committed, -1])
        assert all(Counter(found) == expected for found in seen(reader).values())
        sizes = [sum(map(len, at_frontier.values())) for _, at_frontier in looks]
        assert sizes == sorted(sizes)
        assert len(set(sizes)) > 2, "the reader saw nothing of it while it happened"
        for frontier, at_frontier in looks[:: max(len(looks) // 10, 1)]:
            assert seen(store, frontier) == at_frontier


# Frontiers and moments


def test_a_frontier_of_another_store_is_refused(tmp_path: Path) -> None:
    with open_numbers(tmp_path / "a") as store, open_numbers(tmp_path / "b") as other:
        append(store, Writer().documents(range(5)))
        append(other, Writer().documents([1]))
        with pytest.raises(
            ConfigurationError, match=r"offset 5 of numbers/000, which ends at 1: .* another store"
        ):
            take_cut(other, [JOURNAL], store.frontier("numbers"))


def test_a_moment_needs_a_time_zone_and_a_form() -> None:
    assert parse_as_of("2026-11-15T20:00:00+00:00") == datetime.datetime(
        2026, 11, 15, 20, tzinfo=datetime.UTC
    )
    with pytest.raises(ConfigurationError, match=r"has no time zone; write for example .*\+00:00"):
        parse_as_of("2026-11-15T20:00:00")
    with pytest.raises(ConfigurationError, match="neither a moment"):
        parse_as_of("yesterday")
    with pytest.raises(ConfigurationError):
        parse_as_of('{"nonsense": 1}')


def test_a_frontier_survives_as_text(tmp_path: Path) -> None:
    with open_numbers(tmp_path) as store:
        append(store, Writer().documents([1, 2]))
        frontier = store.frontier("numbers")
        append(store, Writer().documents([3]))
        assert ids(store, parse_as_of(to_json(frontier))) == [1, 2]


def test_a_moment_sees_a_transaction_whole_or_not_at_all(tmp_path: Path) -> None:
    """At every microsecond around its commit."""
    with open_shop(tmp_path) as store, store.producer() as producer:
        begun = now()
        with producer.transaction() as transaction:
            transaction.append("orders", [{"id": 1, "part": 0}, {"id": 1, "part": 1}])
            time.sleep(0.002)
            transaction.append("payments", {"id": 1, "part": 0})
        ended = now()
        span = ended - begun
        results = []
        for number in range(41):
            found = seen(store, begun + span * number / 40)
            assert len(found) in (0, 3)
            results.append(len(found))
        assert results == sorted(results)
        assert (results[0], results[-1]) == (0, 3)


def test_documents_after_retention_are_those_that_are_kept(tmp_path: Path) -> None:
    """A span that began before the first kept row is shown from there on."""
    with open_numbers(tmp_path, segment_bytes_max=1) as store, store.producer() as producer:
        with producer.transaction() as transaction:
            for number in range(6):
                transaction.append("numbers", {"id": number})
            store.sync(JOURNAL, 6)
            assert store.drop_before(JOURNAL, 3) == 3
            assert ids(store) == []
        assert ids(store) == [3, 4, 5]
        frontier = store.frontier("numbers")
        store.suspend(JOURNAL)
        assert ids(store) == ids(store, frontier) == []
        producer.append("numbers", {"id": 6})
        assert ids(store) == [6]


def test_a_span_over_many_segments_finds_its_end(tmp_path: Path) -> None:
    with open_numbers(tmp_path, segment_bytes_max=1) as store:
        spans = [Writer() for _ in range(3)]
        for number in range(12):
            append(store, spans[number % 3].documents([number], Kind.CONTINUE))
        append(store, Writer().documents([100]))
        append(store, [spans[0].ack()])
        append(store, [spans[1].ack(1)])
        append(store, spans[1].documents([200]))
        assert ids(store) == [0, 3, 6, 9, 100, 200]
        (cut,) = take_cut(store, [JOURNAL])
        for part in store.ranges(JOURNAL, 0, cut.end):
            assert part.end == part.begin + 1
            alone = [n for read in read_range(store, part, cut) for n in read.offsets.tolist()]
            assert alone == ([part.begin] if part.begin in (0, 3, 6, 9, 12, 15) else [])


def test_a_producer_with_a_transaction_open_cannot_write_beside_it(tmp_path: Path) -> None:
    with open_numbers(tmp_path) as store, store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("numbers", {"id": 1})
        with pytest.raises(LocalProtocolError, match="a transaction of this producer is open"):
            producer.append("numbers", {"id": 2})
        with pytest.raises(LocalProtocolError, match="has a transaction open already"):
            producer.transaction()
        transaction.commit()
        with pytest.raises(LocalProtocolError, match="is over"):
            transaction.append("numbers", {"id": 3})
        assert ids(store) == [1]


# The commit clock of each row, against looking for it row by row


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(list(Outcome)), st.integers(1, 2**64 - 1)),
        max_size=40,
    ),
    st.dictionaries(st.integers(0, 4), st.sampled_from([CLOCK_NONE, 7, 2**63]), max_size=5),
)
def test_commit_clocks_are_those_found_row_by_row(
    rows: list[tuple[int, Outcome, int]], fates: dict[int, int]
) -> None:
    expected = []
    for index, (producer, outcome, clock) in enumerate(rows):
        commit = CLOCK_NONE
        if outcome is Outcome.OUTSIDE_COMMIT:
            commit = clock
        elif outcome in (Outcome.CONTINUE_BEGIN, Outcome.CONTINUE_EXTEND):
            commit = fates.get(producer, CLOCK_NONE)
            for later, closing, ack in rows[index + 1 :]:
                if later == producer and closing is Outcome.ACK_COMMIT:
                    commit = ack
                elif later == producer and closing in (
                    Outcome.ACK_CLEAN_ROLLBACK,
                    Outcome.ACK_DEEP_ROLLBACK,
                ):
                    commit = CLOCK_NONE
                else:
                    continue
                break
        expected.append(commit)
    found = commit_clocks(
        np.array([row[1] for row in rows], np.uint8),
        np.array([row[0] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.uint64),
        fates,
    )
    assert found.tolist() == expected
