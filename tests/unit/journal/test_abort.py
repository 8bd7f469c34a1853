"""Aborting a producer's transaction by hand: what becomes of it, and what is kept of that."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import CommitFailedError
from penstock.ids import Producer
from penstock.journal import Collection, open_store, transaction
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import NothingToAbortError, ProducerFencedError
from penstock.journal.file.aborts import write_abort
from penstock.journal.recovery import OpenTransaction
from penstock.journal.transaction import Step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal import OpenStore

WHO = "ada@desk (test)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as made:
        made.create(Collection.define("n", "id BIGINT NOT NULL, shard BIGINT", "id", "shard"))
        yield made


def rows(first: int) -> list[dict[str, Any]]:
    return [{"id": first + n, "shard": n} for n in range(2)]


def seen(store: OpenStore) -> list[int]:
    cuts = take_cut(store, [journal.name for journal in store.journals("n")])
    found = (read.documents for cut in cuts for read in read_documents(store, cut))
    return sorted(row["id"] for batch in found for row in batch.to_pylist())


def test_it_is_rolled_back_and_on_record(store: OpenStore, tmp_path: Path) -> None:
    with store.producer("nightly") as producer:
        producer.append("n", rows(0))
        opened = producer.transaction()
        opened.append("n", rows(10))
        done = store.abort(producer.id, WHO)
        assert (done.outcome, done.by, done.name) == ("rolled back", WHO, "nightly")
        assert len(done.journals) == 2
        assert store.aborts() == [done]
        with pytest.raises(CommitFailedError, match=r"was aborted by ada@desk \(test\) at 20"):
            opened.commit()
        with pytest.raises(ProducerFencedError) as told:
            producer.append("n", rows(20))
        assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)
        assert "aborted by ada@desk" in str(told.value)
    assert seen(store) == [0, 1]
    with open_store(tmp_path / "store") as later:
        assert later.aborts() == [done]


def test_a_commit_that_was_decided_is_carried_out(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(step: Step) -> None:
        if step is Step.ACKNOWLEDGED_ONE:
            monkeypatch.setattr(
                transaction, "reached", lambda _: None
            )  # who settles is no producer
            done.append(store.abort(producer.id, WHO))

    done: list[Any] = []
    with store.producer() as producer:
        opened = producer.transaction()
        opened.append("n", rows(10))
        monkeypatch.setattr(transaction, "reached", reached)
        opened.commit()
        with pytest.raises(ProducerFencedError, match="was carried out, was ended by ada@desk"):
            producer.append("n", rows(20))
    assert [one.outcome for one in done] == ["committed"]
    assert seen(store) == [10, 11]


def test_a_span_that_a_power_cut_left_open_is_closed(store: OpenStore, tmp_path: Path) -> None:
    """The rows were synced, and what was noted of them was not: nobody else will close it."""
    with store.producer("nightly") as producer:
        producer.append("n", rows(0))
        opened = producer.transaction()
        opened.append("n", rows(10))
        saw = store.open_transaction(producer.id)
        ledger = tmp_path / "store" / "producers" / str(producer.id)
        (ledger / "touched").write_bytes(b"")
        store.fence(producer.id)
        assert store.open_transaction(producer.id) == saw, "it is open for ever"
        done = store.abort(producer.id, WHO, saw)
        assert (done.outcome, done.name, done.journals) == ("rolled back", "nightly", saw.journals)
        with pytest.raises(NothingToAbortError):
            store.abort(producer.id, WHO)
        shutil.rmtree(tmp_path / "store" / "retired" / str(producer.id))
        with pytest.raises(NothingToAbortError):
            store.open_transaction(producer.id)
    assert store.aborts() == [done]
    assert seen(store) == [0, 1]


def test_who_has_nothing_open_is_left_alone(store: OpenStore) -> None:
    with store.producer() as producer:
        with pytest.raises(NothingToAbortError, match="has no transaction open"):
            store.abort(producer.id, WHO)
        with pytest.raises(NothingToAbortError):
            store.abort(Producer.random(), WHO)
        producer.append("n", rows(0))
        with producer.transaction() as opened:
            opened.append("n", rows(10))
        with pytest.raises(NothingToAbortError):
            store.abort(producer.id, WHO)
        producer.append("n", rows(20))
    assert store.aborts() == []
    assert seen(store) == [0, 1, 10, 11, 20, 21]


def test_another_transaction_than_the_one_seen_is_left_alone(store: OpenStore) -> None:
    with store.producer() as producer:
        for number, ends in enumerate(("commit", "rollback")):
            first = producer.transaction()
            first.append("n", rows(10 * number))
            saw = store.open_transaction(producer.id)
            assert saw.since is not None
            assert len(saw.journals) == 2
            getattr(first, ends)()
            second = producer.transaction()
            second.append("n", rows(100))
            with pytest.raises(NothingToAbortError, match="has another one open now") as told:
                store.abort(producer.id, WHO, saw)
            assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)
            elsewhere = OpenTransaction(("n/shard=7",), saw.since + 3600)
            with pytest.raises(NothingToAbortError, match="has another one open now"):
                store.abort(producer.id, WHO, elsewhere)
            second.rollback()
        assert store.aborts() == []
        third = producer.transaction()
        third.append("n", rows(200))
        saw = store.open_transaction(producer.id)
        third.append("n", rows(210))
        part = OpenTransaction(saw.journals[1:], saw.since)
        assert store.abort(producer.id, WHO, part).outcome == "rolled back"
        third.rollback()
    assert seen(store) == [0, 1]


def test_a_commit_that_only_had_to_be_forgotten_is_on_record_as_one(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(step: Step) -> None:
        if step is Step.COMPLETED:
            monkeypatch.setattr(transaction, "reached", lambda _: None)
            done.append(store.abort(producer.id, WHO))

    done: list[Any] = []
    with store.producer() as producer:
        with producer.transaction() as before:
            before.append("n", rows(0))
        opened = producer.transaction()
        opened.append("n", rows(10))
        monkeypatch.setattr(transaction, "reached", reached)
        opened.commit()
    assert [one.outcome for one in done] == ["committed"]
    assert seen(store) == [0, 1, 10, 11]


def test_what_ends_while_it_is_aborted_is_on_record_and_stays(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(root: Path, abort: Any) -> None:
        """The producer is quicker."""
        write_abort(root, abort)
        if abort.outcome is None:
            opened.commit()

    with store.producer() as producer:
        opened = producer.transaction()
        opened.append("n", rows(10))
        monkeypatch.setattr("penstock.journal.file.store.write_abort", note)
        done = store.abort(producer.id, WHO)
        assert done.outcome == "nothing was open"
        monkeypatch.undo()
        again = replace(done, by="eve", outcome="rolled back")
        assert store.note_abort(again) == done
        assert store.aborts() == [done]
    assert seen(store) == [10, 11]


def test_a_crash_between_note_and_fence_leaves_a_note_without_an_outcome(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer may go on; whoever looks sees that somebody began to abort it."""
    written: list[object] = []

    def crash(root: Path, abort: Any) -> None:
        write_abort(root, abort)
        written.append(abort)
        raise KeyboardInterrupt

    with store.producer() as producer:
        opened = producer.transaction()
        opened.append("n", rows(10))
        monkeypatch.setattr("penstock.journal.file.store.write_abort", crash)
        with pytest.raises(KeyboardInterrupt):
            store.abort(producer.id, WHO)
        assert [one.outcome for one in store.aborts()] == [None]
        monkeypatch.undo()
        done = store.abort(producer.id, WHO)
        assert store.aborts() == [done]
        assert done.outcome == "rolled back"
        opened.rollback()
    assert seen(store) == []


def test_a_damaged_note_is_told_and_hides_no_fence_and_no_other_note(
    store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store.producer() as other, store.producer() as producer:
        first = other.transaction()
        first.append("n", rows(9))
        store.abort(other.id, WHO)
        opened = producer.transaction()
        opened.append("n", rows(10))
        store.abort(producer.id, WHO)
        path = tmp_path / "store" / "aborts" / str(producer.id)
        path.write_bytes(path.read_bytes().replace(b"ada", b"eve"))
        assert [noted.producer for noted in store.aborts()] == [other.id]
        assert f"aborts/{producer.id} is damaged" in caplog.text
        with pytest.raises(CommitFailedError, match="was fenced, closed or forgotten"):
            opened.commit()
