"""Frontiers: as JSON, as chunks, and as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptStorageError
from penstock.frontier import FrontierTextError, decode_chunks, from_json
from penstock.frontier.chunks import split_chunks
from penstock.report import NO_CHECKSUM, Report, clock_of

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.frontier import Frontier
    from penstock.report import Row


def inspect_json(path: Path, limit: int | None) -> Report:
    report = Report(path, "frontier (JSON)", limit, notes=[NO_CHECKSUM])
    try:
        show_frontier(report, from_json(path.read_text(encoding="utf-8")))
    except (FrontierTextError, UnicodeDecodeError) as error:
        report.damaged(error)
    return report


def inspect_chunks(path: Path, limit: int | None) -> Report:
    report = Report(path, "frontier (chunks)", limit)
    try:
        show_frontier(report, decode_chunks(split_chunks(path.read_bytes())))
    except CorruptStorageError as error:
        report.damaged(error)
    return report


def show_frontier(report: Report, frontier: Frontier) -> None:
    report.facts |= {"journals": frontier.journal_count, "entries": frontier.entry_count}
    report.facts |= {
        name: value
        for name, value in (
            ("flushed_lsn", frontier.flushed_lsn.tolist()),
            ("backfill_begin", _clocks(frontier.backfill_begin)),
            ("backfill_complete", _clocks(frontier.backfill_complete)),
            ("gap_floor", _clocks(frontier.gap_floor)),
        )
        if value
    }
    report.add(frontier_rows(frontier, report.room), frontier.entry_count)


def frontier_rows(frontier: Frontier, wanted: int) -> list[Row]:
    rows: list[Row] = []
    for journal in frontier.journals():
        if len(rows) >= wanted:
            break
        rows += [
            {
                "journal": journal.journal,
                "binding": journal.binding,
                "producer": str(entry.producer),
                "last_commit": clock_of(entry.last_commit),
                "hinted_commit": clock_of(entry.hinted_commit) if entry.hinted_commit else None,
                "offset": entry.offset,
            }
            for entry in journal.producers
        ]
    return rows


def _clocks(clocks: Any) -> dict[str, str]:
    return {str(binding): clock_of(clock) for binding, clock in sorted(clocks.items())}
