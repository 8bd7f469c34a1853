"""`penstock journals`: what is in a store, and changes to collections and journals."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli.options import (
    examples,
    json_option,
    open_readable,
    open_store,
    partitions_option,
    store_option,
)


class ListingGroup(click.Group):
    """Lists when no subcommand is named: `penstock journals orders` is `... list orders`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["--store"] and len(args) > 2 and args[2] in self.commands:
            args = [args[2], *args[:2], *args[3:]]
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=ListingGroup,
    epilog=examples(
        "penstock journals                         every collection and its journals",
        "penstock journals orders                  one of them, with its schema",
        "penstock journals orders --json           the same, for programs",
        'penstock journals create orders --key id --schema "id BIGINT NOT NULL, region STRING"',
    ),
)
def journals() -> None:
    """List collections and their journals; create and change them.

    Without a subcommand this lists: `penstock journals [COLLECTION]`.
    """


@journals.command(
    "list",
    epilog=examples(
        "penstock journals --store file:///data/journals",
        'penstock journals orders --partitions "region=eu,!tier=2"',
        "penstock journals --json | jq '.[].journals[].name'",
        "penstock journals --store kafka://broker:9092          topics",
        "penstock journals TOPIC --store kafka://broker:9092    its partitions",
    ),
)
@click.argument("collection", required=False)
@partitions_option
@json_option
@store_option
@click.pass_context
def list_journals(
    ctx: click.Context,
    collection: str | None,
    partitions: str,
    as_json: bool,
    store_url: str | None,
) -> None:
    """List journals with their labels, offsets and open transactions (the default).

    Offsets count rows, acknowledgements among them. A journal holds the rows from FIRST KEPT up
    to, not with, WRITE HEAD. If a collection cannot be read, the others are listed, and the exit
    code is 1.
    """
    from penstock.cli import listing

    if partitions and collection is None:
        raise click.UsageError(
            "--partitions needs a COLLECTION: its columns are what it selects by"
        )
    with open_readable(store_url) as store:
        damages: list[str] = []
        if collection is not None:
            found = [listing.describe(store, collection, partitions)]
        else:
            found, damages = listing.describe_all(store)
    if as_json:
        click.echo(json.dumps(found if collection is None else found[0], indent=2))
    elif found or not damages:
        listing.show(found, detailed=collection is not None, store_url=store.url)
    for damage in damages:
        click.echo(damage, err=True)
    ctx.exit(1 if damages else 0)


@journals.command(
    epilog=examples(
        "penstock journals create orders --key id \\",
        '    --schema "id BIGINT NOT NULL, region STRING, amount DECIMAL(10,2)" \\',
        "    --partition-by region --retention-seconds 604800",
    ),
)
@click.argument("collection")
@click.option("--schema", required=True, metavar="DDL", help="Columns as Spark DDL.")
@click.option("--key", required=True, metavar="COLUMNS", help="Key columns, comma-separated.")
@click.option(
    "--partition-by", default="", metavar="COLUMNS", help="One journal for each of their values."
)
@click.option("--retention-bytes", type=click.IntRange(min=1), help="Keep at most so many bytes.")
@click.option("--retention-seconds", type=click.IntRange(min=1), help="Keep for so long.")
@json_option
@store_option
def create(
    *,
    collection: str,
    schema: str,
    key: str,
    partition_by: str,
    retention_bytes: int | None,
    retention_seconds: int | None,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Create a collection, and its store if there is none.

    Repeating the same command is fine; a different one of the same name is refused.
    """
    from penstock.journal import Collection

    defined = Collection.define(
        collection,
        schema,
        split_names(key),
        split_names(partition_by),
        retention_bytes=retention_bytes,
        retention_seconds=retention_seconds,
    )
    with open_store(store_url, create=True) as store:
        _say(store.create(defined).to_json(), f"created in {store.url}", as_json)


@journals.command(
    epilog=examples(
        'penstock journals evolve orders --add "note STRING"',
        'penstock journals evolve orders --add "tags ARRAY<STRING>" --add "weight DOUBLE"',
        'penstock journals evolve orders --schema "id BIGINT NOT NULL, region STRING, note STRING"',
    ),
)
@click.argument("collection")
@click.option("--add", multiple=True, metavar="DDL", help="A column to add. May be repeated.")
@click.option("--schema", metavar="DDL", help="The whole new schema instead.")
@json_option
@store_option
def evolve(
    collection: str, add: tuple[str, ...], schema: str | None, as_json: bool, store_url: str | None
) -> None:
    """Add nullable columns to a collection. Documents already written stay as they are."""
    from penstock.ddl import schema_to_ddl

    if bool(add) == bool(schema):
        raise click.UsageError("give either --add (once or more) or --schema")
    with open_store(store_url) as store:
        known = store.collection(collection)
        wanted = schema or ", ".join([schema_to_ddl(known.schema), *add])
        changed = store.evolve(collection, wanted)
        said = "has this schema already" if changed.version == known.version else "evolved"
        _say(changed.to_json(), said, as_json)


@journals.command(
    epilog=examples(
        "penstock journals frontier orders payments > now.json",
        'penstock read orders --as-of "$(cat now.json)"',
    )
)
@click.argument("collections", nargs=-1, required=True)
@click.option("--json", is_flag=True, expose_value=False, help="As without: it is JSON anyway.")
@store_option
def frontier(collections: tuple[str, ...], store_url: str | None) -> None:
    """Say how far COLLECTIONS have come together, as JSON.

    Read each of them --as-of this, from here or with Spark, and all are seen at one and the same
    point, now and later.
    """
    from penstock.frontier import to_json

    with open_readable(store_url) as store:
        click.echo(to_json(store.frontier(*collections)))


@journals.command(
    "drop-before", epilog=examples("penstock journals drop-before orders/region=eu/000 1000000")
)
@click.argument("journal")
@click.argument("offset", type=click.IntRange(min=0))
@json_option
@store_option
def drop_before(journal: str, offset: int, as_json: bool, store_url: str | None) -> None:
    """Drop what can be dropped of JOURNAL below OFFSET.

    Whole segments go, and none that a reader of a later offset needs: less than asked for may be
    dropped, never more. It cannot be undone.
    """
    from penstock.cli.terminal import counted

    with open_store(store_url) as store:
        before = store.probe(journal).first_kept
        after = store.drop_before(journal, offset)
    if as_json:
        said = {"journal": journal, "dropped": max(after - before, 0), "first_kept": after}
        click.echo(json.dumps(said, indent=2))
        return
    dropped = counted(after - before, "row") if after > before else "nothing"
    click.echo(f"{journal}: dropped {dropped}; the first kept offset is {after:,}")


@journals.command(epilog=examples("penstock journals suspend orders/region=eu/000 --yes"))
@click.argument("journal")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@store_option
def suspend(journal: str, yes: bool, as_json: bool, store_url: str | None) -> None:
    """Drop every row of JOURNAL.

    It reads as empty until the next append, which goes on at its write head. It cannot be undone.
    """
    from penstock.cli.terminal import counted

    with open_store(store_url) as store:
        found = store.probe(journal)
        rows = counted(found.write_head - found.first_kept, "row")
        if not yes:
            click.confirm(f"Drop all {rows} of {journal}?", abort=True, err=True)
        store.suspend(journal)
    if as_json:
        dropped = found.write_head - found.first_kept
        said = {"journal": journal, "dropped": dropped, "first_kept": found.write_head}
        click.echo(json.dumps(said, indent=2))
        return
    click.echo(f"{journal}: suspended; {rows} dropped")


def split_names(text: str) -> list[str]:
    """`a, b` as a list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _say(collection: dict[str, Any], what: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(collection, indent=2))
        return
    version = len(collection["schemas"])
    click.echo(f"{collection['name']}: {what}, version {version}: {collection['schemas'][-1]}")
