"""`penstock salvage`: what is whole of a damaged store."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from penstock.cli.options import address_of, examples, json_option, store_option

if TYPE_CHECKING:
    from penstock.journal.upkeep import SalvagedJournal


@click.command(
    epilog=examples(
        "penstock salvage file:///data/rescued --store file:///data/journals",
        "penstock salvage /data/rescued --json | jq '.[] | select(.missing != [])'",
    )
)
@click.argument("target", metavar="URL")
@json_option
@store_option
@click.pass_context
def salvage(ctx: click.Context, target: str, as_json: bool, store_url: str | None) -> None:
    """Bring what is whole of a damaged store into a new one at URL, and say what is missing.

    For who has no backup: else `penstock restore` is better. The damaged store is not changed.
    Documents keep their identity, so that repetitions fall away as before; offsets begin anew. A
    transaction whose commit lies in a damaged part is kept if another journal names a commit of its
    producer; else its documents are left out. Both are counted.

    The exit code is 1 if something is missing.
    """
    from penstock.cli import terminal
    from penstock.journal.upkeep import salvage as salvage_store

    bar = terminal.progress(terminal.messages())
    task = bar.add_task("salvaging", total=None)
    with bar:
        found = salvage_store(
            address_of(store_url),
            target,
            lambda at, total: bar.update(task, completed=at, total=total),
        )
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        for one in found:
            click.echo(_sentence(one))
    ctx.exit(1 if any(one.missing for one in found) else 0)


def _sentence(one: SalvagedJournal) -> str:
    from penstock.cli.terminal import counted

    parts = [f"{one.name}: {counted(one.documents, 'document')}"]
    for gap in one.missing:
        if gap.end is None:
            parts.append(f"what follows offset {gap.begin - 1} is damaged, nobody knows how much")
        else:
            parts.append(f"offsets {gap.begin} to {gap.end - 1} are missing")
    if one.undecided:
        parts.append(
            f"{counted(one.undecided, 'document')} left out: nobody knows whether they were "
            "committed"
        )
    if one.assumed:
        parts.append(f"{counted(one.assumed, 'document')} committed as other journals say")
    return "; ".join(parts)
