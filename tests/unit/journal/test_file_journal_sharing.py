"""One journal in many hands: threads, processes, forked children, and many journals in one."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.file.store import JOURNALS_OPEN_MAX
from penstock.journal.names import Selector
from penstock.journal.store import Probe
from tests.unit.journal import journal_children as children
from tests.unit.journal.journal_files import (
    JOURNAL,
    NUMBERS,
    Writer,
    append,
    ids_of,
    open_numbers,
    rows_of,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def check_appends(store: OpenStore, writers: int, appends: int, each: int) -> None:
    """Offsets dense, every append in one piece, every writer's appends in its order."""
    rows = rows_of(store)
    assert [row[0] for row in rows] == list(range(writers * appends * each))
    ids = [row[3] for row in rows]
    assert Counter(ids) == Counter(range(writers * appends * each))
    for begin in range(0, len(ids), each):
        assert ids[begin : begin + each] == list(range(ids[begin], ids[begin] + each))
        assert len({row[1] for row in rows[begin : begin + each]}) == 1
    for writer in range(writers):
        own = [number for number in ids if number // (appends * each) == writer]
        assert own == sorted(own)


@pytest.mark.parametrize("segment_bytes_max", [1 << 20, 3_000])
def test_many_processes_append_to_one_journal(tmp_path: Path, segment_bytes_max: int) -> None:
    writers, appends, each = 4, 40, 3
    processes = [
        children.start(
            children.append_rows, tmp_path, writer * appends * each, appends, each,
            segment_bytes_max,
        )
        for writer in range(writers)
    ]  # fmt: skip
    assert children.end(*processes) == [0] * writers
    store = open_numbers(tmp_path)
    check_appends(store, writers, appends, each)
    if segment_bytes_max == 3_000:
        assert len(segments(tmp_path)) > 10


def test_many_threads_append_to_one_journal(tmp_path: Path) -> None:
    writers, appends, each = 6, 30, 4
    store = open_numbers(tmp_path, segment_bytes_max=4_000)

    def write(number: int) -> None:
        writer = Writer()
        for turn in range(appends):
            first = (number * appends + turn) * each
            begin = append(store, writer.documents(range(first, first + each)))
            # What an append returned for is there for whoever reads.
            assert ids_of(store, begin, begin + each) == list(range(first, first + each))

    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(write, range(writers)))
    check_appends(store, writers, appends, each)


def test_appends_syncs_and_retention_at_once(tmp_path: Path) -> None:
    """A segment may be rolled and dropped between an append and its sync."""
    collection = Collection.define("numbers", NUMBERS.schema, "id", retention_bytes=1)
    store = open_numbers(tmp_path, segment_bytes_max=1, collection=collection)

    def write(number: int) -> None:
        writer = Writer()
        for turn in range(25):
            append(store, writer.documents([number * 25 + turn]))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert store.probe(JOURNAL) == Probe(99, 100)
    assert len(ids_of(store, 99)) == 1


def test_a_tail_reader_sees_every_row_once_and_in_order(tmp_path: Path) -> None:
    total = 600
    store = open_numbers(tmp_path)
    append(store, Writer().documents([-1]))
    process = children.start(children.append_rows, tmp_path, 0, total // 3, 3, 3_000)
    seen: list[int | None] = []
    offset = 1
    deadline = time.monotonic() + children.CHILD_S_MAX
    while len(seen) < total and time.monotonic() < deadline:
        head = store.wait(JOURNAL, offset, 1.0)
        found = ids_of(store, offset)
        # At least up to the head that was told; perhaps more, appended since.
        assert len(found) >= head - offset
        seen += found
        offset += len(found)
    assert children.end(process) == [0]
    assert seen == list(range(total))


def test_waiting_ends_when_rows_come_or_time_is_up(tmp_path: Path) -> None:
    store, other = open_numbers(tmp_path), open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    begun = time.monotonic()
    assert store.wait(JOURNAL, 1, 0.05) == 1
    assert time.monotonic() - begun >= 0.05
    waiting = threading.Event()

    def write() -> None:
        waiting.wait()
        append(other, Writer().documents([1]))

    thread = threading.Thread(target=write)
    thread.start()
    waiting.set()
    assert store.wait(JOURNAL, 1, children.CHILD_S_MAX) == 2
    thread.join()


# Durability


class Counted:
    """Counts the calls of `os.fdatasync`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        real = os.fdatasync

        def fdatasync(descriptor: int) -> None:
            self.calls += 1
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


def test_each_synced_append_by_itself_is_one_fdatasync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    counted = Counted(monkeypatch)
    for number in range(5):
        append(store, Writer().documents([number]))
    assert counted.calls == 5
    store.sync(JOURNAL, 3)
    assert counted.calls == 5


def test_threads_that_sync_at_once_share_one_fdatasync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    counted = Counted(monkeypatch)
    threads = 8
    all_appended = threading.Barrier(threads)

    def write(number: int) -> None:
        for turn in range(3):
            appended = store.append(JOURNAL, Writer().documents([number]), None)
            all_appended.wait(children.CHILD_S_MAX)
            store.sync(JOURNAL, appended.end)
            assert store.probe(JOURNAL).write_head == 1 + threads * (turn + 1)
            all_appended.wait(children.CHILD_S_MAX)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    assert counted.calls == 3
    assert len(ids_of(store)) == 1 + threads * 3


def test_buffered_appends_make_no_fdatasync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    append(store, Writer().documents([0]))
    counted = Counted(monkeypatch)
    for number in range(5):
        append(store, Writer().documents([number]))
    assert counted.calls == 0
    assert len(ids_of(open_store(tmp_path))) == 6
    with pytest.raises(ConfigurationError, match="made with durability 'buffered', for all"):
        open_store(tmp_path, durability="synced")


# Many journals


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
def test_open_journals_do_not_pile_up(tmp_path: Path) -> None:
    parts = JOURNALS_OPEN_MAX + 60
    gc.collect()  # what other tests have left open is not to be closed meanwhile
    before = descriptors()
    store = open_store(tmp_path, durability="buffered")
    store.create(Collection.define("wide", "id BIGINT, part INT", "id", "part"))
    with store.producer() as producer:
        producer.append("wide", [{"id": n, "part": n} for n in range(parts)])
        reading = store.read("wide/part=%_0/000", 0)
        assert next(reading).rows == 1
        for _ in range(2):
            for journal in store.journals("wide"):
                assert sum(batch.rows for batch in store.read(journal.name, 0)) == 1
        assert descriptors() - before <= 3 * JOURNALS_OPEN_MAX + 10
        producer.append("wide", [{"id": n, "part": n} for n in range(parts)])
        assert {store.probe(journal.name).write_head for journal in store.journals("wide")} == {2}
    list(reading)
    store.close()
    assert descriptors() == before


def test_a_failed_opening_leaks_no_descriptor(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    store.close()
    segments(tmp_path)[0].unlink()
    before = descriptors()
    for _ in range(5):
        with pytest.raises(Exception, match="is missing"):
            ids_of(store)
    assert descriptors() == before


@pytest.mark.slow
def test_ten_thousand_journals_are_listed_and_probed(tmp_path: Path) -> None:
    """Made by copying one: making them durably, one by one, is not what is tested here."""
    count = 10_000
    store = open_store(tmp_path, durability="buffered")
    store.create(Collection.define("wide", "id BIGINT, part INT, half INT", "id", ("part", "half")))
    with store.producer() as producer:
        producer.append("wide", {"id": 1, "part": 0, "half": 0})
    folder = tmp_path / "journals" / "wide"
    (original,) = folder.iterdir()
    for number in range(1, count):
        copy = folder / f"part=%_{number}+half=%_{number % 2}+000"
        copy.mkdir()
        os.link(original / "head", copy / "head")
        os.link(original / "00000000000000000000.segment", copy / "00000000000000000000.segment")
    before = descriptors()
    journals = store.journals("wide")
    probes = {store.probe(journal.name) for journal in journals}
    assert len({journal.name for journal in journals}) == len(journals) == count
    assert journals == sorted(journals, key=lambda journal: journal.name)
    assert {journal.labels["part"] for journal in journals} == {f"%_{n}" for n in range(count)}
    assert probes == {Probe(0, 1)}
    assert len(store.journals("wide", Selector.parse("half=1", ("part", "half")))) == count // 2
    assert len(store.journals("wide", Selector.parse("part=7", ("part", "half")))) == 1
    assert descriptors() == before


# Forks


def in_a_forked_child(work: Callable[[], None]) -> int:
    """Runs it in a forked process; gives the exit code, 0 if it returned."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_parent_and_forked_child_both_go_on(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1_500)
    writer = Writer()
    append(store, writer.documents([0]))

    def child() -> None:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        targets = [link.readlink() for link in links]
        assert not [target for target in targets if target.is_relative_to(tmp_path)]
        assert ids_of(store) == [0]
        own = Writer()
        for number in range(1, 20):
            append(store, own.documents([number]))
        assert ids_of(store) == list(range(20))
        store.close()

    assert in_a_forked_child(child) == 0
    append(store, writer.documents([20]))
    assert ids_of(store) == list(range(21))


def test_a_child_forked_while_the_store_is_busy_is_not_stuck(tmp_path: Path) -> None:
    """Other threads hold the store's and the journal's locks at the moment of the fork."""
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    file = store._open[JOURNAL]
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock, file._append_lock, file._sync_lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def child() -> None:
        signal.alarm(20)
        append(store, Writer().documents([1]))

    try:
        assert in_a_forked_child(child) == 0
    finally:
        release.set()
        thread.join()
    assert ids_of(store) == [0, 1]


def test_a_forked_child_may_not_write_as_its_parent(tmp_path: Path) -> None:
    """Both would give the same clocks to different documents, and one of them would be lost."""
    store = open_numbers(tmp_path)
    with store.producer() as producer:
        producer.append("numbers", {"id": 0})
        transaction = producer.transaction()
        transaction.append("numbers", {"id": 1})

        def child() -> None:
            with pytest.raises(LocalProtocolError, match="open a producer here"):
                transaction.append("numbers", {"id": 2})
            with pytest.raises(LocalProtocolError, match="open a producer here"):
                transaction.commit()
            with pytest.raises(LocalProtocolError, match="open a producer here"):
                producer.close()
            with store.producer() as own:
                own.append("numbers", {"id": 3})

        assert in_a_forked_child(child) == 0
        transaction.commit()
        producer.append("numbers", {"id": 4})
    found = [
        number
        for part in read_documents(store, take_cut(store, [JOURNAL])[0])
        for number in part.documents.column("id").to_pylist()
    ]
    assert found == [0, 1, 3, 4]


def test_a_producer_is_dead_although_a_child_of_its_process_lives(tmp_path: Path) -> None:
    ready, forked = children.PROCESSES.Event(), children.PROCESSES.Queue()
    process = children.start(children.hold_a_producer, tmp_path, ready, forked)
    grandchild = forked.get(timeout=children.CHILD_S_MAX)
    try:
        assert ready.wait(children.CHILD_S_MAX)
        store = open_numbers(tmp_path)
        assert store.recover() == []
        process.kill()
        # Not joined: its sentinel, too, is a file that the grandchild inherited.
        os.waitpid(process.pid or 0, 0)
        assert len(store.recover()) == 1
    finally:
        os.kill(grandchild, signal.SIGKILL)
