"""Killed appenders, power cuts and altered bytes: what was synced is kept, or its loss is told."""

from __future__ import annotations

import os
import signal
import struct
from typing import TYPE_CHECKING

import pytest

from penstock.ids import Kind
from penstock.journal import Collection, OpenStore
from penstock.journal.errors import AppendFailedError, CorruptJournalError
from penstock.journal.file import head as head_module
from penstock.journal.frames import FRAME_HEADER
from penstock.journal.store import Probe
from tests.unit.journal import journal_children as children
from tests.unit.journal.journal_files import (
    JOURNAL,
    NUMBERS,
    Writer,
    append,
    fast_folder,
    ids_of,
    journal_folder,
    open_numbers,
    segments,
)

if TYPE_CHECKING:
    from pathlib import Path

KILLED = [-signal.SIGKILL]


@pytest.fixture(autouse=True)
def _a_damaged_head_is_believed_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "_READ_TRIES_MAX", 3)


class Files:
    """A copy of all files of the journal, to be put back."""

    def __init__(self, folder: Path) -> None:
        self.folder = journal_folder(folder)
        self.contents = {path: path.read_bytes() for path in self.folder.iterdir()}

    def restore(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        for path, data in self.contents.items():
            path.write_bytes(data)


def flip(path: Path, place: int, bit: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def frame_starts(path: Path) -> list[int]:
    """The positions of the frames, and the end: by the layout alone, not by the code."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<I", data, 12)
    starts = [24 + header_bytes]
    while starts[-1] < len(data):
        (payload_bytes,) = struct.unpack_from("<I", data, starts[-1] + 12)
        starts.append(starts[-1] + FRAME_HEADER.size + payload_bytes)
    return starts


# Torn tails


def test_a_tail_torn_at_any_byte_is_cut_and_the_journal_goes_on() -> None:
    with fast_folder() as folder:
        store = open_numbers(folder)
        writer = Writer()
        for number in range(3):
            append(store, writer.documents([number]))
        store.append(JOURNAL, writer.documents([3, 4]), None)
        store.close()
        files = Files(folder)
        (segment,) = segments(folder)
        *_, begin, end = frame_starts(segment)
        for size in range(begin, end):
            os.truncate(segment, size)
            store = open_numbers(folder)
            assert ids_of(store) == [0, 1, 2]
            assert append(store, Writer().documents([7])) == 3
            assert ids_of(store) == [0, 1, 2, 7]
            store.close()
            assert ids_of(open_numbers(folder)) == [0, 1, 2, 7]
            files.restore()


def test_an_unsynced_tail_with_any_byte_altered_is_cut() -> None:
    """After a power cut a file can have its size and not its bytes."""
    with fast_folder() as folder:
        store = open_numbers(folder)
        writer = Writer()
        append(store, writer.documents([0, 1]))
        store.append(JOURNAL, writer.documents([2]), None)
        store.append(JOURNAL, writer.documents([3]), None)
        store.close()
        files = Files(folder)
        (segment,) = segments(folder)
        *_, synced, third, end = frame_starts(segment)
        for place in range(synced, end):
            flip(segment, place)
            store = open_numbers(folder)
            kept = [0, 1] if place < third else [0, 1, 2]
            assert append(store, Writer().documents([7])) == len(kept)
            assert ids_of(store) == [*kept, 7]
            store.close()
            files.restore()


@pytest.mark.parametrize("garbage", [b"\0", b"PSF1", b"PSF1" + b"\xff" * 200, os.urandom(1_000)])
def test_garbage_after_the_end_is_cut(tmp_path: Path, garbage: bytes) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0, 1]))
    with segments(tmp_path)[0].open("ab") as file:
        file.write(garbage)
    # By a store that has the journal open, and by one that opens it.
    assert append(store, Writer().documents([2])) == 2
    with segments(tmp_path)[0].open("ab") as file:
        file.write(garbage)
    assert ids_of(open_numbers(tmp_path)) == [0, 1, 2]
    assert segments(tmp_path)[0].stat().st_size == frame_starts(segments(tmp_path)[0])[-1]


def test_a_frame_of_another_offset_is_not_taken_for_the_next(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    store.close()
    (segment,) = segments(tmp_path)
    begin, end = frame_starts(segment)
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[begin:end])
    store = open_numbers(tmp_path)
    assert ids_of(store) == [0]
    assert append(store, Writer().documents([1])) == 1
    assert ids_of(store) == [0, 1]


# Altered bytes in what was synced


def test_a_bit_flipped_anywhere_is_told_and_never_returned() -> None:
    with fast_folder() as folder:
        store = open_numbers(folder, segment_bytes_max=1_200)
        writer = Writer()
        number = 0
        while len(segments(folder) if number else []) < 2:
            append(store, writer.documents([number, number + 1]))
            number += 2
        append(store, [writer.ack(hints=("other/000",))])
        model = ids_of(store)
        store.close()
        files = Files(folder)
        for segment in segments(folder):
            starts = frame_starts(segment)
            for place in range(segment.stat().st_size):
                flip(segment, place)
                check_flipped(folder, segment, place, starts, model)
                files.restore()


def check_flipped(
    folder: Path, segment: Path, place: int, starts: list[int], model: list[int | None]
) -> None:
    store = open_numbers(folder, segment_bytes_max=1_200)
    found: list[int | None] = []
    batches = store.read(JOURNAL, 0)
    with pytest.raises(CorruptJournalError) as caught:
        found.extend(number for batch in batches for number in batch.documents["id"].to_pylist())
    error = caught.value
    frame = max((start for start in starts if start <= place), default=0)
    assert (error.journal, error.segment, error.position) == (JOURNAL, segment.name, frame)
    assert f"segment {segment.name} is damaged at byte {frame}" in str(error)
    assert found == model[: len(found)]
    store.close()


def test_rows_before_and_after_the_damage_can_still_be_read(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1)
    writer = Writer()
    for number in range(4):
        append(store, writer.documents([number]))
    flip(segments(tmp_path)[1], segments(tmp_path)[1].stat().st_size - 1)
    assert ids_of(store, 0, 1) == [0]
    assert ids_of(store, 2) == [2, 3]
    with pytest.raises(CorruptJournalError, match="rows from 1"):
        ids_of(store, 1)


def test_a_segment_of_another_journal_is_not_taken(tmp_path: Path) -> None:
    stores = [open_numbers(tmp_path / name) for name in ("a", "b")]
    wide = Collection.define("wide", NUMBERS.schema, "id")
    for store in stores:
        store.create(wide)
        append(store, Writer().documents([1]))
        append(store, Writer().documents([2]), "wide/000")
    wrong = tmp_path / "b" / "journals" / "wide" / "000" / segments(tmp_path / "a")[0].name
    segments(tmp_path / "a")[0].write_bytes(wrong.read_bytes())
    with pytest.raises(CorruptJournalError, match="this is the segment 0 of journal wide/000"):
        ids_of(stores[0])


@pytest.mark.parametrize("missing", [0, 1, 2, 4])
def test_a_missing_segment_is_told(tmp_path: Path, missing: int) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1)
    writer = Writer()
    for number in range(5):
        append(store, writer.documents([number]))
    segments(tmp_path)[missing].unlink()
    for reader in (store, open_numbers(tmp_path)):
        with pytest.raises(CorruptJournalError):
            ids_of(reader)
    if missing < 4:
        assert ids_of(open_numbers(tmp_path), missing + 1) == list(range(missing + 1, 5))
    else:
        with pytest.raises(CorruptJournalError, match="the file is missing"):
            append(open_numbers(tmp_path), writer.documents([9]))


def test_a_journal_without_any_segment_is_told(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([1]))
    store.close()
    segments(tmp_path)[0].unlink()
    with pytest.raises(CorruptJournalError, match="the file is missing"):
        ids_of(open_numbers(tmp_path))


def test_a_synced_file_that_became_shorter_is_told(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    append(store, Writer().documents([1]))
    store.close()
    (segment,) = segments(tmp_path)
    os.truncate(segment, segment.stat().st_size - 1)
    with pytest.raises(CorruptJournalError, match=r"shorter than the .* bytes that were durable"):
        ids_of(open_numbers(tmp_path))


# Heads


@pytest.mark.parametrize("rolled", [False, True])
def test_a_head_damaged_at_any_byte_is_rebuilt(rolled: bool) -> None:
    with fast_folder() as folder:
        store = open_numbers(folder, segment_bytes_max=1 if rolled else 1 << 20)
        writer = Writer()
        for number in range(3):
            append(store, writer.documents([number]))
        store.close()
        files = Files(folder)
        head = journal_folder(folder) / "head"
        for place in range(head.stat().st_size):
            flip(head, place)
            store = open_numbers(folder)
            assert store.probe(JOURNAL) == Probe(0, 3), place
            assert ids_of(store) == [0, 1, 2]
            assert append(store, Writer().documents([3])) == 3
            store.close()
            assert ids_of(open_numbers(folder)) == [0, 1, 2, 3]
            files.restore()


@pytest.mark.parametrize("size", [0, 1, 40, 191])
def test_a_head_cut_short_is_rebuilt(tmp_path: Path, size: int) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0, 1]))
    store.close()
    os.truncate(journal_folder(tmp_path) / "head", size)
    store = open_numbers(tmp_path)
    assert store.probe(JOURNAL) == Probe(0, 2)
    assert append(store, Writer().documents([2])) == 2
    assert ids_of(store) == [0, 1, 2]


def test_a_damaged_head_does_not_bring_back_what_was_dropped(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1)
    for number in range(4):
        append(store, Writer().documents([number]))
    store.drop_before(JOURNAL, 2)
    store.close()
    flip(journal_folder(tmp_path) / "head", 130)
    assert open_numbers(tmp_path).probe(JOURNAL) == Probe(2, 4)


@pytest.mark.parametrize("segment_bytes_max", [1 << 20, 2_000, 1])
def test_after_a_power_cut_an_older_head_loses_nothing(segment_bytes_max: int) -> None:
    """The head is not synced with every append: after a power cut any of its states may be found,
    and all rows that were acknowledged since must be there for the first who looks."""
    with fast_folder() as folder:
        store = open_numbers(folder, segment_bytes_max=segment_bytes_max)
        head = journal_folder(folder) / "head"
        writer = Writer()
        older = []
        for number in range(8):
            append(store, writer.documents([number * 2, number * 2 + 1]))
            older.append(head.read_bytes())
        store.close()
        files = Files(folder)
        for data in older:
            head.write_bytes(data)
            store = open_numbers(folder, segment_bytes_max=segment_bytes_max)
            assert ids_of(store) == list(range(16))
            assert store.probe(JOURNAL) == Probe(0, 16)
            assert append(store, Writer().documents([16])) == 16
            assert ids_of(store) == list(range(17))
            store.close()
            files.restore()


def test_a_head_ahead_of_the_file_is_taken_back_to_what_is_there() -> None:
    """The newer head reached the disk in a power cut, and the rows that were not synced did not."""
    with fast_folder() as folder:
        store = open_numbers(folder)
        append(store, Writer().documents([0, 1]))
        size = segments(folder)[0].stat().st_size
        store.append(JOURNAL, Writer().documents([2, 3, 4]), None)
        store.close()
        os.truncate(segments(folder)[0], size)
        store = open_numbers(folder)
        assert store.probe(JOURNAL) == Probe(0, 2)
        assert append(store, Writer().documents([9])) == 2
        assert ids_of(store) == [0, 1, 9]


# Killed appenders


@pytest.mark.parametrize("has_it_open", [True, False])
@pytest.mark.parametrize("segment_bytes_max", [1 << 20, 1])
def test_an_appender_killed_before_the_head_knew(
    tmp_path: Path, has_it_open: bool, segment_bytes_max: int
) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=segment_bytes_max)
    append(store, Writer().documents([0, 1]))
    process = children.start(
        children.die_before_the_head_is_written, tmp_path, [2, 3, 4], segment_bytes_max
    )
    assert children.end(process) == KILLED
    if not has_it_open:
        store.close()
        store = open_numbers(tmp_path, segment_bytes_max=segment_bytes_max)
    # Its frames are whole, and stay.
    assert append(store, Writer().documents([5])) == 5
    assert ids_of(store) == [0, 1, 2, 3, 4, 5]
    assert store.probe(JOURNAL) == Probe(0, 6)


@pytest.mark.parametrize("written_bytes", [1, 47, 48, 100])
def test_an_appender_killed_in_its_write(tmp_path: Path, written_bytes: int) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0, 1]))
    process = children.start(
        children.die_in_the_middle_of_a_write, tmp_path, [2, 3, 4], written_bytes
    )
    assert children.end(process) == KILLED
    assert append(store, Writer().documents([5])) == 2
    assert ids_of(store) == [0, 1, 5]


@pytest.mark.parametrize("has_it_open", [True, False])
def test_an_appender_killed_with_a_new_segment(tmp_path: Path, has_it_open: bool) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=1)
    append(store, Writer().documents([0, 1], Kind.CONTINUE))
    process = children.start(children.die_with_a_new_segment, tmp_path, [2], 1)
    assert children.end(process) == KILLED
    assert len(segments(tmp_path)) == 2
    if not has_it_open:
        store = open_numbers(tmp_path, segment_bytes_max=1)
    assert ids_of(store) == [0, 1]
    assert append(store, Writer().documents([3])) == 2
    assert append(store, Writer().documents([4])) == 3
    assert ids_of(store) == [0, 1, 3, 4]
    assert [int(path.stem) for path in segments(tmp_path)] == [0, 2, 3]
    assert len(store.states(JOURNAL, 2)[1]) == 1


@pytest.mark.parametrize("has_it_open", [True, False])
def test_an_appender_killed_after_retention_dropped_the_synced_segment(
    tmp_path: Path, has_it_open: bool
) -> None:
    """The head's `synced` then points into a file that is gone."""
    collection = Collection.define("numbers", NUMBERS.schema, "id", retention_bytes=1)
    store = open_numbers(tmp_path, segment_bytes_max=1, collection=collection)
    append(store, Writer().documents([0, 1]))
    process = children.start(children.die_before_the_head_is_written, tmp_path, [2], 1, collection)
    assert children.end(process) == KILLED
    assert [int(path.stem) for path in segments(tmp_path)] == [2]
    if not has_it_open:
        store = open_numbers(tmp_path, segment_bytes_max=1, collection=collection)
        assert ids_of(store, 2) == [2]
    assert append(store, Writer().documents([3])) == 3
    assert ids_of(store, 3) == [3]


# A disk that refuses


class FullDisk:
    """Stands before `os.pwritev`: takes some bytes of the next write, and then no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, taken_bytes: int) -> None:
        self.taken_bytes = taken_bytes
        real = os.pwritev

        def pwritev(descriptor: int, views: list[memoryview], at: int) -> int:
            if self.taken_bytes:
                part = b"".join(views)[: self.taken_bytes]
                self.taken_bytes = 0
                return real(descriptor, [part], at)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwritev", pwritev)


@pytest.mark.parametrize("taken_bytes", [0, 10, 60])
def test_an_append_that_the_disk_refuses_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_bytes: int
) -> None:
    store = open_numbers(tmp_path)
    writer = Writer()
    append(store, writer.documents([0]))
    before = segments(tmp_path)[0].read_bytes()
    with monkeypatch.context() as patched:
        FullDisk(patched, taken_bytes)
        with pytest.raises(AppendFailedError, match=r"No space left on device. Nothing of this"):
            append(store, writer.documents([1, 2]))
    assert segments(tmp_path)[0].read_bytes() == before
    assert append(store, writer.documents([3])) == 1
    assert ids_of(store) == [0, 3]


def test_bytes_written_in_many_small_steps_arrive_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def pwritev(descriptor: int, views: list[memoryview], at: int) -> int:
        return real(descriptor, [b"".join(views)[:7]], at)

    monkeypatch.setattr(os, "pwritev", pwritev)
    store: OpenStore = open_numbers(tmp_path)
    append(store, [*Writer().documents([0, 1]), *Writer().documents([2])])
    assert ids_of(store) == [0, 1, 2]
