"""A journal's files: segments, the head, and the collection that they are of."""

from __future__ import annotations

import datetime
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.ddl import schema_to_ddl
from penstock.errors import CorruptStorageError
from penstock.ids import Kind
from penstock.journal.collection import Collection
from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.head import DamagedHeadError, Head
from penstock.journal.file.segment import SegmentReader, list_segments, segment_path
from penstock.journal.file.store import parse_collection
from penstock.journal.frames import KIND_ACK, decode_ack, decode_documents, document_schema
from penstock.report import Report, clock_of, moment_of, producer_of, unsealed_note

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.report import Row

    RowsOf = Callable[[pa.RecordBatch], list[Row]]
    from penstock.journal.file.head import Kept, Position, Records
    from penstock.journal.file.segment_header import SegmentHeader
    from penstock.journal.frames import FrameHeader

_KINDS: Final = {kind.value: kind.name for kind in Kind}
_IDENTITY: Final = 3
"""Columns before those of the document."""


def inspect_segment(path: Path, limit: int | None, rows_of: RowsOf) -> Report:
    """`rows_of` makes values of documents that can be shown."""
    report = Report(path, "journal segment", limit)
    # Before the segment: whatever the head counts on is in the file then.
    head = _head_beside(path)
    named = path == segment_path(path.parent, _named_offset(path))
    with SegmentReader(_journal_of(path), path.parent, _named_offset(path), path=path) as reader:
        try:
            # A segment that lies where a journal has it must be that journal's.
            is_placed = named and path.parent.parent.parent.name == "journals"
            header, position = reader.header() if is_placed else reader.stated_header()
        except CorruptJournalError as error:
            report.damaged(error.reason, byte=error.position)
            return report
        _tell(report, header)
        rows = _Rows(report.path, header, rows_of)
        end, offset = _walk(report, reader, rows, (header.first_offset, position))
    if named:
        _compare(report, head, header.first_offset, end, offset)
    else:
        report.notes.append("it is not in a journal's folder: what is missing at its end is unseen")
    return report


def _tell(report: Report, header: SegmentHeader) -> None:
    report.facts |= {
        "journal": header.journal,
        "first_offset": header.first_offset,
        "collection_version": len(header.collection["schemas"]),
        "producers_before": [
            {
                "producer": producer_of(producer),
                "last_commit": clock_of(state.last_commit),
                "max_continue": clock_of(state.max_continue),
                "offset": state.offset,
            }
            for producer, state in sorted(header.states.items())
        ],
    }
    if header.fault is not None:
        report.damaged(f"an earlier row broke the protocol: {header.fault}")


def _walk(
    report: Report, reader: SegmentReader, rows: _Rows, begin: tuple[int, int]
) -> tuple[int, int]:
    """Every frame; gives where the last whole append ends. Behind a payload that is damaged the
    next frame is found, behind a damaged header it is not."""
    frames, last_clock, appended = 0, 0, None
    offset, end = begin
    whole = (end, offset)
    goes_on = False
    try:
        for at, frame in reader.headers(end, offset, reader.size()):
            end, offset = at + frame.frame_bytes, frame.end_offset
            try:
                _, body = reader.frame(at, frame)
                report.add(rows.of(at, frame, body, report.room), frame.rows)
            except CorruptJournalError as error:
                report.damaged(error.reason, byte=error.position)
            except (pa.ArrowException, ValueError) as error:
                report.damaged(f"its rows cannot be read: {error}", byte=at)
            frames, goes_on = frames + 1, frame.goes_on
            last_clock = max(last_clock, frame.last_clock)
            appended = frame.appended_us
            if not goes_on:
                whole = (end, offset)
    except CorruptJournalError as error:
        report.damaged(error.reason, byte=error.position)
    else:
        if goes_on:
            report.damaged("an append is cut short", byte=whole[0])
    report.facts |= {
        "frames": frames,
        "end_offset": whole[1],
        "newest_clock": moment_of(last_clock) if last_clock else None,
        "newest_append": _moment_us(appended),
    }
    report.notes += rows.notes
    return whole


class _Rows:
    """The rows of frames, as far as the collection's schemas are known."""

    def __init__(self, path: Path, header: SegmentHeader, rows_of: RowsOf) -> None:
        self._rows_of = rows_of
        collection = Collection.from_json(header.collection)
        beside = path.parent.parent.parent.parent / "collections" / f"{collection.name}.json"
        if beside.is_file():
            try:
                found = parse_collection(beside.name, beside.read_bytes())
                collection = max(collection, found, key=lambda one: one.version)
            except CorruptStorageError:
                pass  # told when that file is inspected
        self._schemas = [document_schema(schema) for schema in collection.schemas]
        self.notes: list[str] = []

    def of(self, at: int, frame: FrameHeader, body: pa.Buffer, wanted: int) -> list[Row]:
        """Up to as many as are wanted."""
        if frame.kind == KIND_ACK:
            ack = decode_ack(frame, body)
            row = _row(at, frame.first_offset, Kind.ACK, frame.producer, ack.clock)
            return [row | ({"hints": list(ack.hints)} if ack.hints else {})]
        if frame.schema_version > len(self._schemas):
            said = (
                f"rows of schema version {frame.schema_version} cannot be shown: the collection's "
                "file is not beside the journals"
            )
            self.notes += [] if said in self.notes else [said]
            return []
        batch = decode_documents(body, self._schemas[frame.schema_version - 1])
        if batch.num_rows != frame.rows:
            raise ValueError(f"{batch.num_rows} rows are there, and the header says {frame.rows}")
        shown = batch.slice(0, wanted)
        producers, clocks, flags = (
            shown.column(column).to_numpy().tolist() for column in range(_IDENTITY)
        )
        documents = self._rows_of(shown.select(range(_IDENTITY, shown.num_columns)))
        return [
            _row(at, frame.first_offset + number, flags[number], producers[number], clocks[number])
            | (documents[number] if documents else {})
            for number in range(shown.num_rows)
        ]


def _row(at: int, offset: int, kind: int, producer: int, clock: int) -> Row:
    return {
        "_byte": at,
        "_offset": offset,
        "_kind": _KINDS.get(kind & 3, str(kind)),
        "_producer": producer_of(producer),
        "_clock": clock_of(clock),
    }


def _compare(
    report: Report,
    head: Records | None,
    first: int,
    end: int,
    offset: int,
) -> None:
    """Holds the segment's end against the head and the segment behind it. What lies behind the
    durable end of a journal is cut when that is opened, and is no damage."""
    if head is None:
        report.notes.append("its journal has no head: what is missing at its end is unseen")
        return
    written, synced = head.written, head.synced
    following = next((one for one in list_segments(report.path.parent) if one > first), None)
    durable = synced.bytes if synced.segment == first else 0
    if synced.segment > first:
        if following is not None and following != offset and not report.damages:
            report.damaged(f"rows end at {offset}, not {following}", byte=end)
        return
    if end < durable:
        if not report.damages:
            reason = f"the file is shorter than the {durable} bytes that were durable"
            report.damaged(reason, byte=end)
        return
    torn = [damage for damage in report.damages if (damage.byte or 0) >= max(durable, 1)]
    report.damages = [damage for damage in report.damages if damage not in torn]
    report.notes += [
        f"unfinished end at byte {damage.byte:,}: {damage.reason}; an append is under way, or it "
        "is put aside when the journal is opened"
        for damage in torn
    ]
    if not torn and written.segment == first and end != written.bytes:
        report.notes.append(
            "its head says another end: an append is under way, or it is mended when the journal "
            "is opened"
        )


def inspect_head(path: Path, limit: int | None) -> Report:
    report = Report(path, "journal head", limit)
    with path.open("rb") as file:
        head = Head(file.fileno())
        _read_head(report, written=head.written, synced=head.synced)
        segments = list_segments(path.parent)
        # Behind the listing: retention moves it first, and then removes segments.
        _read_head(report, kept=head.kept)
        try:
            report.facts["trust"] = head.all().trust.name.lower()
        except DamagedHeadError as damage:
            if not report.damages:  # else it was one of those
                report.damaged(str(damage))
    report.add({"segment": one, "file": segment_path(path.parent, one).name} for one in segments)
    if report.damages:
        report.notes.append("the journal rebuilds its head from its segments when it is opened")
        return report
    for wanted in (report.facts["kept"]["first_offset"], report.facts["synced"]["segment"]):
        if segments and (wanted < segments[0] or wanted > segments[-1]):
            report.damaged(f"{segment_path(path.parent, wanted).name}: the file is missing")
    if not segments:
        report.damaged("the journal has no segments")
    return report


def _read_head(report: Report, **records: Callable[[], Position | Kept]) -> None:
    for name, read in records.items():
        try:
            report.facts[name] = asdict(read())
        except DamagedHeadError as error:
            report.damaged(error)


def inspect_collection(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "collection", limit, notes=unsealed_note(data))
    try:
        collection = parse_collection(path.name, data)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    report.facts = {
        "collection": collection.name,
        "version": collection.version,
        "key": list(collection.key),
        "partition_by": list(collection.partition_by),
        "retention_seconds": collection.retention_seconds,
        "retention_bytes": collection.retention_bytes,
    }
    report.add(
        {"version": number, "schema": schema_to_ddl(schema)}
        for number, schema in enumerate(collection.schemas, 1)
    )
    return report


def _named_offset(path: Path) -> int:
    stem = path.name.removesuffix(".segment")
    return int(stem) if stem.isdigit() and len(stem) == 20 else 0


def _journal_of(path: Path) -> str:
    """Of a segment in a store: its folder has the name."""
    return f"{path.parent.parent.name}/{path.parent.name.replace('+', '/')}"


def _head_beside(path: Path) -> Records | None:
    try:
        descriptor = os.open(path.parent / "head", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return Head(descriptor).all()
    except DamagedHeadError:
        return None
    finally:
        os.close(descriptor)


def _moment_us(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (epoch + datetime.timedelta(microseconds=microseconds)).isoformat()
