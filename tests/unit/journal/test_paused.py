"""A process that was paused, wherever it stands, stops nobody but those who need what it holds;
they are told who it is. Killed, it holds nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from penstock import locks
from penstock.checksum import checksum
from penstock.journal import Collection, OpenStore, open_store, recovery
from penstock.journal import producer as producer_module
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import ProducerFencedError
from penstock.journal.file.head import Head
from penstock.journal.file.journal import JournalFile
from penstock.journal.file.ledger import FileLedger
from penstock.journal.file.store import NAMING_LOCKS
from penstock.locks import LockHeldError, locking_within
from penstock.process import is_stopped
from tests.unit.journal import journal_children as children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkProcess
    from pathlib import Path

    from penstock.ids import Producer
    from penstock.journal.writable import ProducerLedger, WritableStore

NAMES: Final = ("a", "b", "c")


def make(folder: Path) -> OpenStore:
    store = open_store(folder)
    for name in NAMES:
        store.create(Collection.define(name, "id BIGINT NOT NULL", "id"))
    return store


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        stop()
        return real(*arguments)

    return call


@contextlib.contextmanager
def stopping_within(self: FileLedger, folder: Path) -> Iterator[None]:
    with REAL_DECIDING(self, folder):
        stop()
        yield


REAL_DECIDING: Final = FileLedger._deciding


def pause(folder: Path, where: str) -> None:
    """Writes to `a` and `b` as `job`, and stops itself in the middle of what it does to `b`."""
    store = make(folder)
    if where == "naming":
        FileLedger.register = stopping(FileLedger.register)  # type: ignore[method-assign]
    producer = store.producer("job")
    transaction = producer.transaction()
    transaction.append("a", {"id": 1})
    if where == "append":
        Head.set_written = stopping(Head.set_written)  # type: ignore[method-assign]
    elif where == "make":
        JournalFile.create = stopping(JournalFile.create)  # type: ignore[method-assign]
        store.create(Collection.define("d", "id BIGINT NOT NULL", "id"))
        transaction.append("d", {"id": 1})
    transaction.append("b", {"id": 1})
    if where == "sync":
        Head.set_synced = stopping(Head.set_synced)  # type: ignore[method-assign]
    elif where == "decide":
        FileLedger._deciding = stopping_within  # type: ignore[method-assign]
    transaction.commit()


def seen(store: OpenStore) -> list[list[int | None]]:
    return [
        [n for part in read_documents(store, cut) for n in part.documents.column("id").to_pylist()]
        for cut in take_cut(store, [f"{name}/000" for name in NAMES])
    ]


NEEDS: Final[dict[str, Callable[[OpenStore], object]]] = {
    "append": lambda store: store.producer().append("b", {"id": 9}),
    "sync": lambda store: store.producer().append("a", {"id": 9}),
    "decide": lambda store: store.producer("job"),
    "naming": lambda store: store.producer("job"),
    "make": lambda store: store.create(Collection.define("e", "id BIGINT NOT NULL", "id")),
}


@pytest.fixture
def paused(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ForkProcess]:
    store = make(tmp_path)
    with store.producer() as producer:
        for name in NAMES:
            producer.append(name, {"id": 0})
    process = children.start(pause, tmp_path, request.param)
    deadline = time.monotonic() + children.CHILD_S_MAX
    while not is_stopped(process.pid or 0):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    yield process
    process.kill()
    children.end(process)


@pytest.mark.parametrize("paused", list(NEEDS), indirect=True)
def test_a_paused_process_stops_only_those_who_need_what_it_holds(
    paused: ForkProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(locks, "STOPPED_SECONDS_MAX", 0.05)
    where = request.node.callspec.params["paused"]
    assert _lock_of("other") != _lock_of("job")
    before = seen(open_store(tmp_path))
    assert [each[0] for each in before] == [0, 0, 0]
    for name in (None, "other"):
        with open_store(tmp_path) as store, store.producer(name) as producer:
            producer.append("c", {"id": 2})
            assert store.collections()[:3] == list(NAMES)
    store = open_store(tmp_path)
    assert seen(store) == [before[0], before[1], [0, 2, 2]]
    with pytest.raises(LockHeldError, match=f"process {paused.pid} .*which is stopped"):
        NEEDS[where](store)
    store.recover_if_possible()
    with store.producer("other") as producer:
        producer.append("c", {"id": 3})
    paused.kill()
    paused.join(children.CHILD_S_MAX)
    NEEDS[where](store)
    store.recover()
    found = seen(open_store(tmp_path))
    assert (1 in found[0]) == (1 in found[1])


def _lock_of(name: str) -> int:
    return checksum(name.encode()) % NAMING_LOCKS


@pytest.mark.parametrize("paused", ["append"], indirect=True)
def test_a_restart_of_the_paused_job_itself_is_told_who_is_in_its_way_and_succeeds_after_it(
    paused: ForkProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "STOPPED_SECONDS_MAX", 0.05)
    store = open_store(tmp_path)
    for _ in range(2):
        with pytest.raises(LockHeldError, match=f"process {paused.pid} "):
            store.producer("job")
    assert [ledger.name() for ledger in store.ledgers() if not ledger.record().retired] == []
    paused.kill()
    paused.join(children.CHILD_S_MAX)
    with store.producer("job") as producer:
        producer.append("b", {"id": 5})
    assert seen(store) == [[0], [0, 5], [0]]


def test_nothing_is_settled_under_the_lock_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    settled: list[Producer] = []

    def settle(there: WritableStore, ledger: ProducerLedger) -> None:
        with locking_within(0), there.naming("job"):
            settled.append(ledger.producer)
        recovery.settle(there, ledger)

    monkeypatch.setattr(producer_module, "settle", settle)
    first = store.producer("job")
    first.transaction().append("a", {"id": 1})
    with store.producer("job"):
        assert settled == [first.id]


def hold_and_fork(folder: Path, told: Any) -> None:
    """Leaves a child behind, by a fork that Python hears nothing of, which has all open files."""
    producer = make(folder).producer()
    producer.append("a", {"id": 1})
    transaction = producer.transaction()
    transaction.append("a", {"id": 2})
    if (child := ctypes.CDLL(None).fork()) == 0:
        try:
            transaction.append("a", {"id": 3})
        except ProducerFencedError:
            told.put("fenced")
        except Exception as error:  # noqa: BLE001 - told to the test
            told.put(str(error))
        signal.pause()
    told.put(child)
    signal.pause()


def test_a_producer_dies_with_its_process_whatever_a_child_has_inherited(tmp_path: Path) -> None:
    told = children.PROCESSES.SimpleQueue()
    process = children.start(hold_and_fork, tmp_path, told)
    said = {type(each): each for each in (told.get(), told.get())}
    try:
        assert "open a producer here" in said[str]
        store = open_store(tmp_path)
        assert store.recover() == []  # its process lives
        process.kill()
        os.waitpid(process.pid or 0, 0)  # `join` waits for a pipe that the child has, too
        assert len(store.recover()) == 1
        (cut,) = take_cut(store, ["a/000"])
        ids = [n for part in read_documents(store, cut) for n in part.documents["id"].to_pylist()]
        assert ids == [1]
    finally:
        os.kill(said[int], signal.SIGKILL)
