"""A Queue's files: segments of blocks, and the floor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.cli.inspection.documents import rows_of
from penstock.errors import PenstockError
from penstock.report import Report, clock_of, producer_of
from penstock.shuffle.parcels import CLOCK, PRODUCER, READ, TIME
from penstock.shuffle.queue.block import DamagedBlockError
from penstock.shuffle.queue.errors import CorruptQueueError
from penstock.shuffle.queue.segment import (
    HEADER_BYTES,
    Floor,
    OpenSegment,
    ReadIds,
    SegmentHeader,
    SegmentReplacedError,
    list_segments,
    lsn_of,
    read_floor,
    segment_path,
)
from penstock.shuffle.resume import SNAPSHOTS, find_resume
from penstock.snapshot import SnapshotStore
from penstock.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.report import Row
    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.segment import Loaded

_NAME: Final = re.compile(r"([0-9a-f]{12})\.queue")
_MEMBER: Final = re.compile(r"member-([1-9][0-9]*)")


def inspect_segment(path: Path, limit: int | None) -> Report:
    try:
        return _inspect_segment(path, limit)
    except SegmentReplacedError:  # compressed meanwhile, which happens once
        return _inspect_segment(path, limit)


def _inspect_segment(path: Path, limit: int | None) -> Report:
    report = Report(path, "queue segment", limit)
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
    try:
        header = SegmentHeader.decode(data)
    except DamagedBlockError as error:
        report.damaged(error, byte=0)
        return report
    report.facts = {
        "queue": f"{header.generation:016x}",
        "segment": header.segment,
        "compressed": header.compressed,
        "blocks_before": header.blocks_before,
    }
    named = _NAME.fullmatch(path.name)
    try:
        segment = OpenSegment(
            path.parent,
            header.segment if named is None else int(named[1], 16),
            _generation(path) or header.generation,
            ReadIds(),
            path=path,
        )
    except CorruptQueueError as error:
        report.damaged(error.reason, byte=0)
        return report
    _walk(report, segment)
    if named is not None:
        _compare(report, segment)
    return report


def _generation(path: Path) -> int | None:
    """Of the queue that the folder says it is. A damaged floor is told when it is inspected."""
    try:
        floor = read_floor(path.parent)
    except CorruptQueueError:
        return None
    return None if floor is None else floor.generation


def _walk(report: Report, segment: OpenSegment) -> None:
    """Every block. Behind a part that is damaged the next is found, behind a header it is not."""
    while segment.end < segment.size_bytes:
        number = len(segment.loaded)
        try:
            segment.load(number + 1)
        except CorruptQueueError as error:
            report.damaged(error.reason, byte=segment.end, block=error.block)
            break
        _block(report, segment.loaded[-1])
    report.facts |= {
        "blocks": len(segment.loaded),
        "last_lsn": f"{lsn_of(segment.segment, len(segment.loaded) - 1):#x}"
        if segment.loaded
        else None,
        # Rows of these in blocks before are shown here, and read elsewhere.
        "vnodes_given_away": len({one for loaded in segment.loaded for one in loaded.block.gives}),
    }


def _block(report: Report, loaded: Loaded) -> None:
    block = loaded.block
    rows: list[Row] = []
    try:
        order = loaded.order()
    except CorruptQueueError as error:
        order = None
        report.damaged(error.reason, byte=block.order_begin, block=block.number)
    is_whole = True
    for part in block.parts:
        try:
            batch = loaded.decode(part)
        except CorruptQueueError as error:
            report.damaged(error.reason, byte=part.begin, block=block.number)
            is_whole = False
            continue
        if report.room:
            named = {"_lsn": f"{block.lsn:#x}", "_binding": part.stage.binding}
            named |= {"_kind": "rollback" if part.stage.is_rollbacks else "document"}
            rows += [named | _shown(row, loaded, part.stage) for row in rows_of(batch)]
    if order is not None and is_whole and report.room:
        rows = [rows[row] for row in order.tolist()]
    report.add(rows, block.rows)


def _shown(row: Row, loaded: Loaded, stage: Stage) -> Row:
    """A row with names for numbers."""
    shown: dict[str, Any] = {}
    clocks = ("after", "through") if stage.is_rollbacks else (CLOCK, TIME)
    for name, value in row.items():
        if name == READ:
            shown["_journal"] = loaded.names[value][1]
        elif name == PRODUCER:
            shown[name] = producer_of(value)
        elif name in clocks:
            shown[name] = clock_of(value)
        else:
            shown[name] = value
    return shown


def _compare(report: Report, segment: OpenSegment) -> None:
    """Holds the count of blocks against the next segment, and damage against the LSN that the
    newest epoch counts on: what is behind that is cut off when the queue is opened."""
    folder, number = report.path.parent, segment.segment
    following = segment_path(folder, number + 1)
    if following.exists() and not report.damages:
        try:
            with following.open("rb") as file:
                blocks = SegmentHeader.decode(file.read(HEADER_BYTES)).blocks_before
            segment.load(blocks)
        except DamagedBlockError:
            pass  # told when that segment is inspected
        except CorruptQueueError as error:
            report.damaged(error.reason, byte=segment.end, block=error.block)
    needed = needed_lsn(folder)
    if needed is None:
        return
    behind = [
        damage
        for damage in report.damages
        if damage.block is not None and lsn_of(number, damage.block) > needed
    ]
    report.damages = [damage for damage in report.damages if damage not in behind]
    report.notes += [
        f"behind the newest epoch, {damage}; cut off when the queue is opened" for damage in behind
    ]
    if not report.damages and segment.loaded and number == needed >> 16:
        try:
            segment.load((needed & 0xFFFF) + 1)
        except CorruptQueueError as error:
            report.damaged(error.reason, byte=segment.end, block=error.block)


def needed_lsn(folder: Path) -> int | None:
    """The LSN that the newest committed epoch has for this queue, if its feed is beside it."""
    named = _MEMBER.fullmatch(folder.name)
    cluster = folder.parent / "cluster"
    if named is None or not cluster.is_dir():
        return None
    try:
        place = Storage.open(cluster)
        newest = find_resume(place).newest.number
        if not newest:
            return None
        store = SnapshotStore(place.within(SNAPSHOTS), int(named[1]))
        found = store.load(newest).attributes.get("lsn")
    except PenstockError:
        return None
    return found if isinstance(found, int) else None


def inspect_floor(path: Path, limit: int | None) -> Report:
    report = Report(path, "queue floor", limit)
    # Before the floor is read: it rises first, and then segments below it are removed.
    segments = list_segments(path.parent)
    try:
        floor = Floor.decode(path.read_bytes())
    except DamagedBlockError as error:
        report.damaged(error, byte=0)
        return report
    report.facts = {
        "queue": f"{floor.generation:016x}",
        "first_segment": floor.first_segment,
        "consumed_lsn": f"{floor.lsn:#x}",
    }
    report.add(
        {
            "segment": number,
            "file": segment_path(path.parent, number).name,
            "needed": number >= floor.first_segment,
        }
        for number in segments
    )
    if segments:
        wanted = np.arange(floor.first_segment, segments[-1] + 1)
        for number in np.setdiff1d(wanted, segments).tolist():
            report.damaged(f"{segment_path(path.parent, number).name}: the file is missing")
    return report
