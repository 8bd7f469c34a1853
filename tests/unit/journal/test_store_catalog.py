"""Stores and the collections in them: how they are opened, made, changed and shared."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.errors import (
    IncompatibleSchemaError,
    UnknownCollectionError,
    UnknownJournalError,
)
from penstock.journal.names import Selector
from penstock.sealed import sealed_json
from tests.unit.journal import journal_children as children
from tests.unit.journal.journal_files import (
    JOURNAL,
    NUMBERS,
    Writer,
    append,
    ids_of,
    open_numbers,
    segments,
)

NOBODY = 65_534


def documents_of(store: OpenStore, collection: str) -> list[dict[str, object]]:
    journals = [journal.name for journal in store.journals(collection)]
    return [
        row
        for cut in take_cut(store, journals)
        for part in read_documents(store, cut)
        for row in part.documents.to_pylist()
    ]


# Addresses


def test_the_forms_of_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a store é"
    open_store(folder).create(NUMBERS)
    monkeypatch.chdir(tmp_path)
    for address in (
        folder,
        str(folder),
        f"file://{folder}",
        f"file://localhost{folder}",
        f"file://{str(folder).replace(' ', '%20').replace('é', '%C3%A9')}",
        "a store é",
        "./a store é",
    ):
        store = open_store(address, create=False)
        assert store.collections() == ["numbers"]
        assert store.url == folder.as_uri()


def test_a_store_opens_again_by_its_own_address(tmp_path: Path) -> None:
    """Executors open the store by its address: what is special in one must not get lost."""
    for name in ("a%20b", "a b", "a#b", "a?b", "ä+b"):
        open_store(tmp_path / name).create(Collection.define(f"c{len(name)}", "id INT", "id"))
        again = open_store(open_store(tmp_path / name).url, create=False)
        assert again.collections() == [f"c{len(name)}"]
    assert len(list(tmp_path.iterdir())) == 5


def test_wrong_addresses(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"machine 'data'; .* file:///data/journals"):
        open_store("file://data/journals")
    for address, kind in (("s3://bucket/x", "s3"), ("kafka://broker", "kafka")):
        with pytest.raises(ConfigurationError, match=f"stores of kind '{kind}' are not known"):
            open_store(address)
    with pytest.raises(ConfigurationError, match=r"durability is 'synced' .* not 'maybe'"):
        open_store(tmp_path, durability="maybe")
    missing = tmp_path / "missing"
    with pytest.raises(ConfigurationError, match=r"there is no Penstock store at .*missing"):
        open_store(missing, create=False)
    assert not missing.exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(ConfigurationError, match="is not a Penstock store, and not empty"):
        open_store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


def test_an_empty_folder_becomes_a_store(tmp_path: Path) -> None:
    open_store(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "penstock.json", "collections", "journals", "producers", "retired",
    }  # fmt: skip
    open_store(tmp_path, create=False)


def test_a_store_whose_making_was_interrupted_is_finished(tmp_path: Path) -> None:
    """A process died right after writing the marker, or right before."""
    open_store(tmp_path / "a")
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "penstock.json", tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".penstock.json.17.tmp").touch()
    for name in ("b", "c"):
        store = open_numbers(tmp_path / name)
        append(store, Writer().documents([1]))
        assert ids_of(store) == [1]


@pytest.mark.parametrize("text", ['{"format": 2}', '{"format": "x"}', "{}"])
def test_another_format_is_refused(tmp_path: Path, text: str) -> None:
    open_store(tmp_path)
    (tmp_path / "penstock.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"has store format .*, and this Penstock reads 1"):
        open_store(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0\0"])
def test_a_damaged_marker_is_told(tmp_path: Path, text: str) -> None:
    open_store(tmp_path)
    (tmp_path / "penstock.json").write_text(text)
    with pytest.raises(CorruptStorageError, match=r"penstock.json .*; restore it"):
        open_store(tmp_path)


def test_folders_that_another_made_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died before it came to that."""
    open_store(tmp_path).close()
    synced: list[Path] = []
    monkeypatch.setattr("penstock.journal.file.store.sync_folder", synced.append)
    open_store(tmp_path).close()
    assert synced == [tmp_path]


# Collections


def test_the_same_collection_twice_is_fine(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.create(NUMBERS) == store.create(NUMBERS) == store.collection("numbers")
    assert open_store(tmp_path).create(NUMBERS) == NUMBERS
    assert store.collections() == ["numbers"]


@pytest.mark.parametrize(
    "other",
    [
        Collection.define("numbers", "id BIGINT NOT NULL", "id"),
        Collection.define("numbers", NUMBERS.schema, ("id", "text")),
        Collection.define("numbers", NUMBERS.schema, "id", "text"),
        Collection.define("numbers", NUMBERS.schema, "id", retention_bytes=5),
    ],
)
def test_a_different_collection_of_the_same_name_is_refused(
    tmp_path: Path, other: Collection
) -> None:
    store = open_numbers(tmp_path)
    with pytest.raises(ConfigurationError, match=r"exists already and is different; .* evolve it"):
        store.create(other)
    assert store.collection("numbers") == NUMBERS


def test_unknown_names(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(UnknownCollectionError, match=r"no collection 'x' .* it has: none yet"):
        store.collection("x")
    store.create(NUMBERS)
    for use in (store.collection, store.journals, lambda name: store.evolve(name, "id BIGINT")):
        with pytest.raises(UnknownCollectionError, match="it has: numbers"):
            use("nmubers")
    with (
        store.producer() as producer,
        pytest.raises(UnknownCollectionError, match="it has: numbers"),
    ):
        producer.append("nmubers", {"id": 1})
    with pytest.raises(UnknownJournalError):
        store.probe("nmubers/000")
    with pytest.raises(ConfigurationError, match="is not a collection name"):
        store.collection("../numbers")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "numbers"'])
def test_a_damaged_collection_file_is_told(tmp_path: Path, text: str) -> None:
    store = open_numbers(tmp_path)
    (tmp_path / "collections" / "numbers.json").write_text(text)
    for reader in (store, open_store(tmp_path)):
        with pytest.raises(CorruptStorageError, match=r"numbers.json is damaged: .* Restore it"):
            reader.collection("numbers")


@pytest.mark.parametrize("change", [{"schemas": None}, {"schemas": ["id BLOB"]}, {"key": ["x"]}])
def test_a_collection_file_that_says_nonsense_is_told(
    tmp_path: Path, change: dict[str, object]
) -> None:
    store = open_numbers(tmp_path)
    path = tmp_path / "collections" / "numbers.json"
    fields = json.loads(path.read_text())
    del fields["checksum"]
    for data in (sealed_json(fields | change), json.dumps(fields | change).encode()):
        path.write_bytes(data)
        with pytest.raises(CorruptStorageError, match=r"numbers.json .* describe .* Restore it"):
            store.collection("numbers")


def test_journals_are_listed_by_name_and_selected_by_label(tmp_path: Path) -> None:
    store = open_store(tmp_path, durability="buffered")
    orders = Collection.define(
        "orders", "id BIGINT, region STRING, tier INT", "id", ("region", "tier")
    )
    store.create(orders)
    rows = [
        {"id": number, "region": region, "tier": tier}
        for number, (region, tier) in enumerate(
            (region, tier) for region in ("eu", "a/b+c", "", None, "42") for tier in (1, None)
        )
    ]
    with store.producer() as producer:
        producer.append("orders", rows)
    names = [journal.name for journal in store.journals("orders")]
    assert len(names) == 10
    assert names == sorted(names)
    assert "orders/region=a%2Fb%2Bc/tier=%_null/000" in names
    chosen = store.journals("orders", Selector.parse("region=a/b+c,!tier=1", ("region", "tier")))
    assert [journal.labels for journal in chosen] == [{"region": "a%2Fb%2Bc", "tier": "%_null"}]
    assert Counter(row["id"] for row in documents_of(store, "orders")) == Counter(range(10))


# Evolution


def test_a_collection_evolves_while_it_is_written(tmp_path: Path) -> None:
    store, other = open_numbers(tmp_path), open_numbers(tmp_path)
    with store.producer() as producer, other.producer() as late:
        producer.append("numbers", {"id": 1, "text": "old"})
        stamped = late.stamp("numbers", {"id": 2, "text": "stamped before"})
        evolved = store.evolve("numbers", "id BIGINT NOT NULL, text STRING, more ARRAY<INT>")
        assert evolved.version == 2
        assert store.evolve("numbers", evolved.schema).version == 2
        producer.append("numbers", {"id": 3, "text": "new", "more": [1]})
        late.send(stamped)
        late.append("numbers", {"id": 4, "more": [2, None]})
    for reader in (store, other, open_store(tmp_path)):
        assert documents_of(reader, "numbers") == [
            {"id": 1, "text": "old", "more": None},
            {"id": 3, "text": "new", "more": [1]},
            {"id": 2, "text": "stamped before", "more": None},
            {"id": 4, "text": None, "more": [2, None]},
        ]
        more = [
            row
            for batch in reader.read(JOURNAL, 0, columns=["more", "id"])
            for row in batch.documents.to_pylist()
        ]
        assert more[:2] == [{"more": None, "id": 1}, {"more": [1], "id": 3}]
    with pytest.raises(IncompatibleSchemaError):
        store.evolve("numbers", "id BIGINT NOT NULL")


def test_a_store_that_does_not_know_of_a_new_column_can_still_roll(tmp_path: Path) -> None:
    """It only acknowledges; the rows before its ACK are of a schema it has not seen."""
    store = open_numbers(tmp_path, segment_bytes_max=1)
    other = open_numbers(tmp_path, segment_bytes_max=1 << 20)
    with store.producer() as producer, other.producer() as second:
        with producer.transaction() as transaction:
            transaction.append("numbers", {"id": 1})
            other.evolve("numbers", "id BIGINT NOT NULL, text STRING, more INT")
            second.append("numbers", {"id": 2, "more": 5})
        assert len(segments(tmp_path)) == 2
        assert "more" in segments(tmp_path)[1].read_text(errors="ignore")
    store.suspend(JOURNAL)
    assert store.probe(JOURNAL).suspended


# Several processes


def test_many_processes_make_the_same_store_collection_and_journals(tmp_path: Path) -> None:
    count = 4
    for turn in range(5):
        folder = tmp_path / str(turn)
        barrier = children.PROCESSES.Barrier(count)
        failures = children.PROCESSES.Queue()
        processes = [
            children.start(children.create_the_same, folder, barrier, failures)
            for _ in range(count)
        ]
        codes = children.end(*processes)
        told = [failures.get() for code in codes if code]
        assert told == []
        store = open_store(folder, create=False)
        assert len(store.journals("same")) == 5
        rows = documents_of(store, "same")
        assert Counter(row["part"] for row in rows) == dict.fromkeys(range(5), count)
        assert len({row["id"] for row in rows}) == count


def test_a_store_that_may_only_be_read_can_be_read(tmp_path: Path) -> None:
    """As another user, who owns nothing of it; for an ordinary user, with all write bits taken."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    try:
        store = open_numbers(folder / "store", segment_bytes_max=1)
        with store.producer() as producer:
            for number in range(3):
                producer.append("numbers", {"id": number})
        store.close()
        folder.chmod(0o755)
        for path in folder.rglob("*"):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        child = os.fork()
        if child == 0:
            read_as_nobody(folder / "store")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        for path in folder.rglob("*"):
            path.chmod(0o755)
        shutil.rmtree(folder)


def read_as_nobody(folder: Path) -> None:
    is_done = False
    try:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        store = open_store(folder, create=False)
        assert not os.access(folder / "collections", os.W_OK)
        assert [row["id"] for row in documents_of(store, "numbers")] == [0, 1, 2]
        assert store.frontier("numbers").journal(JOURNAL, 0) is not None
        with pytest.raises(PermissionError):
            append(store, Writer().documents([3]))
        is_done = True
    except Exception:
        traceback.print_exc()
        raise
    finally:
        os._exit(0 if is_done else 1)
