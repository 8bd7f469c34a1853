"""`penstock abort`: ends a transaction that its producer leaves open."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from penstock.cli.options import examples, is_kafka, json_option, open_store, store_option

if TYPE_CHECKING:
    from penstock.ids import Producer
    from penstock.journal.recovery import OpenTransaction
    from penstock.journal.writable import Abort


@click.command(
    epilog=examples(
        "penstock abort 01a2b3c4d5e6",
        "penstock abort 01a2b3c4d5e6 --yes --json",
        "penstock abort --list                     who aborted what in this store",
        "penstock abort payments-writer --store kafka://broker:9092",
    )
)
@click.argument("producer", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--list", "listing", is_flag=True, help="Show those that were aborted so far.")
@json_option
@store_option
def abort(
    producer: str | None, yes: bool, listing: bool, as_json: bool, store_url: str | None
) -> None:
    """Abort the open transaction of PRODUCER, alive or not.

    The producer is fenced: it can never write again, and gets an error that says who did this. Its
    transaction is rolled back in every journal; if its commit was decided already, it is carried
    out instead. That this was done, when and by whom, is kept in the store.

    For transactions that hold a feed up: `penstock explain` names them.

    In Kafka, PRODUCER is a transactional id, a producer id, or the name that `penstock explain` has
    for it. Its coordinator fences it and aborts the transaction; if no coordinator knows of it, the
    leaders of its partitions write the markers, as kafka-transactions.sh has them do.
    """
    if listing == (producer is not None):
        raise click.UsageError("say which PRODUCER, or --list")
    if is_kafka(store_url):
        if producer is None:
            raise click.UsageError(
                "Kafka keeps no record of aborts; penstock doctor lists the open transactions"
            )
        from penstock.cli.kafka_abort import abort_in_kafka

        abort_in_kafka(store_url, producer, yes=yes, as_json=as_json)
        return
    with open_store(store_url) as store:
        if producer is None:
            _show(store.aborts(), as_json=as_json)
            return
        from penstock.ids import Producer
        from penstock.person import person

        known = Producer.from_hex(producer)
        seen = store.open_transaction(known)
        if not yes:
            click.confirm(_question(known, seen), abort=True, err=True)
        done = store.abort(known, f"{person()} (penstock abort)", seen)
    if as_json:
        click.echo(json.dumps(_plain(done), indent=2))
    else:
        click.echo(_sentence(done))


def _question(producer: Producer, seen: OpenTransaction) -> str:
    return (
        f"Producer {producer} can never write again, and what its open transaction wrote in "
        f"{', '.join(seen.journals)} is lost. Go on?"
    )


def _show(aborts: list[Abort], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_plain(one) for one in aborts], indent=2))
        return
    for one in aborts:
        click.echo(_sentence(one))
    if not aborts:
        click.echo("no transaction of this store was aborted by hand")


def _plain(one: Abort) -> dict[str, object]:
    return asdict(one) | {"producer": str(one.producer)}


def _sentence(one: Abort) -> str:
    import datetime

    moment = datetime.datetime.fromtimestamp(one.at, datetime.UTC)
    name = f" ({one.name})" if one.name else ""
    outcome = one.outcome or "left to recovery"
    return (
        f"{moment:%Y-%m-%d %H:%M:%S} UTC: the transaction of producer {one.producer}{name} was "
        f"aborted by {one.by}: {outcome} in {', '.join(one.journals)}"
    )
