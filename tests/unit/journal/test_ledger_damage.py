"""A producer dies at any step of a transaction, and any file of its ledger is damaged or lost: no
reader sees a part of the transaction, nobody else is held up, and recovery settles it."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from typing import TYPE_CHECKING, Final

import pytest

from penstock.cli.settling import settle
from penstock.errors import CorruptStorageError
from penstock.ids import Producer
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal import transaction as transaction_module
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import DamagedLedgerError, LedgerMarks, NothingToAbortError
from penstock.journal.transaction import Step
from tests.unit.journal import journal_children as children
from tests.unit.journal.journal_files import fast_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

JOURNALS: Final = ("a/000", "b/000")
Seen = dict[str, list[int | None]]


def make(folder: Path) -> OpenStore:
    store = open_store(folder, durability="buffered")
    for name in ("a", "b", "other"):
        store.create(Collection.define(name, "id BIGINT NOT NULL", "id"))
    return store


def seen(store: OpenStore) -> Seen:
    return {
        cut.journal: [
            number
            for part in read_documents(store, cut)
            for number in part.documents.column("id").to_pylist()
        ]
        for cut in take_cut(store, JOURNALS)
    }


def both(ids: list[int | None]) -> Seen:
    return dict.fromkeys(JOURNALS, ids)


def die_at(folder: Path, step: Step, count: int, *, rolls_back: bool) -> None:
    """A committed document, a committed transaction, and one that dies at the step."""
    producer = make(folder).producer("job")
    left = [count]

    def reached(at: Step) -> None:
        if at is step:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    for journal in ("a", "b"):
        producer.append(journal, {"id": 0})
    with producer.transaction() as before:
        for journal in ("a", "b"):
            before.append(journal, {"id": 1})
    vars(transaction_module)["reached"] = reached
    transaction = producer.transaction()
    for journal in ("a", "b"):
        transaction.append(journal, {"id": 2})
    if rolls_back:
        transaction.rollback()
    else:
        transaction.commit()


DEATHS: Final = [
    *[(Step.TOUCHED, 1, False), (Step.APPENDED, 1, False), (Step.APPENDED, 2, False)],
    *[(step, 1, False) for step in (Step.SYNCED, Step.DECIDED, Step.ACKNOWLEDGED_ONE)],
    *[(step, 1, False) for step in (Step.ACKNOWLEDGED, Step.COMPLETED, Step.CLEARED)],
    (Step.ROLLED_BACK_ONE, 1, True),
]
COMMITTED: Final = (
    Step.DECIDED, Step.ACKNOWLEDGED_ONE, Step.ACKNOWLEDGED, Step.COMPLETED, Step.CLEARED,
)  # fmt: skip


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 4
        path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def garble(path: Path) -> None:
    path.write_bytes(b"\x80\xff\n")


HARMS: Final[tuple[Callable[[Path], None], ...]] = (flip, cut, garble, lambda path: path.unlink())


def harmed(left: Path) -> Iterator[tuple[str, Path]]:
    """Copies of a store, in each of which one file of its only ledger is damaged."""
    for name in ("touched", "decision", "completed", "alive"):
        for number, harm in enumerate(HARMS):
            if not list(left.glob(f"producers/*/{name}")):
                continue
            if name == "decision" and number == len(HARMS) - 1:
                continue  # without a trace of it, it was never made
            with fast_folder() as folder:
                copy = shutil.copytree(left, folder / "store")
                (path,) = copy.glob(f"producers/*/{name}")
                harm(path)
                yield f"{name}, harm {number}", copy


@pytest.mark.parametrize(("step", "count", "rolls_back"), DEATHS)
def test_no_damage_of_a_ledger_tears_its_transaction_or_holds_others_up(
    step: Step, count: int, rolls_back: bool
) -> None:
    with fast_folder() as left:
        process = children.PROCESSES.Process(
            target=die_at, args=(left, step, count), kwargs={"rolls_back": rolls_back}
        )
        process.start()
        children.end(process)
        for what, folder in harmed(left):
            with open_store(folder) as store:
                first = seen(store)
                assert first["a/000"] == first["b/000"], what
                assert first["a/000"] in ([0, 1], [0, 1, 2]), what
                with store.producer() as other:  # and it recovers on its way
                    other.append("other", {"id": 7})
                wanted: list[int | None] = [0, 1, 2] if step in COMMITTED else [0, 1]
                assert seen(store) == both(wanted), what
                assert store.recover() == [], what
                retired = {path.name for path in (folder / "retired").iterdir()}
                (dead,) = retired - {str(other.id)}
                with pytest.raises(NothingToAbortError):  # it has no span open in any journal
                    store.open_transaction(Producer.from_hex(dead))
                with store.producer("job") as successor:  # the name is free, whatever was damaged
                    for journal in ("a", "b"):
                        successor.append(journal, {"id": 3})
                assert seen(store) == both([*wanted, 3]), what


@pytest.mark.parametrize(("step", "count", "rolls_back"), DEATHS)
def test_a_decision_that_is_lost_alone_is_found_in_the_journals(
    tmp_path: Path, step: Step, count: int, rolls_back: bool
) -> None:
    """Everything else of the ledger is whole. A journal that has the acknowledgement proves it."""
    process = children.PROCESSES.Process(
        target=die_at, args=(tmp_path, step, count), kwargs={"rolls_back": rolls_back}
    )
    process.start()
    children.end(process)
    for path in tmp_path.glob("producers/*/decision"):
        path.unlink()
    store = open_store(tmp_path)
    assert seen(store)["a/000"] == seen(store)["b/000"]
    (dead,) = (ledger.producer for ledger in store.ledgers())
    store.recover()
    committed = step in COMMITTED and step is not Step.DECIDED
    assert seen(store) == both([0, 1, 2] if committed else [0, 1])
    with pytest.raises(NothingToAbortError):  # it has no span open in any journal
        store.open_transaction(dead)


@pytest.mark.parametrize(("step", "count", "rolls_back"), DEATHS)
def test_a_ledger_of_which_nothing_is_left_tears_nothing(
    tmp_path: Path, step: Step, count: int, rolls_back: bool
) -> None:
    """A commit that one journal has is finished in the others; one that none has is not made."""
    process = children.PROCESSES.Process(
        target=die_at, args=(tmp_path, step, count), kwargs={"rolls_back": rolls_back}
    )
    process.start()
    children.end(process)
    (folder,) = (path for path in (tmp_path / "producers").iterdir() if path.is_dir())
    for path in folder.iterdir():
        path.unlink()
    store = open_store(tmp_path)
    assert seen(store)["a/000"] == seen(store)["b/000"]
    store.recover()
    committed = step in COMMITTED and step is not Step.DECIDED
    assert seen(store) == both([0, 1, 2] if committed else [0, 1])
    with store.producer("job") as successor:
        successor.append("a", {"id": 3})


def test_a_decision_that_a_power_cut_brought_back_does_not_leave_the_next_transaction_open(
    tmp_path: Path,
) -> None:
    process = children.PROCESSES.Process(
        target=die_at, args=(tmp_path, Step.APPENDED, 2), kwargs={"rolls_back": False}
    )
    process.start()
    children.end(process)
    (completed,) = tmp_path.glob("producers/*/completed")
    completed.rename(completed.with_name("decision"))
    store = open_store(tmp_path)
    (settled,) = store.recover()
    assert seen(store) == both([0, 1])
    with pytest.raises(NothingToAbortError):
        store.open_transaction(settled)  # in no journal


def test_a_living_producer_whose_ledger_is_damaged_ends_its_transaction_all_the_same(
    tmp_path: Path,
) -> None:
    store = make(tmp_path)
    with store.producer() as producer:
        for number, end in enumerate(("commit", "rollback", "commit")):
            transaction = producer.transaction()
            for journal in ("a", "b"):
                transaction.append(journal, {"id": number})
            garble(tmp_path / "producers" / str(producer.id) / "touched")
            assert store.recover() == []  # it lives
            with store.producer() as other:
                other.append("other", {"id": 7})
            getattr(transaction, end)()
            assert seen(store)["a/000"] == seen(store)["b/000"]
    assert seen(store) == both([0, 2])


def test_a_commit_of_a_producer_with_a_damaged_ledger_is_hidden_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    looked: list[tuple[Step, Seen]] = []

    def look(step: Step) -> None:
        completed = tmp_path / "producers" / str(producer.id) / "completed"
        if completed.exists():
            garble(completed)
        looked.append((step, seen(store)))

    with store.producer() as producer:
        for journal in ("a", "b"):
            producer.append(journal, {"id": 0})
        for number in (1, 2):
            with producer.transaction() as transaction:
                for journal in ("a", "b"):
                    transaction.append(journal, {"id": number})
                monkeypatch.setattr(transaction_module, "reached", look)
    assert {step for step, _ in looked} >= {Step.ACKNOWLEDGED_ONE, Step.COMPLETED, Step.CLEARED}
    for step, found in looked:
        assert found["a/000"] == found["b/000"], step
    assert looked[-1][1]["a/000"] == [0, 1, 2]


def test_a_name_is_not_taken_over_while_a_living_producer_cannot_be_told_from_its_holder(
    tmp_path: Path,
) -> None:
    store = make(tmp_path)
    with store.producer("job") as producer:
        garble(tmp_path / "producers" / str(producer.id) / "alive")
        with pytest.raises(DamagedLedgerError, match=f"{producer.id}/alive is damaged"):
            store.producer("another")
        store.producer().append("other", {"id": 1})  # without a name nothing is taken over
        producer.append("a", {"id": 1})


def test_one_bad_collection_stops_no_other(tmp_path: Path) -> None:
    store = make(tmp_path)
    with store.producer() as producer:
        for journal in ("a", "b"):
            producer.append(journal, {"id": 1})
        garble(tmp_path / "collections" / "b.json")
        producer.append("a", {"id": 2})
        with pytest.raises(CorruptStorageError, match=r"collections/b\.json is damaged"):
            producer.append("b", {"id": 2})
    assert [journal.name for journal in store.journals("b")] == ["b/000"]
    with open_store(tmp_path) as again:
        (found,) = take_cut(again, ["a/000"])
        assert sum(part.documents.num_rows for part in read_documents(again, found)) == 2
        with pytest.raises(CorruptStorageError, match=r"collections/b\.json is damaged"):
            seen(again)


def test_strange_files_among_producers_are_passed_over(tmp_path: Path) -> None:
    store = make(tmp_path)
    for name in ("lost+found", "notes.txt", "97B3B1EF8030", "97b3b1ef80301"):
        (tmp_path / "producers" / name).mkdir()
        (tmp_path / "retired" / name).write_text("")
    store.producer("job").append("a", {"id": 1})
    assert store.recover() == []


def test_what_cannot_be_settled_is_told_and_holds_up_none_of_the_others(tmp_path: Path) -> None:
    store = make(tmp_path)
    children.end(children.start(leave_open, tmp_path))
    garble(next((tmp_path / "journals" / "b" / "000").glob("*.segment")))
    settled, left = settle(open_store(tmp_path))
    assert [one["journals"] for one in settled] == [["a/000"]]
    (why,) = left
    assert "b/000" in why
    store.close()


def leave_open(folder: Path) -> None:
    store = make(folder)
    producers = [store.producer() for _ in range(2)]
    for producer, journal in zip(producers, ("a", "b"), strict=True):
        producer.append(journal, {"id": 1})
        producer.transaction().append(journal, {"id": 2})
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_error_pickles() -> None:
    error = DamagedLedgerError("97b3b1ef8030", "touched", "cut", LedgerMarks(True, False, True))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.known) == (str(error), error.known)
