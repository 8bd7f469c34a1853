"""What crashed processes left in a store of files, for whoever asks after it."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.head import Head
from penstock.journal.file.repair import Unrest, is_journal, list_cuts, unrest
from penstock.journal.file.segment import SegmentReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOKS_MIN, LOOKS_MAX, LOOK_SECONDS = 3, 20, 0.05
"""An append takes a few milliseconds. Who is seen in one twice was killed there, or is paused."""
SEGMENTS_LOOKED_AT: Final = 20
"""Those written last: of thousands of journals the others are older."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a journal."""

    journal: str
    folder: Path
    unrest: Unrest | None
    """What is wrong with it."""
    cuts: tuple[Path, ...]
    """Torn ends of it that were put aside."""


def find_ends(root: Path, *, to_disk: bool) -> Iterator[End]:
    """Of every journal."""
    for folder in sorted((root / "journals").glob("*/*")):
        if is_journal(folder):
            journal = f"{folder.parent.name}/{folder.name.replace('+', '/')}"
            found = unrest_of(folder, to_disk=to_disk)
            yield End(journal, folder, found, tuple(list_cuts(folder)))


def unrest_of(folder: Path, *, to_disk: bool) -> Unrest | None:
    """What is wrong with a journal's end, if something is. An append may be under way: so it is
    only believed if nothing changes for a while."""
    before, found = None, _look(folder, to_disk=to_disk)
    looks = 0
    while found is not None and (looks < LOOKS_MIN or found != before):
        if looks == LOOKS_MAX:
            return None  # somebody appends all the time, and so has mended what there was
        time.sleep(LOOK_SECONDS)
        before, found, looks = found, _look(folder, to_disk=to_disk), looks + 1
    return found


def _look(folder: Path, *, to_disk: bool) -> Unrest | None:
    try:
        descriptor = os.open(folder / "head", os.O_RDONLY)
    except FileNotFoundError:
        return Unrest("its head is missing")
    try:
        return unrest(Head(descriptor), folder, to_disk=to_disk)
    finally:
        os.close(descriptor)


def newest_clock(root: Path) -> int:
    """Of the segments that were written last. 0 if there is no document."""
    segments = sorted(
        (root / "journals").glob("*/*/*.segment"), key=lambda path: path.stat().st_mtime
    )
    newest = 0
    for path in segments[-SEGMENTS_LOOKED_AT:]:
        with (
            contextlib.suppress(CorruptJournalError, FileNotFoundError),  # an unfinished end
            SegmentReader(path.parent.name, path.parent, int(path.stem)) as reader,
        ):
            header, position = reader.stated_header()
            for _, frame in reader.headers(position, header.first_offset, reader.size()):
                newest = max(newest, frame.last_clock)
    return newest
