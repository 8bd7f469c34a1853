"""`penstock backup`: a copy of a live store, whole transactions only."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from pathlib import Path

import click

from penstock.cli.options import address_of, examples, json_option, store_option


@click.command(
    epilog=examples(
        "penstock backup /backups/journals --store file:///data/journals",
        "penstock backup /backups/journals              again: copies only what is new",
        "penstock restore /backups/journals --list",
    )
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@json_option
@store_option
def backup(folder: Path, as_json: bool, store_url: str | None) -> None:
    """Copy a live store into FOLDER.

    Producers and readers go on meanwhile. The copy holds whole transactions: one that is committed
    in some journals and not yet acknowledged in others is left to the next backup. Each run adds a
    point to FOLDER, and copies only what the points before lack; `penstock restore` makes a store
    of any point. Every copied frame is checked: a damaged journal stops the backup, by name.

    Feeds (the queues of streaming queries) are not copied: they are made from journals.
    """
    from penstock.cli import terminal
    from penstock.cli.shuffle_view import sized
    from penstock.journal.upkeep import back_up

    bar = terminal.progress(terminal.messages(), counting=False)
    task = bar.add_task("copying", total=None)
    with bar:
        done = back_up(
            address_of(store_url),
            folder.absolute(),
            lambda at, total: bar.update(task, completed=at, total=total),
        )
    point = done.point
    if as_json:
        said = {
            "point": point.number,
            "journals": len(point.journals),
            "rows": point.rows,
            "bytes_copied": done.bytes_copied,
        }
        click.echo(json.dumps(said, indent=2))
        return
    click.echo(
        f"point {point.number}: {terminal.counted(point.rows, 'row')} in "
        f"{terminal.counted(len(point.journals), 'journal')}, {sized(done.bytes_copied)} copied"
    )
