"""`penstock shuffle`: journals to members by key, exactly once, while they are written."""

# The modules that do the work bring Arrow, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.commands.journals import split_names
from penstock.cli.interrupts import interrupts
from penstock.cli.options import (
    examples,
    json_option,
    log_json_option,
    open_feed,
    settle_feed,
    store_option,
)
from penstock.logs import written_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.shuffle_run import Position
    from penstock.cli.shuffle_view import View
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.member import Settings
    from penstock.shuffle.plan import Plan
    from penstock.shuffle.running import Shuffle
    from penstock.shuffle.verify import Verified

DIFFERENCES_SHOWN: Final = 20


@click.command(
    epilog=examples(
        "penstock shuffle --collection orders --verify",
        "penstock shuffle --collection orders --key customer --members 4 --follow",
        "penstock shuffle --feed orders-by-customer.toml --folder /data/shuffle",
        "penstock shuffle --collection orders --directory postgresql://penstock@db/streams",
        "penstock shuffle --collection orders --carrier local --json | jq .documents",
    )
)
@click.option(
    "--collection",
    "collections",
    multiple=True,
    metavar="NAME",
    help="What to read. May be repeated.",
)
@click.option("--key", default="", metavar="COLUMNS", help="Instead of a collection's own key.")
@click.option(
    "--feed",
    "feed_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A feed file: collections, keys, priorities and delays, in TOML.",
)
@click.option(
    "--members",
    type=click.IntRange(1, 256),
    default=3,
    show_default=True,
    help="How many share the documents.",
)
@click.option(
    "--carrier",
    type=click.Choice(["local", "tcp", "grpc"]),
    default="tcp",
    show_default=True,
    help="Between processes, one for each member, with TLS; or local, all in this process.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="For queues and epochs. A next run goes on in it. A temporary one is removed at the end.",
)
@click.option(
    "--directory",
    metavar="URL",
    help="A PostgreSQL server at which members find each other, in place of gossip.",
)
@click.option("--follow", is_flag=True, help="Go on with new documents, until Ctrl-C.")
@click.option(
    "--verify",
    is_flag=True,
    help="Compare with the batch reader at the end; exit code 1 if not equal.",
)
@click.option(
    "--epoch-seconds",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="At least so long from one epoch to the next.",
)
@click.option(
    "--disk-budget",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Of each member's queue.  [default: 64 GiB]",
)
@log_json_option
@json_option
@store_option
@click.pass_context
def shuffle(
    ctx: click.Context,
    *,
    collections: tuple[str, ...],
    key: str,
    feed_file: Path | None,
    members: int,
    carrier: str,
    folder: Path | None,
    directory: str | None,
    follow: bool,
    verify: bool,
    epoch_seconds: float,
    disk_budget: int | None,
    log_json: Path | None,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Bring every committed document to the member that owns its key, exactly once.

    Members read the journals, send each other what is not theirs, and keep what is on disk, in
    order. Epochs say up to where that is complete; this command reads each of them, counts, and
    lets go of it. It ends when everything is read, or with --follow at Ctrl-C, after a last epoch.

    If a member fails, all begin anew from the newest epoch. With a --folder, so does the next run.
    """
    if bool(collections) == (feed_file is not None):
        raise click.UsageError("what shall be read? Say either --collection NAME or --feed FILE")
    if key and feed_file is not None:
        raise click.UsageError("--key goes with --collection; a feed file has its keys in it")
    if directory and carrier == "local":
        raise click.UsageError("--directory is for members in processes of their own: tcp or grpc")
    from penstock.cli import terminal
    from penstock.cli.shuffle_run import Position
    from penstock.shuffle.member import Settings
    from penstock.shuffle.plan import make_plan

    messages = terminal.messages()
    with contextlib.ExitStack() as stack:
        stack.enter_context(written_to(log_json))
        given = _feed(collections, key, feed_file)
        feed, store = open_feed(given, store_url)
        stack.callback(store.close)
        plan = make_plan(feed, store)
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="penstock-shuffle-")
            place = Path(stack.enter_context(made))
            messages.print(f"working in {place}, which is removed at the end; --folder keeps one")
        else:
            place = folder.absolute()
        store = stack.enter_context(settle_feed(feed, store, place))
        budget = {} if disk_budget is None else {"disk_budget_bytes": disk_budget}
        made_shuffle = _shuffle(
            (feed, store, place),
            members=members,
            settings=Settings(carrier=carrier, **budget),
            epoch_seconds=epoch_seconds,
            **({"directory": directory} if directory else {}),
        )
        stack.callback(made_shuffle.close)
        made_shuffle.claim()
        position = Position.load(place, store, given, members)
        report, verified = _go(made_shuffle, store, plan, position, follow=follow, verify=verify)
    report["folder"] = None if folder is None else str(place)
    report["carrier"] = carrier
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _say(report, verified)
    ctx.exit(0 if verified is None or verified.is_equal else 1)


def _feed(collections: tuple[str, ...], key: str, feed_file: Path | None) -> Feed:
    from penstock.shuffle.feed import Binding, Feed
    from penstock.shuffle.feed_file import load_feed

    if feed_file is not None:
        return load_feed(feed_file)
    columns = tuple(split_names(key))
    return Feed("shuffle", tuple(Binding(each, columns) for each in collections))


def _shuffle(what: tuple[Feed, ReadableStore, Path], settings: Settings, **more: Any) -> Shuffle:
    if settings.carrier == "local":
        from penstock.shuffle.embedded import EmbeddedShuffle

        return EmbeddedShuffle(*what, settings=settings, **more)
    from penstock.shuffle.processes import ProcessShuffle

    return ProcessShuffle(*what, settings=settings, **more)


def _go(
    made: Shuffle,
    store: ReadableStore,
    plan: Plan,
    position: Position,
    *,
    follow: bool,
    verify: bool,
) -> tuple[dict[str, Any], Verified | None]:
    from penstock.cli import terminal
    from penstock.cli.shuffle_run import Run
    from penstock.cli.shuffle_view import View
    from penstock.shuffle.verify import Delivered
    from penstock.shuffle.verify import verify as verify_delivered

    view = View(terminal.messages(), plan.lanes)
    start, documents_before, begun = position.last, position.documents, time.monotonic()
    delivered = Delivered() if verify else None
    run = Run(made, store, position, view, follow=follow, delivered=delivered)
    with view, _warnings_said(view), interrupts(run.stopping.set):
        run.run()
    seconds = time.monotonic() - begun
    verified = None
    if delivered is not None:
        end = position.last.frontier
        verified = verify_delivered(
            store, plan, made.assignment, delivered, start=start.frontier, end=end
        )
    report: dict[str, Any] = {
        "store": store.url,
        "documents": position.documents,
        "new_documents": position.documents - documents_before,
        "members": [
            {
                "member": member,
                "documents": holding.documents,
                "bytes": holding.bytes,
                "vnodes": len(made.assignment.vnodes_of(member)),
            }
            for member, holding in position.holdings.items()
        ],
        "epoch": position.last.number,
        "epochs": run.epochs,
        "restarts": run.restarts,
        "seconds": round(seconds, 3),
        "caught_up": run.is_caught_up,
        "verified": None if verified is None else _verified_report(verified),
    }
    return report, verified


def _verified_report(verified: Verified) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "equal": verified.is_equal,
        "documents": verified.documents,
        "unchecked": verified.unchecked,
        "differences": [asdict(each) for each in verified.differences],
    }


def _say(report: dict[str, Any], verified: Verified | None) -> None:
    from penstock.cli import shuffle_view, terminal
    from penstock.cli.terminal import counted

    terminal.output().print(shuffle_view.holdings_table(report["members"]))
    restarts = f", {counted(report['restarts'], 'restart')}" if report["restarts"] else ""
    state = "caught up" if report["caught_up"] else "stopped"
    click.echo(
        f"{state} at epoch {report['epoch']}: {counted(report['new_documents'], 'new document')} "
        f"in {counted(report['epochs'], 'epoch')} and {report['seconds']:.1f} s{restarts}"
    )
    if verified is None:
        return
    if verified.unchecked:
        click.echo(
            f"{counted(verified.unchecked, 'document')} could not be compared: dropped since"
        )
    if verified.is_equal:
        click.echo(
            f"verified: the batch reader has the same {counted(verified.documents, 'document')}, "
            "each once and at the member that owns it"
        )
        return
    click.secho("NOT equal to what the batch reader has:", fg="red", err=True)
    for difference in verified.differences[:DIFFERENCES_SHOWN]:
        click.echo(f"  {difference}", err=True)
    if len(verified.differences) > DIFFERENCES_SHOWN:
        click.echo(f"  and {len(verified.differences) - DIFFERENCES_SHOWN} more", err=True)


@contextlib.contextmanager
def _warnings_said(view: View) -> Iterator[None]:
    """What the shuffle warns of has its place above the view. Why it ended is told by the run."""
    logger = logging.getLogger("penstock")
    handler = logging.Handler(logging.WARNING)
    handler.addFilter(
        lambda record: record.levelno == logging.WARNING and record.name == "penstock.shuffle"
    )
    handler.emit = lambda record: view.say(record.getMessage())  # type: ignore[method-assign]
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
