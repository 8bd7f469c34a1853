"""Producers: who may write, in which order, and who may never write again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.errors import CommitFailedError, LocalProtocolError
from penstock.ids import CLOCK_TICK, clock_from_unix
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal import transaction as module
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import BadRowsError, ProducerFencedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOURNALS = [f"numbers/part=%_{part}/000" for part in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as opened:
        schema = "id BIGINT NOT NULL, part INT NOT NULL"
        opened.create(Collection.define("numbers", schema, "id", "part"))
        yield opened


def row(id_: int, part: int = 0) -> dict[str, int]:
    return {"id": id_, "part": part}


def seen(store: OpenStore) -> Counter[object]:
    names = [journal.name for journal in store.journals("numbers")]
    return Counter(
        id_
        for cut in take_cut(store, names)
        for found in read_documents(store, cut)
        for id_ in found.documents.column("id").to_pylist()
    )


def test_threads_that_share_a_transaction_lose_nothing(store: OpenStore) -> None:
    with (
        store.producer() as producer,
        producer.transaction() as transaction,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda n: transaction.append("numbers", row(n, n % 3)), range(120)))
    assert seen(store) == Counter(range(120))


def test_threads_that_share_a_producer_lose_nothing(store: OpenStore) -> None:
    with store.producer() as producer, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: producer.append("numbers", row(n, n % 3)), range(120)))
    assert seen(store) == Counter(range(120))


def test_clocks_follow_the_time_and_never_repeat(store: OpenStore) -> None:
    with store.producer() as producer:
        before = clock_from_unix(int(time.time()))
        first = producer.stamp("numbers", [row(n) for n in range(1000)]).parts[0]
        second = producer.stamp("numbers", [row(0)]).parts[0]
    assert first.first_clock >= before
    assert first.last_clock == first.first_clock + 999 * CLOCK_TICK
    assert second.first_clock > first.last_clock


def test_nothing_outside_while_a_transaction_is_open(store: OpenStore) -> None:
    with store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("numbers", row(1))
        with pytest.raises(LocalProtocolError, match="append through the transaction"):
            producer.append("numbers", row(2))
        with pytest.raises(LocalProtocolError, match="a transaction open already"):
            producer.transaction()
        transaction.commit()
        with pytest.raises(LocalProtocolError, match="this transaction is over"):
            transaction.append("numbers", row(3))
        producer.append("numbers", row(4))
    assert seen(store) == Counter([1, 4])


def test_rows_that_would_pass_for_duplicates_are_refused(store: OpenStore) -> None:
    with store.producer() as producer:
        older = producer.stamp("numbers", row(1))
        producer.append("numbers", row(2))
        with pytest.raises(LocalProtocolError, match="stamp the rows again"):
            producer.send(older)
        newest = producer.stamp("numbers", row(3))
        producer.send(newest)
        producer.send(newest)
    assert seen(store) == Counter([2, 3])


def test_refused_rows_leave_the_transaction_as_it_was(store: OpenStore) -> None:
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("numbers", row(1))
        with pytest.raises(BadRowsError):
            transaction.append("numbers", [row(2), {"id": "x", "part": 1}])
        transaction.append("numbers", row(3))
    assert seen(store) == Counter([1, 3])


def test_a_rolled_back_producer_goes_on(store: OpenStore) -> None:
    with store.producer() as producer:
        producer.append("numbers", row(0))
        for turn in range(3):
            transaction = producer.transaction()
            transaction.append("numbers", [row(100 + turn, part) for part in range(3)])
            transaction.rollback()
            with producer.transaction() as transaction:
                transaction.append("numbers", [row(turn, part) for part in range(3)])
            producer.append("numbers", row(10 + turn))
    assert seen(store) == Counter({0: 4, 1: 3, 2: 3, 10: 1, 11: 1, 12: 1})


def test_a_closed_producer_cannot_come_back(store: OpenStore) -> None:
    with store.producer() as producer:
        stamped = producer.stamp("numbers", row(1))
    for attempt in (
        lambda: producer.append("numbers", row(1)),
        lambda: producer.send(stamped),
        producer.transaction,
    ):
        with pytest.raises(ProducerFencedError, match="Open a new producer"):
            attempt()
    assert store.journals("numbers") == []


def test_a_name_fences_the_producer_that_had_it(store: OpenStore) -> None:
    first = store.producer("loader")
    other = store.producer("another")
    first.append("numbers", row(1))
    open_transaction = first.transaction()
    open_transaction.append("numbers", [row(2, part) for part in range(3)])
    second = store.producer("loader")
    with pytest.raises(ProducerFencedError):
        open_transaction.append("numbers", row(3))
    with pytest.raises(CommitFailedError, match="fenced"):
        open_transaction.commit()
    with pytest.raises(ProducerFencedError):
        first.append("numbers", row(4))
    second.append("numbers", row(5))
    other.append("numbers", row(6))
    assert seen(store) == Counter([1, 5, 6])
    assert store.recover() == []


def test_a_fenced_producer_that_had_decided_is_committed_by_who_fences(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is stopped between its decision and the first ACK, and fenced there."""
    producer = store.producer()

    def fence(step: module.Step) -> None:
        if step is module.Step.DECIDED:
            monkeypatch.setattr(module, "reached", lambda _step: None)
            store.fence(producer.id)

    with producer.transaction() as transaction:
        transaction.append("numbers", [row(1, part) for part in range(3)])
        monkeypatch.setattr(module, "reached", fence)
    assert seen(store) == Counter({1: 3})
    with pytest.raises(ProducerFencedError):
        producer.append("numbers", row(2))


@pytest.mark.slow
def test_fencing_and_deciding_at_once_has_one_winner(store: OpenStore) -> None:
    """Whoever comes first: committed everywhere or nowhere, and both sides say the same."""
    outcomes = Counter[bool]()
    for turn in range(60):
        producer = store.producer()
        transaction = producer.transaction()
        transaction.append("numbers", [row(turn, part) for part in range(3)])
        # Over the turns the fence comes later and later; in the first and last it surely loses
        # or wins.
        wait_s = turn % 10 * 0.0003
        thread = threading.Timer(wait_s, store.fence, [producer.id])
        thread.start()
        if turn % 10 == 0:
            thread.join()
        try:
            transaction.commit()
            committed = True
        except (CommitFailedError, ProducerFencedError):
            committed = False
        thread.join()
        outcomes[committed] += 1
        assert seen(store)[turn] == (3 if committed else 0), f"turn {turn}"
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("numbers", row(turn + 1))
    store.fence(producer.id)
    outcomes[seen(store)[turn + 1] == 1] += 1
    assert set(outcomes) == {True, False}


@pytest.mark.slow
def test_a_killed_producer_cannot_come_back_under_another_name(
    store: OpenStore, tmp_path: Path
) -> None:
    script = (
        "import sys; from penstock.journal import open_store\n"
        "producer = open_store(sys.argv[1]).producer('nightly')\n"
        "transaction = producer.transaction()\n"
        "transaction.append('numbers', {'id': 1, 'part': 0})\n"
        "print(producer.id, flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert store.recover() == [], "it lives: it is left alone"
    os.kill(child.pid, signal.SIGSTOP)
    store.producer("nightly").append("numbers", row(2))  # fences the one that is paused
    os.kill(child.pid, signal.SIGCONT)
    child.kill()
    child.communicate()
    assert [str(producer) for producer in store.recover()] == []
    records = {str(ledger.producer): ledger.record() for ledger in store.ledgers()}
    assert records[name].settled
    assert seen(store) == Counter([2])
