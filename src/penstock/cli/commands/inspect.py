"""`penstock inspect`: what a file of ours is, whether it is sound, and what is in it."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.options import debug_option, examples, json_option
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.cli.inspection.folders import FolderReport
    from penstock.report import Report

ROWS_SHOWN: Final = 20


@click.command(
    epilog=examples(
        "penstock inspect /data/journals                          what is in a store",
        "penstock inspect /data/journals --verify                 and whether it is all sound",
        "penstock inspect journals/orders/000/*.segment --limit 5",
        "penstock inspect feeds/*/member-1/floor --json | jq .first_segment",
        "penstock journals frontier orders > now.json && penstock inspect now.json",
    )
)
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=ROWS_SHOWN,
    show_default=True,
    help="Show at most so many rows of each file. All are checked.",
)
@click.option("--all", "every_row", is_flag=True, help="Show all rows.")
@click.option("--verify", is_flag=True, help="Read and check every file of a folder.")
@json_option
@debug_option
@click.pass_context
def inspect(
    ctx: click.Context,
    *,
    paths: tuple[Path, ...],
    limit: int,
    every_row: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Say what each PATH is, whether its checksums hold, and what is in it.

    PATH is any file of a store, a journal, a queue, a feed, a snapshot or a sink, or a frontier as
    JSON or in chunks, wherever it lies now. A folder is summed up; with --verify all files in it
    are read. Nothing is changed or mended.

    The exit code is 1 if something is damaged. An unfinished end that a crash left, and that is
    cut when its journal or queue is opened, is no damage: it is noted.
    """
    from penstock.cli.inspection.kinds import inspect_file

    found: list[Report | FolderReport] = []
    unknown: list[ConfigurationError] = []
    for path in paths:
        try:
            if path.is_dir():
                found.append(_folder(path, verify=verify))
            else:
                found.append(inspect_file(path, None if every_row else limit))
        except ConfigurationError as error:
            unknown.append(error)  # said at the end: one of many must not hide the others
    if not found:
        raise unknown[0]
    if as_json:
        reports = [one.as_json() for one in found]
        click.echo(json.dumps(reports if len(paths) > 1 else reports[0], indent=2, default=str))
    else:
        _show(found)
    if unknown:
        raise unknown[0]
    ctx.exit(1 if any(one.damages for one in found) else 0)


def _folder(path: Path, *, verify: bool) -> FolderReport:
    from penstock.cli import terminal
    from penstock.cli.inspection.folders import inspect_folder

    bar = terminal.progress(terminal.messages())
    task = bar.add_task(f"reading {path.name}", total=None)
    with bar:
        return inspect_folder(
            path,
            verify=verify,
            moved=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _show(found: list[Report | FolderReport]) -> None:
    from penstock.cli import terminal
    from penstock.cli.inspection import view
    from penstock.report import Report

    console = terminal.output()
    for one in found:
        if isinstance(one, Report):
            view.show_file(console, one)
        else:
            view.show_folder(console, one)
