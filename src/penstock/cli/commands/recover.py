"""`penstock recover`: settles what dead producers left."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json

import click

from penstock.cli.options import examples, json_option, open_store, store_option


@click.command(
    epilog=examples(
        "penstock recover --store file:///data/journals",
        "penstock recover --json | jq '.[].outcome'",
    )
)
@json_option
@store_option
@click.pass_context
def recover(ctx: click.Context, as_json: bool, store_url: str | None) -> None:
    """Settle what dead producers left in flight.

    A transaction whose commit was decided is acknowledged in every journal it touched; one that
    was not is rolled back. Safe at any time: live producers are left alone. Every producer that
    opens does the same, so this is for when none does.

    A producer that cannot be settled, because something of it is damaged or locked, holds up none
    of the others; the exit code is 1 then.
    """
    from penstock.cli import settling

    with open_store(store_url) as store:
        settled, left = settling.settle(store)
    if as_json:
        click.echo(json.dumps(settled, indent=2))
    elif not settled and not left:
        click.echo("nothing to settle: no dead producer left a transaction in flight")
    else:
        for one in settled:
            click.echo(settling.sentence(one))
    for why in left:
        click.echo(why, err=True)
    ctx.exit(1 if left else 0)
