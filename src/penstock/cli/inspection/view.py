"""What was found, for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from penstock.cli import terminal
from penstock.cli.outputs import cell
from penstock.cli.terminal import counted

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from penstock.cli.inspection.folders import FolderReport
    from penstock.report import Report, Row

_DAMAGES_SHOWN: Final = 20


def show_file(console: Console, report: Report) -> None:
    console.print(_headline(report.path, report.kind, sound=not report.damages))
    for damage in report.damages[:_DAMAGES_SHOWN]:
        console.print(Text(f"  damaged: {damage}", style="red"))
    _say_more(console, len(report.damages))
    for note in report.notes:
        console.print(Text(f"  note: {note}", style="dim"))
    for name, value in report.facts.items():
        console.print(Text.assemble((f"  {name.replace('_', ' '):<20}", "dim"), _fact(value)))
    if report.rows:
        console.print(_table(report.rows))
    left = report.rows_total - len(report.rows)
    if left > 0:
        console.print(f"  and {counted(left, 'row')} more; --all shows them")


def show_folder(console: Console, report: FolderReport) -> None:
    sound = not report.damages if report.verified else None
    console.print(_headline(report.path, report.kind, sound=sound))
    for path, damage in report.damages[:_DAMAGES_SHOWN]:
        console.print(Text(f"  damaged: {_below(path, report.path)}: {damage}", style="red"))
    _say_more(console, len(report.damages))
    for path, note in report.notes[:_DAMAGES_SHOWN]:
        console.print(Text(f"  note: {_below(path, report.path)}: {note}", style="dim"))
    numbers = ("files", "bytes", *(("damaged",) if report.verified else ()))
    made = terminal.table("what", *numbers, right=numbers)
    for kind, group in report.groups.items():
        cells = [f"{group.files:,}", f"{group.size_bytes:,}"]
        made.add_row(kind, *cells, *([f"{group.damaged:,}"] if report.verified else []))
    console.print(made)
    if not report.verified:
        console.print("  nothing was read; --verify checks every file")


def _headline(path: Path, kind: str, *, sound: bool | None) -> Text:
    state = {
        True: ("sound", "green"),
        False: ("DAMAGED", "bold red"),
        None: ("not verified", "dim"),
    }[sound]
    return Text.assemble((str(path), "bold"), f": {kind}, ", state)


def _say_more(console: Console, damages: int) -> None:
    if damages > _DAMAGES_SHOWN:
        console.print(Text(f"  and {damages - _DAMAGES_SHOWN} more; --json has all", style="red"))


def _below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _fact(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value):,} of them; --json has all"
    return json.dumps(value, ensure_ascii=False)


def _table(rows: list[Row]) -> Any:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numbers = [
        column
        for column in columns
        if all(isinstance(row.get(column), int | float | None) for row in rows)
    ]
    made = terminal.table(*columns, right=numbers)
    for row in rows:
        made.add_row(*(Text(cell(row.get(column))) for column in columns))
    return made
