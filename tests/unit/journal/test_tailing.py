"""A read that goes on where one ended: what it costs, and a journal that is deleted meanwhile."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import pytest

from penstock.journal.errors import UnknownJournalError
from penstock.journal.file import segment
from penstock.journal.file.journal import PLACES_MAX
from penstock.journal.frames import decode_header
from penstock.journal.store import Probe
from tests.unit.journal.journal_files import (
    JOURNAL,
    Writer,
    append,
    ids_of,
    journal_folder,
    open_numbers,
    segments,
)

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.frames import FrameHeader

APPENDS: Final = 100


class Work:
    """Frame headers that are looked at, in all segments."""

    def __init__(self) -> None:
        self.frames = 0

    def decode_header(self, data: bytes) -> FrameHeader:
        self.frames += 1
        return decode_header(data)


@pytest.mark.parametrize("segment_bytes_max", [1 << 20, 2_000])
def test_a_tailing_read_walks_over_each_frame_once(tmp_path: Path, segment_bytes_max: int) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=segment_bytes_max, durability="buffered")
    writer, work = Writer(), Work()
    with patch.object(segment, "decode_header", work.decode_header):
        for number in range(APPENDS):
            append(store, writer.documents([number]))
            before = work.frames
            assert ids_of(store, number) == [number]
            # One is looked at twice: whether it is a large one, and with those beside it.
            assert work.frames - before <= 3, f"of append {number}"
    assert (len(segments(tmp_path)) > 5) == (segment_bytes_max == 2_000)


def test_many_who_tail_a_journal_at_their_own_pace(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    writer, work = Writer(), Work()
    places = dict.fromkeys(range(PLACES_MAX - 1), 0)
    with patch.object(segment, "decode_header", work.decode_header):
        for number in range(APPENDS):
            append(store, writer.documents([number]))
            reader = number % len(places)
            assert ids_of(store, places[reader]) == list(range(places[reader], number + 1))
            places[reader] = number + 1
    # Each begins once at the first frame, and goes on from where it was then.
    first = sum(range(1, len(places) + 1))
    later = sum(len(places) for _ in range(len(places), APPENDS))
    assert work.frames <= first + later + 3 * APPENDS


def test_a_read_that_ends_within_a_frame_goes_on_within_it(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    append(store, Writer().documents(range(10)))
    assert ids_of(store, 0, 4) == [0, 1, 2, 3]
    assert ids_of(store, 4) == [4, 5, 6, 7, 8, 9]
    assert ids_of(store, 10) == []


def test_a_journal_that_is_deleted_is_unknown_where_it_is_open(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    append(store, Writer().documents(range(3)))
    assert ids_of(store) == [0, 1, 2]
    shutil.rmtree(journal_folder(tmp_path))
    for look in (
        store.probe,
        lambda name: list(store.read(name, 0)),
        lambda name: store.states(name, 0),
    ):
        with pytest.raises(UnknownJournalError):
            look(JOURNAL)
    append(store, Writer().documents([7]))
    assert store.probe(JOURNAL) == Probe(0, 1), "it is another one"
    assert ids_of(store) == [7]
