"""Interruptions at the worst moments: within an append, between listing and reading, within a
commit, and two who want the same name."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.errors import LocalProtocolError
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal import transaction as transaction_module
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import ProducerFencedError
from penstock.journal.file.head import Head
from penstock.journal.transaction import Step
from tests.unit.journal.journal_files import JOURNAL, Writer, append, ids_of, open_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal.producer import OpenProducer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as opened:
        opened.create(Collection.define("shop", "id BIGINT NOT NULL, part INT", "id", "part"))
        yield opened


def listed(store: OpenStore) -> list[str]:
    return [journal.name for journal in store.journals("shop")]


def seen(store: OpenStore) -> Counter[object]:
    return Counter(
        id_
        for cut in take_cut(store, lambda: listed(store))
        for found in read_documents(store, cut)
        for id_ in found.documents.column("id").to_pylist()
    )


@pytest.mark.parametrize("listing", [1, 2])
def test_a_journal_made_while_a_cut_is_taken_tears_nothing(store: OpenStore, listing: int) -> None:
    """A transaction writes an old journal and makes a new one, just after a listing."""
    with store.producer() as producer:
        producer.append("shop", {"id": 0, "part": 0})
        listings = 0

        def journals() -> list[str]:
            nonlocal listings
            found = listed(store)
            listings += 1
            if listings == listing:
                with producer.transaction() as transaction:
                    transaction.append("shop", [{"id": 1, "part": part} for part in (0, 1)])
            return found

        cuts = take_cut(store, journals)
        found = Counter(
            id_
            for cut in cuts
            for part in read_documents(store, cut)
            for id_ in part.documents.column("id").to_pylist()
        )
    assert listings == 2
    assert found[1] == (2 if listing == 1 else 0)
    assert found[0] == 1


@pytest.mark.slow
def test_an_append_of_several_frames_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store, writer = open_numbers(folder), Writer()
    append(store, writer.documents([0]))
    segment = next((folder / "journals" / "numbers" / "000").glob("*.segment"))
    head = segment.with_name("head")
    shutil.copy(head, tmp_path / "head")
    begin = segment.stat().st_size
    frames = [payload for n in range(1, 4) for payload in writer.documents([n])]
    append(store, frames)
    store.close()
    whole = segment.read_bytes()
    ends = [begin]
    for frame in frames:
        ends.append(ends[-1] + frame.frame_bytes)
    for size in range(begin, len(whole) + 1):
        # As after a power cut: the head is old, and the segment ends anywhere.
        shutil.copy(tmp_path / "head", head)
        segment.write_bytes(whole[:size])
        with open_store(folder) as again:
            assert ids_of(again) == ([0, 1, 2, 3] if size == len(whole) else [0]), size
    assert ends[-1] == len(whole)


@pytest.mark.parametrize("when", ["head as it was", "head as after the append"])
def test_a_suspended_journal_that_goes_on_keeps_its_rows(tmp_path: Path, when: str) -> None:
    folder = tmp_path / "store"
    store, writer = open_numbers(folder), Writer()
    append(store, writer.documents([0]))
    store.suspend(JOURNAL)
    head = folder / "journals" / "numbers" / "000" / "head"
    shutil.copy(head, tmp_path / "head")
    append(store, writer.documents([1, 2]))
    if when == "head as it was":
        store.close()
        shutil.copy(tmp_path / "head", head)
        store = open_numbers(folder)
    append(store, writer.documents([3]))
    assert store.probe(JOURNAL).first_kept == 1
    assert ids_of(store, 1) == [1, 2, 3]


def test_an_interrupted_append_spoils_its_transaction(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames are written by then: with a second try they would be there twice."""
    with store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("shop", {"id": 1, "part": 0})
        with monkeypatch.context() as patch:
            patch.setattr(Head, "set_written", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                transaction.append("shop", {"id": 2, "part": 0})
        with pytest.raises(LocalProtocolError, match="roll it back and run it again"):
            transaction.append("shop", {"id": 2, "part": 0})
        transaction.rollback()
        with producer.transaction() as transaction:
            transaction.append("shop", [{"id": 1, "part": 0}, {"id": 2, "part": 0}])
    assert seen(store) == Counter([1, 2])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "step", [Step.DECIDED, Step.ACKNOWLEDGED_ONE, Step.ACKNOWLEDGED, Step.COMPLETED]
)
def test_an_interrupted_commit_is_finished_by_recovery(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    producer = store.producer()

    def interrupt(reached: Step) -> None:
        if reached is step:
            raise KeyboardInterrupt

    transaction = producer.transaction()
    transaction.append("shop", [{"id": 1, "part": part} for part in (0, 1)])
    with monkeypatch.context() as patch:
        patch.setattr(transaction_module, "reached", interrupt)
        with pytest.raises(KeyboardInterrupt):
            transaction.commit()
    assert seen(store)[1] == (2 if step is Step.COMPLETED else 0)
    assert store.recover() == [producer.id]
    assert seen(store) == Counter({1: 2})
    with pytest.raises(ProducerFencedError):
        producer.append("shop", {"id": 2, "part": 0})


def test_of_those_who_open_one_name_at_once_one_is_left(store: OpenStore) -> None:
    start = threading.Barrier(4)

    def open_it(name: str) -> OpenProducer:
        start.wait()
        return store.producer(name)

    with ThreadPoolExecutor(4) as pool:
        for turn in range(10):
            opened = list(pool.map(open_it, [f"loader-{turn}"] * 4))
            alive = 0
            for producer in opened:
                with contextlib.suppress(ProducerFencedError):
                    producer.append("shop", {"id": turn, "part": 0})
                    alive += 1
            assert alive == 1
