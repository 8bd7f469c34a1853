"""`penstock read`: a collection's documents, once each."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from penstock.cli.commands.journals import split_names
from penstock.cli.interrupts import interrupts
from penstock.cli.options import examples, open_readable, partitions_option, store_option

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from penstock.cli.outputs import Output


@click.command(
    epilog=examples(
        "penstock read orders | head",
        "penstock read orders --format table --columns id,amount --limit 20",
        'penstock read orders --partitions "region=eu" --output eu.parquet',
        "penstock read orders --as-of 2026-11-15T20:00:00+00:00",
        "penstock read orders --follow --meta",
        "penstock read orders --raw | grep ACK",
        "penstock read TOPIC --store kafka://broker:9092 | jq -r '.value | @base64d'",
    )
)
@click.argument("collection")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "csv", "table", "parquet"]),
    help="JSON lines by default, or what --output ends in.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, which appears once it is whole.",
)
@partitions_option
@click.option(
    "--as-of",
    metavar="WHEN",
    help="Only what was committed by then: a moment with its zone, or a frontier as JSON.",
)
@click.option("--columns", default="", metavar="COLUMNS", help="Only these, comma-separated.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many.")
@click.option("--meta", is_flag=True, help="Add _meta: journal, offset, producer and clocks.")
@click.option(
    "--raw",
    is_flag=True,
    help="Every row as it was written: repeated, rolled back, acknowledging or not.",
)
@click.option(
    "--order",
    type=click.Choice(["offset", "clock"]),
    default="offset",
    show_default=True,
    help="Journal by journal as written, or all journals by clock (held in memory).",
)
@click.option("--follow", is_flag=True, help="Go on with new documents, until Ctrl-C.")
@store_option
def read(
    *,
    collection: str,
    format_: str | None,
    as_json: bool,
    output: Path | None,
    partitions: str,
    as_of: str | None,
    columns: str,
    limit: int | None,
    meta: bool,
    raw: bool,
    order: str,
    follow: bool,
    store_url: str | None,
) -> None:
    """Read the committed documents of COLLECTION, each once.

    Duplicates, rolled-back transactions and transactions that are still open are left out; a
    transaction is shown whole, in all journals it touched, or not at all. Needs no Java.

    In JSON, moments are ISO 8601, decimals are text so that they stay exact, and BINARY is base64:
    `penstock append` reads it all back.
    """
    format_ = _format(format_, as_json, output)
    _check_together(
        {
            "--raw and --meta": raw and meta,
            "--raw and --as-of": raw and as_of is not None,
            "--raw and --follow": raw and follow,
            "--follow and --as-of": follow and as_of is not None,
            "--follow and --order clock": follow and order == "clock",
            f"--follow and --format {format_}": follow and format_ in ("table", "parquet"),
            "--format table and --output": format_ == "table" and output is not None,
        }
    )
    if format_ == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE")
    from penstock.cli import outputs, reading, tail

    stopping = threading.Event()
    with open_readable(store_url) as store:
        wanted = reading.Wanted.of(
            store.collection(collection),
            tuple(split_names(columns)),
            partitions=partitions,
            as_of=as_of,
            meta=meta,
            raw=raw,
            by_clock=order == "clock",
        )
        batches: Iterable[pa.RecordBatch | None] = (
            tail.follow(store, wanted, stopping) if follow else reading.read(store, wanted)
        )
        place: AbstractContextManager[BinaryIO] = (
            nullcontext(sys.stdout.buffer) if output is None else outputs.new_file(output)
        )
        with interrupts(stopping.set) if follow else nullcontext(), place as stream:
            made = outputs.open_output(stream, wanted.schema, format_, limit)
            _write(made, batches, limit)


def _format(format_: str | None, as_json: bool, output: Path | None) -> str:
    if as_json and format_ not in (None, "json"):
        raise click.UsageError(f"--json and --format {format_} say different things")
    if format_ is not None or as_json or output is None:
        return format_ or "json"
    return {".csv": "csv", ".parquet": "parquet"}.get(output.suffix.lower(), "json")


def _check_together(clashes: dict[str, bool]) -> None:
    for both, clash in clashes.items():
        if clash:
            raise click.UsageError(f"{both} do not go together")


def _write(output: Output, batches: Iterable[pa.RecordBatch | None], limit: int | None) -> None:
    """Writes the batches, or as much of them as the limit allows."""
    left = limit
    output.flush()
    for batch in batches if left != 0 else ():
        if batch is None:  # nothing new for now
            output.flush()
            continue
        rows = batch if left is None else batch.slice(0, left)
        if rows.num_rows:
            output.write(rows)
        if left is not None:
            left -= rows.num_rows
            if left == 0:
                break
    output.close()
