"""`penstock restore`: a store out of a backup."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from pathlib import Path

import click

from penstock.cli.options import address_of, examples, json_option, store_option


@click.command(
    epilog=examples(
        "penstock restore /backups/journals --store file:///data/restored",
        "penstock restore /backups/journals --list",
        "penstock restore /backups/journals --check              is the backup sound?",
        "penstock restore /backups/journals --point 3 --store /data/restored",
    )
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--point", type=click.IntRange(min=1), help="Which one.  [default: the newest]")
@click.option("--list", "listing", is_flag=True, help="Show the points of the backup.")
@click.option("--check", is_flag=True, help="Read and check a point, and restore nothing.")
@json_option
@store_option
def restore(
    *,
    folder: Path,
    point: int | None,
    listing: bool,
    check: bool,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Make a store out of the backup in FOLDER.

    The store must not exist yet. Every frame is checked on the way; if one is damaged, the command
    names it, and no store is made. Transactions that were open at the point are rolled back.

    Queries that read the old store begin with a new checkpoint: rows that they have read may be
    missing in the restored one.
    """
    from penstock.cli import terminal
    from penstock.journal.upkeep import check_point
    from penstock.journal.upkeep import restore as restore_store

    if listing:
        _list(folder, as_json=as_json)
        return
    bar = terminal.progress(terminal.messages())
    task = bar.add_task("checking" if check else "restoring", total=None)

    def moved(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    if check:
        with bar:
            sound = check_point(folder, point, moved)
        said = {"point": sound.number, "rows": sound.rows, "sound": True}
        line = f"point {sound.number} is sound: {terminal.counted(sound.rows, 'row')}"
    else:
        if not store_url:
            raise click.UsageError("where to? Say --store file:///data/restored")
        with bar:
            done = restore_store(folder, address_of(store_url), point, moved)
        said = {
            "point": done.point.number,
            "rows": done.point.rows,
            "hidden": done.hidden,
            "rolled_back": done.rolled_back,
        }
        left_out = done.hidden + done.rolled_back
        line = (
            f"restored point {done.point.number}: {terminal.counted(done.point.rows, 'row')} in "
            f"{terminal.counted(len(done.point.journals), 'journal')}; "
            f"{terminal.counted(left_out, 'transaction')} that had not ended then rolled back"
        )
    click.echo(json.dumps(said, indent=2) if as_json else line)


def _list(folder: Path, *, as_json: bool) -> None:
    import datetime

    from penstock.cli import terminal
    from penstock.journal.upkeep import list_points, read_point

    points = [read_point(folder, number) for number in list_points(folder)] or [read_point(folder)]
    if as_json:
        said = [{"point": one.number, "at": one.at, "rows": one.rows} for one in points]
        click.echo(json.dumps(said, indent=2))
        return
    shown = terminal.table("point", "at (UTC)", "journals", "rows", right=("journals", "rows"))
    for one in points:
        at = datetime.datetime.fromtimestamp(one.at, datetime.UTC)
        shown.add_row(
            str(one.number), f"{at:%Y-%m-%d %H:%M:%S}", f"{len(one.journals):,}", f"{one.rows:,}"
        )
    terminal.output().print(shown)
