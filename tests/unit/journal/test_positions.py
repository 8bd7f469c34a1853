"""A producer that is opened again under its name knows what it had committed."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import CommitFailedError, ConfigurationError, LocalProtocolError
from penstock.journal import Collection, OpenStore, open_store, positions
from penstock.journal import producer as producer_module
from penstock.journal import transaction as transaction_module
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import PositionUnknownError
from penstock.journal.file.rescue.backup import back_up
from penstock.journal.file.rescue.restore import restore
from penstock.journal.file.store import FileStore
from penstock.journal.transaction import Step
from tests.unit.journal.journal_children import end, start

if TYPE_CHECKING:
    from pathlib import Path

ROWS, EACH = 24, 4


def open_numbers(folder: Path, **options: Any) -> OpenStore:
    opened = open_store(folder, durability="buffered", **options)
    opened.create(
        Collection.define("numbers", "id BIGINT NOT NULL, part INT NOT NULL", "id", "part")
    )
    return opened


def as_files(store: OpenStore) -> FileStore:
    assert isinstance(store, FileStore)
    return store


def copied(store: OpenStore) -> list[int]:
    names = [journal.name for journal in store.journals("numbers")]
    return sorted(
        id_
        for cut in take_cut(store, names)
        for found in read_documents(store, cut)
        for id_ in found.documents.column("id").to_numpy().tolist()
    )


def copy_on(store: OpenStore, rows: int = ROWS) -> None:
    """What a user's program does: it goes on where it had come to."""
    with store.producer("copier") as producer:
        for begin in range(int(producer.position or 0), rows, EACH):
            with producer.transaction() as transaction:
                for id_ in range(begin, begin + EACH):
                    transaction.append("numbers", {"id": id_, "part": id_ % 2})
                transaction.position(str(begin + EACH))
            assert producer.position == str(begin + EACH)


def copy_and_die(folder: Path, at: Step, count: int) -> None:
    """The process ends when it has reached the step that often."""
    left = itertools.count(count - 1, -1)

    def reached(step: Step) -> None:
        if step is at and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    transaction_module.reached = reached
    copy_on(open_numbers(folder))


@pytest.mark.parametrize("count", [1, 3, 4, 5])
@pytest.mark.parametrize("step", [step for step in Step if step is not Step.ROLLED_BACK_ONE])
def test_a_program_killed_at_any_step_copies_everything_once(
    tmp_path: Path, step: Step, count: int
) -> None:
    folder = tmp_path / "store"
    with open_numbers(folder):
        assert end(start(copy_and_die, folder, step, count)) == [-signal.SIGKILL]
    with open_numbers(folder) as store:
        copy_on(store)
        assert copied(store) == list(range(ROWS))


def test_there_is_none_before_the_first_and_none_without_a_name(tmp_path: Path) -> None:
    with open_numbers(tmp_path / "store") as store:
        with store.producer("copier") as named:
            assert named.position is None
        copy_on(store, EACH)
        with store.producer("another") as other, store.producer() as nameless:
            assert (other.position, nameless.position) == (None, None)
            with (
                nameless.transaction() as transaction,
                pytest.raises(LocalProtocolError, match="belongs to a name"),
            ):
                transaction.position("1")


def test_only_what_is_committed_counts_and_the_last_of_it(tmp_path: Path) -> None:
    with open_numbers(tmp_path / "store") as store:
        with store.producer("copier") as producer:
            with producer.transaction() as transaction:
                transaction.position("first")
                transaction.position("second")
            given_up = producer.transaction()
            given_up.position("third")
            given_up.rollback()
            assert producer.position == "second"
            with producer.transaction() as without:
                without.append("numbers", {"id": 1, "part": 1})
        with store.producer("copier") as later:
            assert later.position == "second"


def test_a_fenced_producer_leaves_no_position(tmp_path: Path) -> None:
    with open_numbers(tmp_path / "store") as store:
        first = store.producer("copier")
        transaction = first.transaction()
        transaction.position("of the first")
        with store.producer("copier") as second:
            with pytest.raises(CommitFailedError):
                transaction.commit()
            assert second.position is None
        first.close()


@pytest.mark.parametrize("bad", [7, "x" * (positions.POSITION_BYTES_MAX + 1)])
def test_what_is_no_position_is_refused_and_costs_nothing(tmp_path: Path, bad: Any) -> None:
    with open_numbers(tmp_path / "store") as store, store.producer("copier") as producer:
        with producer.transaction() as transaction:
            transaction.append("numbers", {"id": 1, "part": 1})
            with pytest.raises(ConfigurationError, match="position"):
                transaction.position(bad)
        assert copied(store) == [1]
        assert producer.position is None


@pytest.mark.parametrize("step", [Step.DECIDED, Step.ACKNOWLEDGED_ONE, Step.ACKNOWLEDGED])
def test_a_commit_that_cannot_be_settled_makes_the_position_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """As where a process that is paused holds a journal of it."""
    folder = tmp_path / "store"
    with open_numbers(folder) as store:
        copy_on(store, EACH)
    with open_numbers(folder):
        assert end(start(copy_and_die, folder, step, 1)) == [-signal.SIGKILL]
    monkeypatch.setattr(producer_module, "recover_at_once", lambda _: None)
    monkeypatch.setattr(producer_module, "settle", lambda *_: None)
    with open_numbers(folder) as store, store.producer("copier") as producer:
        with pytest.raises(PositionUnknownError, match="penstock recover"):
            _ = producer.position
        store.recover()
        assert producer.position == str(2 * EACH)


def test_older_positions_give_their_disk_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "DROP_EVERY", 10)
    with open_numbers(tmp_path / "store", segment_bytes_max=2_000) as store:
        copy_on(store, 400)
        journal = positions.journal_of("copier")
        assert store.probe(journal).first_kept > 0
        with store.producer("copier") as producer:
            assert producer.position == "400"


def test_a_restored_store_has_the_position_of_its_documents(tmp_path: Path) -> None:
    with open_numbers(tmp_path / "store") as store:
        copy_on(store, 2 * EACH)
        back_up(as_files(store), tmp_path / "copy")
        copy_on(store)
    restore(tmp_path / "copy", tmp_path / "restored")
    with open_numbers(tmp_path / "restored") as restored:
        with restored.producer("copier") as producer:
            assert producer.position == str(2 * EACH)
        copy_on(restored)
        assert Counter(copied(restored)) == Counter(range(ROWS))
