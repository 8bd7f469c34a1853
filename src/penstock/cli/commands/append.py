"""`penstock append`: files into a collection."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from penstock.cli.commands.journals import split_names
from penstock.cli.options import examples, json_option, open_store, store_option

if TYPE_CHECKING:
    from penstock.cli.loading import Loaded
    from penstock.cli.sources import RawRows


@click.command(
    epilog=examples(
        "penstock append orders monday.jsonl tuesday.csv wednesday.parquet",
        "penstock append orders new.csv --create --key id --partition-by region",
        "zcat orders.jsonl.gz | penstock append orders -",
        "tail -f orders.jsonl | penstock append orders - --no-transaction",
    )
)
@click.argument("collection")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "csv", "parquet"]),
    help="What the files are, if their names do not say. Standard input is json by default.",
)
@click.option(
    "--transaction/--no-transaction",
    default=True,
    help="All files become visible at once or not at all (the default), or batch by batch.",
)
@click.option(
    "--batch-rows",
    type=click.IntRange(1, 1_000_000),
    default=50_000,
    show_default=True,
    help="Rows read, and without a transaction made visible, at a time.",
)
@click.option("--create", is_flag=True, help="Create the collection if it is missing; needs --key.")
@click.option("--key", default="", metavar="COLUMNS", help="Key columns of a new collection.")
@click.option("--partition-by", default="", metavar="COLUMNS", help="Its partition columns.")
@json_option
@store_option
def append(
    *,
    collection: str,
    files: tuple[str, ...],
    format_: str | None,
    transaction: bool,
    batch_rows: int,
    create: bool,
    key: str,
    partition_by: str,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Append JSON lines, CSV or Parquet files to COLLECTION.

    A FILE - is standard input. All files go into one transaction: if a row is refused, nothing is
    kept, and the same command can be run again once the row is mended. With --no-transaction each
    batch is kept by itself, and standard input in JSON is appended as it comes.

    CSV needs a header line; an empty field is no value (but an empty text in a STRING column that
    is NOT NULL). Moments are ISO 8601, in UTC if they name no zone. BINARY is base64.

    With --create the schema is taken from the first rows of the first file.
    """
    from penstock.cli import loading
    from penstock.cli.sources import Source

    if create != bool(key):
        raise click.UsageError("--create and --key go together: a collection has a key")
    if files.count("-") > 1:
        raise click.UsageError("standard input (-) can be appended once")
    sources = [Source.of(name, format_) for name in files]
    creation = None
    if create:
        creation = loading.Creation(tuple(split_names(key)), tuple(split_names(partition_by)))
    bar = _Bar(len(sources))
    with open_store(store_url, create=create) as store, bar.shown:
        loaded = loading.load(
            store,
            collection,
            sources,
            creation=creation,
            transaction=transaction,
            batch_rows=batch_rows,
            report=bar.report,
        )
    _say(loaded, as_json)


def _say(loaded: Loaded, as_json: bool) -> None:
    from penstock.cli.terminal import counted
    from penstock.ddl import schema_to_ddl

    name = loaded.collection.name
    if as_json:
        said = {
            "collection": name,
            "created": loaded.created,
            "transaction": loaded.transaction,
            "documents": loaded.rows,
            "files": [
                {"file": file, "documents": rows} for file, rows in loaded.rows_by_file.items()
            ],
        }
        click.echo(json.dumps(said, indent=2))
        return
    if loaded.created:
        click.echo(f"created {name}: {schema_to_ddl(loaded.collection.schema)}")
    how = " in one transaction" if loaded.transaction else ""
    click.echo(f"appended {counted(loaded.rows, 'document')} to {name}{how}")
    if len(loaded.rows_by_file) > 1:
        for file, rows in loaded.rows_by_file.items():
            click.echo(f"  {rows:>10,}  {file}")


class _Bar:
    """Progress over all files, on a terminal only."""

    def __init__(self, files: int) -> None:
        from penstock.cli import terminal

        self._rows = 0
        self.shown = terminal.progress(terminal.messages(), counting=False)
        self._task = self.shown.add_task("appending", total=files)

    def report(self, number: int, raw: RawRows) -> None:
        self._rows += len(raw.numbers)
        self.shown.update(
            self._task,
            completed=number + raw.done,
            description=f"{raw.source.name}: {self._rows:,} rows",
        )
