"""Options that several commands share, with one wording."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from penstock.cli.client_settings import client_options, client_settings, with_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.journal import OpenStore
    from penstock.journal.kafka.store import KafkaStore
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Feed

Command = TypeVar("Command", bound="Callable[..., Any]")

STORE_VARIABLE = "PENSTOCK_STORE"
_BROKERS: Final = re.compile(r"[\w.-]+:\d+(,[\w.-]+:\d+)*")
FIRST_ANSWER_SECONDS_MAX = 10.0
"""Of a Kafka cluster. A person waits for it."""


def store_option(command: Command) -> Command:
    """--store URL, or the environment's store; and what a client of Kafka's is to be told."""
    store = click.option(
        "--store",
        "store_url",
        metavar="URL",
        envvar=STORE_VARIABLE,
        help="The store: file:///data/journals, a plain path, or kafka://broker:9092.  "
        f"[default: ${STORE_VARIABLE}]",
    )
    return store(client_options(debug_option(command)))


def debug_option(command: Command) -> Command:
    """--debug after the command's name too: that is where one adds it when something failed."""

    def remember(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.meta["penstock.debug"] = True

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show the traceback of an error.",
    )(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")(
        command
    )


def log_json_option(command: Command) -> Command:
    return click.option(
        "--log-json",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Append log records to this file, a line of JSON for each.",
    )(command)


def partitions_option(command: Command) -> Command:
    return click.option(
        "--partitions",
        metavar="SELECTOR",
        default="",
        help='Only these: "region=eu,region=us,!tier=2". A column\'s values are or-ed, columns '
        "are and-ed, ! leaves out.",
    )(command)


def examples(*lines: str) -> str:
    """An epilog of examples, kept as they are written. Paragraphs that start with \\b are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def is_kafka(url: str | None) -> bool:
    return (url or "").startswith("kafka://")


def open_store(url: str | None, *, create: bool = False) -> OpenStore:
    """Opens the store that --store or the environment names, to write to it."""
    # Imported here: it brings Arrow and NumPy, which --help does not need.
    import penstock.journal  # noqa: PLC0415

    if is_kafka(url):
        raise click.UsageError(
            f"{click.get_current_context().command_path} needs a store of files. In Kafka there "
            "are journals, read, shuffle, copy, doctor, explain and abort; programs write to "
            "topics by penstock.open_kafka"
        )
    return penstock.journal.open_store(address_of(url), create=create)


def open_readable(url: str | None) -> ReadableStore:
    """Opens the store that --store or the environment names, for a command that only reads."""
    import penstock.journal  # noqa: PLC0415 - as above

    store = penstock.journal.open_readable(address_of(url))
    if is_kafka(url):
        try:
            cast("KafkaStore", store).check_reachable(FIRST_ANSWER_SECONDS_MAX)
        except BaseException:
            store.close()
            raise
    return store


def open_feed(feed: Feed, url: str | None) -> tuple[Feed, ReadableStore]:
    """The feed with its collections as the store has them, and the store that it reads: the one of
    --store or the environment, or those that its bindings name."""
    import penstock.journal  # noqa: PLC0415 - as above
    from penstock.journal.joined import JoinedStore  # noqa: PLC0415
    from penstock.shuffle.feed_sources import resolved  # noqa: PLC0415

    sources = [one.source for one in feed.bindings]
    stores = [url or "" if one is None else one.store or url or "" for one in sources]
    if "" in stores:
        address_of(url)
    settings = client_settings(is_for_kafka=any(map(is_kafka, stores)))
    found, address = resolved(feed, os.path.expanduser(url or ""), settings)  # noqa: PTH111
    store = penstock.journal.open_readable(address)
    parts = store.stores if isinstance(store, JoinedStore) else (store,)
    try:
        for part in parts:
            if is_kafka(part.url):
                cast("KafkaStore", part).check_reachable(FIRST_ANSWER_SECONDS_MAX)
    except BaseException:
        store.close()
        raise
    return found, store


@contextlib.contextmanager
def settle_feed(feed: Feed, store: ReadableStore, folder: Path) -> Iterator[ReadableStore]:
    """The same store, with where the feed of this folder began to read it."""
    import penstock.journal  # noqa: PLC0415 - as above
    from penstock.shuffle.beginning import NAME, settled_address  # noqa: PLC0415

    is_new = not (folder / NAME).exists()
    address = settled_address(feed, store, folder, is_new=is_new)
    if address == store.address:
        yield store
    else:
        with penstock.journal.open_readable(address) as settled:
            yield settled


def address_of(url: str | None) -> str:
    """What --store or the environment names, with the settings that were given for it."""
    if not url:
        raise click.UsageError(
            f"which store? Say --store file:///data/journals, or set {STORE_VARIABLE}"
        )
    if _BROKERS.fullmatch(url) and not Path(url).exists():
        raise click.UsageError(f"{url} is no folder; for a Kafka cluster say --store kafka://{url}")
    return with_settings(os.path.expanduser(url))  # noqa: PTH111 - an address, and no path
