"""A disk that fails in the middle of a commit: it is whole or not at all, and the caller knows."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Literal

import pytest

from penstock.errors import CommitFailedError, CommitStateUnknownError, LocalProtocolError
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal import transaction as transaction_module
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import AppendFailedError, ProducerFencedError
from penstock.journal.file import durable as durable_module
from penstock.journal.file import journal as journal_module
from penstock.journal.transaction import Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.journal.producer import OpenProducer
    from penstock.journal.transaction import Transaction

NAMES = ("a", "b", "c")


@pytest.fixture
def store(tmp_path: Path) -> OpenStore:
    store = open_store(tmp_path)
    for name in NAMES:
        store.create(Collection.define(name, "id BIGINT NOT NULL", "id"))
    return store


def seen(store: OpenStore) -> dict[str, list[int | None]]:
    cuts = take_cut(store, [f"{name}/000" for name in NAMES])
    return {
        cut.journal[0]: [
            number
            for part in read_documents(store, cut)
            for number in part.documents.column("id").to_pylist()
        ]
        for cut in cuts
    }


def opened(producer: OpenProducer) -> Transaction:
    transaction = producer.transaction()
    for name in NAMES:
        transaction.append(name, {"id": 1})
    return transaction


class Failing:
    """Stands before a function of `os`: lets some calls through, and fails from then on."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, module: object, name: str, let_through: int
    ) -> None:
        self.calls = 0
        real: Callable[..., object] = getattr(os, name)

        def call(*arguments: object) -> object:
            self.calls += 1
            if self.calls > let_through:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments)

        monkeypatch.setattr(f"{module.__name__}.os.{name}", call)  # type: ignore[attr-defined]


@pytest.mark.parametrize("acks", [0, 1, 2])
def test_a_disk_that_fails_while_acknowledging_leaves_a_commit_to_recovery(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    with store.producer() as other:
        for name in NAMES:
            other.append(name, {"id": 0})
        with store.producer() as producer:
            transaction = opened(producer)
            with monkeypatch.context() as patched:
                Failing(patched, journal_module, "pwritev", let_through=acks)
                with pytest.raises(
                    CommitStateUnknownError, match=r"is committed, but .* call recover"
                ):
                    transaction.commit()
        for name in NAMES:
            other.append(name, {"id": 2})
        # Committed, but not yet to be seen: in none of the journals, although some have the ACK.
        assert seen(store) == {name: [0, 2] for name in NAMES}
        with pytest.raises(ProducerFencedError):
            producer.append("a", {"id": 9})
        assert store.recover() == [producer.id]
        assert seen(store) == {name: [0, 1, 2] for name in NAMES}
        assert store.recover() == []


def test_a_disk_that_does_not_confirm_the_decision_rolls_nothing_back(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision may have reached the disk: a rollback now, and a crash in the middle of it,
    would leave a part of the transaction to be committed."""
    with store.producer() as producer:
        transaction = opened(producer)
        with monkeypatch.context() as patched:
            Failing(patched, durable_module, "fsync", let_through=1)  # the file, not its name
            with pytest.raises(CommitStateUnknownError, match="the disk would not confirm it"):
                transaction.commit()
        with pytest.raises(LocalProtocolError, match="this transaction is over"):
            transaction.commit()
    assert seen(store) == {name: [] for name in NAMES}
    assert store.recover() == [producer.id]
    assert seen(store) == {name: [1] for name in NAMES}


def test_a_disk_that_refuses_the_decision_rolls_back(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.producer() as producer:
        transaction = opened(producer)
        with monkeypatch.context() as patched:
            Failing(patched, durable_module, "fsync", let_through=0)
            with pytest.raises(CommitFailedError, match=r"could not be recorded: .* rolled back"):
                transaction.commit()
        with producer.transaction() as again:
            for name in NAMES:
                again.append(name, {"id": 2})
    assert seen(store) == {name: [2] for name in NAMES}
    assert store.recover() == []


def test_a_disk_that_does_not_sync_the_documents_rolls_back(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.producer() as producer:
        transaction = opened(producer)
        with monkeypatch.context() as patched:
            Failing(patched, journal_module, "fdatasync", let_through=1)
            with pytest.raises((CommitFailedError, OSError)):
                transaction.commit()
    store.recover()
    assert all(1 not in ids for ids in seen(store).values())


@pytest.mark.parametrize("durability", ["synced", "buffered"])
def test_all_documents_can_be_read_before_anything_acknowledges_them(
    durability: Literal["synced", "buffered"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shuffle relies on it: where it then finds none, the journal was made anew."""
    store = open_store(tmp_path, durability=durability)
    for name in NAMES:
        store.create(Collection.define(name, "id BIGINT NOT NULL", "id"))
    heads: list[list[int]] = []

    def look(step: Step) -> None:
        if step is Step.DECIDED:
            heads.append([store.probe(f"{name}/000").write_head for name in NAMES])

    monkeypatch.setattr(transaction_module, "reached", look)
    with store.producer() as producer:
        opened(producer).commit()
    assert heads == [[1, 1, 1]]


def test_a_rollback_that_fails_is_left_to_recovery(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the producer to go on, its next commit would take the discarded rows along."""
    with store.producer() as producer:
        transaction = opened(producer)
        with monkeypatch.context() as patched:
            Failing(patched, journal_module, "pwritev", let_through=1)
            with pytest.raises(AppendFailedError):
                transaction.rollback()
        with pytest.raises(ProducerFencedError):
            producer.append("a", {"id": 2})
    assert store.recover() == [producer.id]
    assert seen(store) == {name: [] for name in NAMES}
    with store.producer() as other:
        for name in NAMES:
            other.append(name, {"id": 3})
    assert seen(store) == {name: [3] for name in NAMES}
