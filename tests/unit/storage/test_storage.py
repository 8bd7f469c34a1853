"""A storage does what a dictionary does whose values are set once, wherever it is."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.storage import Storage, StorageError, StorageFullError
from penstock.storage import storage as storage_module
from tests.unit.storage.places import KINDS, memory_storage, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.epoch.records import Records
    from penstock.storage import Piece

NAMES = ("a", "ab", "b/a", "b/ab", "b/c/d", "b/c/e", "c-1/x")


@pytest.mark.parametrize("kind", KINDS)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("create", "pieces", "empty", "delete", "delete-all")),
            st.sampled_from(NAMES),
            st.binary(max_size=20),
        ),
        max_size=15,
    ),
    prefix=st.sampled_from(("", "a", "b", "b/", "b/a", "b/c/", "c-1/x", "z/")),
)
@settings(max_examples=60)
def test_as_a_dictionary(kind: str, steps: list[tuple[str, str, bytes]], prefix: str) -> None:
    model: dict[str, bytes] = {}
    with storage_of(kind) as storage:
        records: Records = storage
        for step, name, value in steps:
            if step == "create":
                assert records.create(name, value) == (name not in model)
                model.setdefault(name, value)
            elif step == "pieces":
                pieces: list[Piece] = [value[:3], memoryview(value[3:5]), pa.py_buffer(value[5:])]
                assert storage.create_from(name, pieces) == (name not in model)
                model.setdefault(name, value)
            elif step == "empty":
                assert storage.create_empty(name) == (name not in model)
                model.setdefault(name, b"")
            elif step == "delete":
                records.delete(name)
                model.pop(name, None)
            else:
                storage.delete_all([name, "ab"])
                model.pop(name, None)
                model.pop("ab", None)
        for name in (*NAMES, "b", "b/c", "none", "a/b"):
            value_then = model.get(name)
            assert records.read(name) == value_then
            buffer, pieces_read = storage.read_buffer(name), storage.read_pieces(name)
            if value_then is None:
                assert (buffer, pieces_read, storage.size_bytes(name)) == (None, None, None)
            else:
                assert buffer is not None
                assert pieces_read is not None
                assert buffer.to_pybytes() == value_then
                assert b"".join(piece.to_pybytes() for piece in pieces_read) == value_then
                assert storage.size_bytes(name) == len(value_then)
        listed = sorted(name for name in model if name.startswith(prefix))
        assert records.names(prefix) == listed
        sizes = [(entry.name, entry.size_bytes) for entry in storage.entries(prefix)]
        assert sizes == [(name, len(model[name])) for name in listed]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_within(kind: str) -> None:
    with storage_of(kind) as storage:
        inner = storage.within("x/y")
        assert inner.create("z/1", b"inner")
        assert storage.create("x/z", b"outer")
        assert storage.names() == ["x/y/z/1", "x/z"]
        assert inner.names() == ["z/1"]
        assert inner.names("z/") == ["z/1"]
        assert storage.read("x/y/z/1") == inner.read("z/1") == b"inner"
        inner.delete("z/1")
        assert storage.names() == ["x/z"]
        with pytest.raises(LocalProtocolError):
            storage.within("..")
        with pytest.raises(LocalProtocolError):
            inner.read("../z")
        with pytest.raises(LocalProtocolError):
            inner.names("../")


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_that_end_in_an_exception_leave_nothing(kind: str) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half of"
        raise RuntimeError("the source broke")

    with storage_of(kind) as storage:
        with pytest.raises(RuntimeError, match="the source broke"):
            storage.create_from("a", pieces())
        assert storage.read("a") is None
        assert storage.names() == []
        assert storage.create("a", b"whole")


@pytest.mark.parametrize("kind", KINDS)
def test_large_files_come_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "PIECE_BYTES", 10)
    with storage_of(kind) as storage:
        storage.create("a", bytes(range(25)))
        pieces = storage.read_pieces("a")
        assert pieces is not None
        assert [piece.to_pybytes() for piece in pieces] == [
            bytes(range(10)), bytes(range(10, 20)), bytes(range(20, 25)),
        ]  # fmt: skip


def test_of_many_who_create_a_name_on_a_disk_one_succeeds() -> None:
    with storage_of("local") as storage:
        assert storage.creates_atomically
        for turn in range(20):
            created: list[bytes] = []
            start = threading.Barrier(4)

            def create(value: bytes, turn: int = turn, start: threading.Barrier = start) -> None:
                start.wait()
                if storage.create(f"decision-{turn}", value * 1_000):
                    created.append(value * 1_000)  # noqa: B023 - read before the next turn

            threads = [
                threading.Thread(target=create, args=(value,)) for value in (b"a", b"b", b"c", b"d")
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert created == [storage.read(f"decision-{turn}")]


def test_elsewhere_creation_is_not_atomic_and_says_so() -> None:
    assert not memory_storage().creates_atomically


def test_places(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    for place in (folder, str(folder), folder.as_uri()):
        storage = Storage.open(place)
        assert storage.create("a/b", b"here")
        assert (folder / "a" / "b").read_bytes() == b"here"
        assert storage.place == str(folder)
        assert storage.creates_atomically
        storage.delete("a/b")


@pytest.mark.parametrize("place", ["", "nothing://bucket", "s3://", "s3://bucket/x?nothing=1"])
def test_places_that_are_none(place: str) -> None:
    with pytest.raises(ConfigurationError):
        Storage.open(place)


def test_a_place_shows_no_keys() -> None:
    options = "endpoint_override=127.0.0.1:9&scheme=http"
    storage = Storage.open(f"s3://key:secret@bucket/folder?{options}")
    assert storage.place == f"s3://bucket/folder?{options}"
    with pytest.raises(ConfigurationError) as raised:
        Storage.open("s3://key:secret@bucket/folder?nothing=1")
    assert "secret" not in str(raised.value)
    assert "s3://bucket/folder" in str(raised.value)


def test_errors_pickle_and_say_what_to_do() -> None:
    error = StorageFullError("write", "a/b", "here", "No space left on device")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert isinstance(again, StorageError)
    assert str(error) == (
        "cannot write a/b in here: No space left on device; nothing is half written; "
        "make room there, or raise the limit, then try again"
    )
