"""`penstock doctor`: what is wrong with a machine or a store, and what mends it."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

import click

from penstock.cli.options import (
    examples,
    is_kafka,
    json_option,
    open_readable,
    open_store,
    store_option,
)
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.checkup.findings import Finding
    from penstock.journal.kafka.store import KafkaStore


@click.command(
    epilog=examples(
        "penstock doctor                                    this machine",
        "penstock doctor --store file:///data/journals      and a store",
        "penstock doctor --store kafka://broker:9092        and a Kafka cluster",
        "penstock doctor --store /data/journals --repair",
        "penstock doctor --store /data/journals --remove-feed 3f9a51",
        "penstock doctor --json | jq '.[] | select(.severity != \"ok\")'",
    )
)
@click.option(
    "--repair",
    is_flag=True,
    help="Do what is safe at any time: settle dead producers, mend ends of journals, sweep "
    "unfinished files.",
)
@click.option(
    "--remove-feed",
    "feeds",
    multiple=True,
    metavar="NAME",
    help="Remove a feed that is not running. A query whose checkpoint refers to it cannot go on.",
)
@json_option
@store_option
@click.pass_context
def doctor(
    ctx: click.Context,
    repair: bool,
    feeds: tuple[str, ...],
    as_json: bool,
    store_url: str | None,
) -> None:
    """Check this machine and a store, and say what to do.

    Looks at Python, Java and Spark; with a store of files also at its disk, its file system, its
    clock, and at what crashed runs left in it; with one in Kafka at brokers, at whether the
    transaction log may be read, and at transactions that are open for long. Nothing is changed
    unless asked for with --repair or --remove-feed. Whether files are damaged is told by `penstock
    inspect --verify`.

    The exit code is 1 if something needs attention: a warning or an error.
    """
    if feeds and not store_url:
        raise click.UsageError("--remove-feed needs --store: feeds are in a store")
    if is_kafka(store_url) and (feeds or repair):
        raise click.UsageError("--repair and --remove-feed are for a store of files, not for Kafka")
    found = []
    for finding in _findings(store_url, repair=repair, feeds=feeds):
        found.append(finding)
        if not as_json:
            _say(finding)
    if as_json:
        click.echo(json.dumps([finding.as_json() for finding in found], indent=2))
    else:
        _sum_up(found)
    ctx.exit(1 if any(finding.severity.needs_attention for finding in found) else 0)


def _findings(store_url: str | None, *, repair: bool, feeds: tuple[str, ...]) -> Iterator[Finding]:
    from penstock.cli.checkup.findings import error, note
    from penstock.cli.checkup.leftovers import check_leftovers, remove_feed
    from penstock.cli.checkup.machine import check_machine
    from penstock.cli.checkup.place import check_place

    yield from check_machine(repair=repair)
    if is_kafka(store_url):
        yield from _of_kafka(store_url)
        return
    if not store_url:
        yield note("store", "none was looked at", "penstock doctor --store file:///data/journals")
        return
    try:
        opened = open_store(store_url)
    except (PenstockError, OSError) as failed:
        yield error("store", str(failed), "correct --store, or restore what is named")
        return
    with opened as store:
        root = Path(unquote(urlsplit(store.url).path))
        for feed in feeds:
            yield remove_feed(root, feed)
        yield from check_place(root)
        yield from check_leftovers(store, root, repair=repair)


def _of_kafka(store_url: str | None) -> Iterator[Finding]:
    from penstock.cli.checkup.brokers import check_brokers
    from penstock.cli.checkup.findings import error

    try:
        opened = open_readable(store_url)
    except PenstockError as failed:
        yield error("store", str(failed), "correct --store, or --option")
        return
    with opened as store:
        yield from check_brokers(cast("KafkaStore", store))


def _say(finding: Finding) -> None:
    from rich.text import Text

    from penstock.cli import terminal

    style = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
    line = Text.assemble(
        (f"{finding.severity:<8}", style[finding.severity]), (f"{finding.check}: ", "bold")
    )
    line.append(finding.what)
    if finding.todo:
        line.append(f"; {finding.todo}", style="dim")
    terminal.output().print(line, soft_wrap=True)


def _sum_up(found: list[Finding]) -> None:
    from penstock.cli.terminal import counted

    attention = sum(finding.severity.needs_attention for finding in found)
    if attention:
        click.echo(f"\n{counted(attention, 'finding')} to attend to")
    else:
        click.echo("\nnothing needs attention")
