"""`penstock copy`: collections from one store to another, each transaction once."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.client_settings import client_options, client_settings
from penstock.cli.commands.journals import split_names
from penstock.cli.interrupts import interrupts
from penstock.cli.options import (
    FIRST_ANSWER_SECONDS_MAX,
    debug_option,
    examples,
    is_kafka,
    json_option,
    log_json_option,
)
from penstock.logs import written_to

if TYPE_CHECKING:
    from rich.progress import Progress

    from penstock.cli.copying import CopiedPart, CopyRun
    from penstock.journal import ProducingStore
    from penstock.journal.store import ReadableStore

TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms", "600000"
"""An epoch may take long to be written; and whoever goes on ends what was left open."""
LINE_SECONDS: Final = 5.0


@click.command(
    epilog=examples(
        "penstock copy kafka://broker:9092 /data/kept --collection orders --folder /data/copy "
        "--create",
        "penstock copy kafka://broker:9092 /data/kept --collection orders --folder /data/copy "
        "--format json --schema 'id BIGINT, amount DOUBLE' --create --key id",
        "penstock copy /data/kept kafka://broker:9092 --collection orders --folder /data/back",
        "penstock copy /data/journals kafka://broker:9092 --collection orders "
        "--collection payments --folder /data/copy --format json --follow",
        "penstock copy /data/old /data/new --collection orders --folder /data/copy --create",
    )
)
@click.argument("source_url", metavar="SOURCE")
@click.argument("target_url", metavar="TARGET")
@click.option(
    "--collection",
    "collections",
    multiple=True,
    required=True,
    metavar="NAME",
    help="What to copy: a collection, or a topic. May be repeated.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="For what is under way. The next run goes on in it.",
)
@click.option(
    "--name",
    default="copy",
    show_default=True,
    help="Of this copy in the target: its producer there, which knows how far it has come.",
)
@click.option("--follow", is_flag=True, help="Go on with new documents, until Ctrl-C.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["raw", "json"]),
    default="raw",
    show_default=True,
    help="What values of topics are: bytes as they are, or JSON of a collection's columns.",
)
@click.option("--schema", default="", metavar="DDL", help="Columns of JSON from a topic.")
@click.option("--create", is_flag=True, help="Create collections that are missing, in files.")
@click.option("--key", default="", metavar="COLUMNS", help="Key columns of what --create makes.")
@click.option(
    "--epoch-seconds",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="At least so long from one transaction of the target to the next.",
)
@log_json_option
@json_option
@client_options
@debug_option
def copy(
    *,
    source_url: str,
    target_url: str,
    collections: tuple[str, ...],
    folder: Path,
    name: str,
    follow: bool,
    format_: str,
    schema: str,
    create: bool,
    key: str,
    epoch_seconds: float,
    log_json: Path | None,
    as_json: bool,
) -> None:
    """Copy collections from SOURCE to TARGET, exactly once, whole transactions only.

    Stores are file:///data/journals, a plain path, or kafka://broker:9092. What one transaction of
    the source wrote, into all of these collections, becomes visible in the target together, or not
    at all. Several may become one there.

    The target knows what it has: a copy that ended, by Ctrl-C or a crash at any point, goes on by
    the same command.

    From a topic come the columns of Spark's Kafka source, and into a topic go `key`, `value`,
    `headers`, `partition` and `timestamp`. With --format json, values of a topic are documents of a
    collection. Topics of the target have to be there.
    """
    from penstock.cli import copying
    from penstock.cli.copying import CopyRun
    from penstock.shuffle.embedded import EmbeddedShuffle
    from penstock.shuffle.feed import Binding, Feed

    _check(source_url, target_url, format_=format_, schema=schema, create=create, key=key)
    if len(set(collections)) < len(collections):
        raise click.UsageError("a collection is named twice")
    with contextlib.ExitStack() as stack:
        stack.enter_context(written_to(log_json))
        source = _source(source_url, collections, format_, schema)
        stack.callback(source.close)
        parts = tuple(
            copying.CopiedPart(source.collection(each), is_kafka(target_url), format_ == "json")
            for each in collections
        )
        for part in parts:
            part.check()
        target = stack.enter_context(_target(target_url, parts, create, tuple(split_names(key))))
        for each in collections:
            target.collection(each)  # it has to be there
        feed = Feed("copy", tuple(Binding(each) for each in collections))
        shuffle = EmbeddedShuffle(
            feed, source, folder.absolute(), members=1, epoch_seconds=epoch_seconds
        )
        stack.callback(shuffle.close)
        shuffle.claim()
        producer = stack.enter_context(target.producer(name))
        begin = copying.begun(producer, source.url, collections, folder.absolute())
        view = _View()
        run = CopyRun(shuffle, source, producer, begin, parts=parts, view=view, follow=follow)
        started = time.monotonic()
        with view.shown, interrupts(run.stopping.set):
            run.run()
        _say(run, begin[0].documents, time.monotonic() - started, as_json=as_json)


def _check(source: str, target: str, *, format_: str, schema: str, create: bool, key: str) -> None:
    if source.rstrip("/") == target.rstrip("/"):
        raise click.UsageError("SOURCE and TARGET are the same store")
    if schema and not (is_kafka(source) and format_ == "json"):
        raise click.UsageError("--schema goes with --format json and a topic as the source")
    if format_ == "json" and is_kafka(source) == is_kafka(target):
        raise click.UsageError(
            "--format is for a copy between topics and files; others are copied as they are"
        )
    if format_ == "json" and is_kafka(source) and not schema:
        raise click.UsageError("--format json needs --schema: which columns have the values?")
    if key and not create:
        raise click.UsageError("--key goes with --create")
    if create and is_kafka(target):
        raise click.UsageError("--create is for files; topics are made by Kafka's own tools")


def _source(url: str, collections: tuple[str, ...], format_: str, schema: str) -> ReadableStore:
    from penstock.journal import open_readable

    if not is_kafka(url):
        return open_readable(Path(url).expanduser() if "://" not in url else url)
    from dataclasses import replace

    from penstock.journal.kafka.address import KafkaAddress, Subscription
    from penstock.journal.kafka.producer_settings import is_of_producers
    from penstock.journal.kafka.store import KafkaStore

    settings = client_settings(is_for_kafka=True)
    options = {each: text for each, text in settings.items() if not is_of_producers(each)}
    values = {"format": format_, "schema": schema} if format_ == "json" else {}
    address = KafkaAddress.parse(url)
    store = KafkaStore(
        replace(
            address,
            options={**options, **address.options},
            subscriptions={
                each: Subscription((each,), values=values, is_topic=True) for each in collections
            },
            with_headers=format_ == "raw",
        )
    )
    _check_reachable(store)
    return store


def _target(
    url: str, parts: tuple[CopiedPart, ...], create: bool, key: tuple[str, ...]
) -> ProducingStore:
    from penstock.cli import copying
    from penstock.journal import open_kafka, open_store
    from penstock.journal.errors import UnknownCollectionError

    if is_kafka(url):
        given = dict([TRANSACTION_TIMEOUT]) | client_settings(is_for_kafka=True)
        formats = {each.collection.name: each.values for each in parts if each.with_format}
        opened = open_kafka(url, options=given, formats=formats)
        _check_reachable(opened)
        return opened
    store = open_store(Path(url).expanduser() if "://" not in url else url, create=create)
    try:
        for part in parts if create else ():
            try:
                store.collection(part.collection.name)
            except UnknownCollectionError:
                store.create(copying.made_for(part.collection, key))
    except BaseException:
        store.close()
        raise
    return store


def _check_reachable(store: Any) -> None:
    try:
        store.check_reachable(FIRST_ANSWER_SECONDS_MAX)
    except BaseException:
        store.close()
        raise


def _say(run: CopyRun, before: int, seconds: float, *, as_json: bool) -> None:
    from penstock.cli.terminal import counted

    position = run.position
    if as_json:
        report = {
            "source": position.source,
            "collections": position.collections,
            "documents": position.documents,
            "new_documents": position.documents - before,
            "transactions": run.epochs,
            "epoch": position.epoch,
            "restarts": run.restarts,
            "seconds": round(seconds, 3),
            "caught_up": run.is_caught_up,
        }
        click.echo(json.dumps(report, indent=2))
        return
    state = "caught up" if run.is_caught_up else "stopped"
    click.echo(
        f"{state}: {counted(position.documents - before, 'new document')} in "
        f"{counted(run.epochs, 'transaction')} and {seconds:.1f} s, "
        f"{counted(position.documents, 'document')} in all"
    )


class _View:
    """A bar on a terminal, and a line now and then elsewhere."""

    def __init__(self) -> None:
        from penstock.cli import terminal

        self._console = terminal.messages()
        self.shown: Progress = terminal.progress(self._console)
        self._task = self.shown.add_task("copying", total=None)
        self._said_at = time.monotonic()

    def show(self, documents: int, left: int | None) -> None:
        total = None if left is None else documents + left
        self.shown.update(self._task, completed=documents, total=total)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            rest = "" if left is None else f", {left:,} rows left"
            self.say(f"{documents:,} documents{rest}")

    def say(self, text: str) -> None:
        self._console.print(text)
