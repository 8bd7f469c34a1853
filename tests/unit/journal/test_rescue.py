"""Backups of a live store hold whole transactions, restores check them, and salvage brings out what
is whole of a damaged journal. The oracle is what the producers committed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError, PenstockError
from penstock.journal import Collection, open_store, transaction
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.file.rescue import backup
from penstock.journal.file.rescue.backup import back_up
from penstock.journal.file.rescue.points import list_points, read_point
from penstock.journal.file.rescue.restore import check_point, restore
from penstock.journal.file.rescue.salvage import salvage
from penstock.journal.transaction import Step
from penstock.sinks.batches import commit_batch
from penstock.sinks.collection import CollectionSink
from penstock.sinks.two_phase import Batch
from tests.unit.journal.journal_files import fast_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.journal.file.store import FileStore

SEGMENT_BYTES = 3_000
"""A few dozen rows: journals have many segments."""
COLLECTIONS = ("left", "middle", "right")


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


def make_store(folder: Path) -> FileStore:
    store = open_store(folder, segment_bytes_max=SEGMENT_BYTES)
    for name in COLLECTIONS:
        store.create(Collection.define(name, "id BIGINT NOT NULL, text STRING", key="id"))
    return store


def move(producer: Any, number: int, collections: tuple[str, ...] = COLLECTIONS) -> None:
    """One transaction: the same number in all collections."""
    with producer.transaction() as txn:
        for name in collections:
            txn.append(name, {"id": number, "text": "x" * (number % 40)})


def everywhere(ids: list[int]) -> dict[str, list[int]]:
    return {name: list(ids) for name in COLLECTIONS}


def contents(folder: Path) -> dict[str, list[int]]:
    """What a reader sees in each collection, in order."""
    found: dict[str, list[int]] = {}
    with open_store(folder, create=False) as store:
        names = [one.name for each in store.collections() for one in store.journals(each)]
        for cut in take_cut(store, names):
            ids = found.setdefault(cut.journal.partition("/")[0], [])
            for part in read_documents(store, cut):
                ids += [int(one) for one in part.documents.column("id").to_numpy()]
    return found


def restored(place: Path, number: int | None = None) -> dict[str, list[int]]:
    target = place / f"restored-{number}"
    shutil.rmtree(target, ignore_errors=True)
    restore(place / "backup", target, number)
    return contents(target)


# Backups


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_point_at_every_step_of_a_transaction_is_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    store = make_store(place / "store")
    producer, other = store.producer(), store.producer()
    for number in range(20):
        move(producer, number)
    steps: dict[int, Step] = {}

    def reached(step: Step) -> None:
        steps[back_up(store, place / "backup").point.number] = step

    with monkeypatch.context() as patched:
        patched.setattr(transaction, "reached", reached)
        txn = producer.transaction()
        for name in COLLECTIONS:
            txn.append(name, {"id": 1_000, "text": "open"})
        getattr(txn, ending)()
    move(other, 2_000)
    back_up(store, place / "backup")
    for number, step in steps.items():
        found = restored(place, number)
        whole = [*range(20), 1_000] if step in (Step.COMPLETED, Step.CLEARED) else [*range(20)]
        assert found == everywhere(whole), step
    after = [*range(20), *([1_000] if ending == "commit" else []), 2_000]
    assert restored(place) == everywhere(after)
    assert set(steps.values()) >= {Step.TOUCHED, Step.APPENDED}
    assert ending == "rollback" or set(steps.values()) >= {Step.ACKNOWLEDGED_ONE, Step.CLEARED}


def test_a_restored_store_takes_new_transactions_of_new_producers(place: Path) -> None:
    store = make_store(place / "store")
    producer = store.producer()
    move(producer, 1)
    txn = producer.transaction()
    txn.append("left", {"id": 2, "text": None})
    store.sync("left/000", store.probe("left/000").write_head + 1)
    back_up(store, place / "backup")
    assert restore(place / "backup", place / "restored").rolled_back == 1
    with open_store(place / "restored") as opened, opened.producer() as later:
        move(later, 3)
        assert opened.recover() == []
    assert contents(place / "restored") == everywhere([1, 3])


def test_what_is_new_is_copied_and_nothing_else(place: Path) -> None:
    store = make_store(place / "store")
    with store.producer() as producer:
        for number in range(60):
            move(producer, number)
        first = back_up(store, place / "backup").bytes_copied
        assert back_up(store, place / "backup").bytes_copied == 0
        move(producer, 60)
        assert 0 < back_up(store, place / "backup").bytes_copied < first / 10
    assert restored(place, 1)["left"] == [*range(60)]
    assert restored(place, 3)["left"] == [*range(61)]


def test_a_point_outlives_retention_in_the_store(place: Path) -> None:
    store = make_store(place / "store")
    producer = store.producer()
    for number in range(60):
        move(producer, number)
    back_up(store, place / "backup")
    assert store.drop_before("left/000", 50) > 0
    store.suspend("middle/000")
    back_up(store, place / "backup")
    assert restored(place, 1) == everywhere([*range(60)])
    found = restored(place, 2)
    assert found["left"] == contents(place / "store")["left"]
    assert (found["middle"], found["right"]) == ([], [*range(60)])


def test_a_backup_that_died_at_any_piece_harms_no_point(place: Path) -> None:
    store = make_store(place / "store")
    producer = store.producer()
    for number in range(40):
        move(producer, number)
    back_up(store, place / "backup")
    for number in range(40, 60):
        move(producer, number)

    class DiedError(Exception):
        pass

    pieces = 0
    while True:
        left = pieces

        def moved(*_: int) -> None:
            nonlocal left
            if left == 0:
                raise DiedError
            left -= 1

        try:
            back_up(store, place / "backup", moved)
        except DiedError:
            assert list_points(place / "backup") == [1]
            assert restored(place) == everywhere([*range(40)])
            pieces += 1
            continue
        break
    assert pieces > 3
    assert restored(place) == everywhere([*range(60)])


def test_batches_of_a_query_are_not_written_twice_into_a_restored_store(place: Path) -> None:
    store = make_store(place / "store")
    rows = pa.RecordBatch.from_pydict(
        {"id": [7], "text": ["a"]}, schema=store.collection("left").schema
    )
    batch = Batch("query", 0)

    def run(folder: Path) -> None:
        sink = CollectionSink(folder.as_uri(), "left")
        part = sink.stage(batch, 0, iter([rows]))
        assert part is not None
        commit_batch(sink, batch, [part])

    run(place / "store")
    back_up(store, place / "backup")
    restore(place / "backup", place / "restored")
    run(place / "restored")
    assert contents(place / "restored")["left"] == [7]


def test_places_that_cannot_be_backups_or_targets_are_refused(place: Path) -> None:
    store = make_store(place / "store")
    with pytest.raises(ConfigurationError, match="within the store"):
        back_up(store, place / "store" / "backup")
    (place / "strange").mkdir()
    (place / "strange" / "file").touch()
    with pytest.raises(ConfigurationError, match="not a backup"):
        back_up(store, place / "strange")
    back_up(store, place / "backup")
    with pytest.raises(ConfigurationError, match="is a backup of"):
        back_up(make_store(place / "other"), place / "backup")
    with pytest.raises(ConfigurationError, match="not empty"):
        restore(place / "backup", place / "strange")
    with pytest.raises(ConfigurationError, match="no point 9; it has 1"):
        restore(place / "backup", place / "new", 9)
    with pytest.raises(ConfigurationError, match="holds no backup"):
        read_point(place / "other")


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def _keep_moving(folder: Path, first: int, done: Any) -> None:
    with open_store(folder, create=False, segment_bytes_max=SEGMENT_BYTES) as store:
        producer = store.producer()
        for number in range(first, first + 20_000):
            move(producer, number)
            done.value = number


@pytest.mark.slow
def test_points_of_a_store_that_never_rests_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes commit without a pause, and one of them is killed in the middle of it. The
    first cut is taken as it is, with what is half acknowledged in it."""
    monkeypatch.setattr(backup, "CUTS_MAX", 1)
    store = make_store(tmp_path / "store")
    context = multiprocessing.get_context("spawn")
    done = [context.Value("q", -1) for _ in range(3)]
    processes = [
        context.Process(target=_keep_moving, args=(tmp_path / "store", index * 10**7, each))
        for index, each in enumerate(done)
    ]
    for process in processes:
        process.start()
    try:
        wait_until(lambda: all(each.value >= 0 for each in done))
        before: list[list[int]] = []
        while len(before) < 8:
            before.append([each.value for each in done])
            back_up(store, tmp_path / "backup")
            if len(before) == 4:
                os.kill(processes[0].pid or 0, signal.SIGKILL)
    finally:
        for process in processes:
            process.kill()
            process.join()
    points = [read_point(tmp_path / "backup", number) for number in range(1, 9)]
    assert any(kept.hidden for point in points for kept in point.journals)
    for number, committed in enumerate(before, 1):
        found = restored(tmp_path, number)
        ids = {name: sorted(found.get(name, [])) for name in COLLECTIONS}
        assert ids["left"] == ids["middle"] == ids["right"]
        for index, newest in enumerate(committed):
            mine = [one for one in ids["left"] if one // 10**7 == index]
            assert mine == [*range(index * 10**7, index * 10**7 + len(mine))]
            assert len(mine) > newest - index * 10**7


# Damage of the backup


def test_no_bit_of_a_backup_can_flip_unseen(place: Path) -> None:
    store = make_store(place / "store")
    with store.producer() as producer:
        for number in range(12):
            move(producer, number)
    back_up(store, place / "backup")
    assert check_point(place / "backup").rows > 0
    files = [*(place / "backup").rglob("*.segment"), *(place / "backup").rglob("*.json")]
    choose = random.Random(7)
    for path in files:
        data = path.read_bytes()
        for at in choose.sample(range(len(data)), 25):
            bad = bytearray(data)
            bad[at] ^= 1 << choose.randrange(8)
            path.write_bytes(bad)
            with contextlib.suppress(PenstockError):
                # What is not refused must mean the same: a space of a header's padding, say.
                restore(place / "backup", place / "new")
                assert contents(place / "new") == contents(place / "store"), (path, at)
                shutil.rmtree(place / "new")
            assert not (place / "new").exists()
        path.write_bytes(data)


def test_a_segment_that_a_backup_lost_is_named(place: Path) -> None:
    store = make_store(place / "store")
    with store.producer() as producer:
        for number in range(60):
            move(producer, number)
    back_up(store, place / "backup")
    for path in sorted((place / "backup" / "journals" / "left").rglob("*.segment")):
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(PenstockError, match=r"left.*incomplete"):
            restore(place / "backup", place / "new")
        path.write_bytes(data)


# Salvage


def journal_files(folder: Path, collection: str) -> list[Path]:
    return sorted((folder / "journals" / collection / "000").glob("*.segment"))


def damage(choose: random.Random, folder: Path) -> None:
    """Something that disks do to the files of one journal."""
    path = choose.choice(journal_files(folder, choose.choice(COLLECTIONS)))
    data = bytearray(path.read_bytes())
    at = choose.randrange(len(data))
    match choose.randrange(5):
        case 0:
            data[at] ^= 1 << choose.randrange(8)
        case 1:
            end = min(at + choose.randrange(1, 2_000), len(data))
            data[at:end] = bytes(end - at)
        case 2:
            del data[at:]
        case 3:
            path.unlink()
            return
        case _:
            (path.parent / "head").write_bytes(b"\0" * 192)
            data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(30))
def test_salvage_brings_out_what_is_whole_and_says_what_is_missing(seed: int, place: Path) -> None:
    choose = random.Random(seed)
    store = make_store(place / "store")
    producers = [store.producer() for _ in range(3)]
    committed: set[int] = set()
    for number in range(80):
        producer = choose.choice(producers)
        if choose.random() < 0.1:
            txn = producer.transaction()
            txn.append("left", {"id": -number - 1, "text": "rolled back"})
            txn.rollback()
        move(producer, number)
        committed.add(number)
    where = {name: raw_offsets(store, name) for name in COLLECTIONS}
    store.close()
    for _ in range(choose.randrange(1, 4)):
        damage(choose, place / "store")
    with open_store(place / "store", create=False) as damaged:
        report = {one.name.partition("/")[0]: one for one in salvage(damaged, place / "rescued")}
    found = contents(place / "rescued")
    for name in COLLECTIONS:
        seen = set(found.get(name, []))
        assert len(seen) == len(found.get(name, []))
        assert len(seen - committed) <= report[name].assumed
        lost = committed - seen
        explained = {
            number
            for number, offset in where[name].items()
            for gap in report[name].missing
            if offset >= gap.begin and (gap.end is None or offset < gap.end)
        }
        assert len(lost - explained) <= report[name].undecided
    assert any(one.missing for one in report.values()) or all(
        set(found[name]) == committed for name in COLLECTIONS
    )


def raw_offsets(store: FileStore, collection: str) -> dict[int, int]:
    """At which offset each document is."""
    return {
        number: int(offset)
        for batch in store.read(f"{collection}/000", 0)
        for number, offset in zip(
            batch.documents.column("id").to_pylist(), batch.offsets, strict=True
        )
        if number is not None
    }


def test_a_commit_whose_own_ack_is_lost_is_known_from_other_journals(place: Path) -> None:
    store = make_store(place / "store")
    producer = store.producer()
    move(producer, 1)
    end = journal_files(place / "store", "left")[0].stat().st_size
    move(producer, 2)
    move(producer, 3)
    # Of the second transaction in `left`: the document is whole, the ACK behind it is not.
    path = journal_files(place / "store", "left")[0]
    data = bytearray(path.read_bytes())
    ack = data.index(b"PSF1", data.index(b"PSF1", end) + 1)
    data[ack + 20] ^= 1
    path.write_bytes(data)
    report = {one.name: one for one in salvage(store, place / "rescued")}
    assert report["left/000"].assumed == 1
    assert contents(place / "rescued") == everywhere([1, 2, 3])


def test_a_document_whose_fate_is_lost_is_left_out_and_counted(place: Path) -> None:
    store = make_store(place / "store")
    producer = store.producer()
    move(producer, 1, ("left",))
    end = journal_files(place / "store", "left")[0].stat().st_size
    move(producer, 2, ("left",))
    move(producer, 3, ("left",))
    path = journal_files(place / "store", "left")[0]
    data = bytearray(path.read_bytes())
    ack = data.index(b"PSF1", data.index(b"PSF1", end) + 1)
    data[ack + 20] ^= 1
    path.write_bytes(data)
    (journal,) = salvage(store, place / "rescued")
    assert (journal.undecided, journal.assumed) == (1, 0)
    assert contents(place / "rescued")["left"] == [1, 3]


def test_salvage_of_a_collection_whose_file_is_damaged(place: Path) -> None:
    store = make_store(place / "store")
    with store.producer() as producer:
        move(producer, 1)
    (place / "store" / "collections" / "left.json").write_bytes(b"\xff not JSON")
    with open_store(place / "store", create=False) as damaged:
        salvage(damaged, place / "rescued")
    assert contents(place / "rescued") == everywhere([1])
