"""`penstock demo`: the whole idea, proven in a minute."""

# The modules that do the work bring Arrow and Spark, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options import debug_option, examples, json_option
from penstock.cli.page import page, web_option
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.demo.stage import Stage


@click.command(
    epilog=examples(
        "penstock demo",
        "penstock demo --documents 1000000",
        "penstock demo --json 2>/dev/null | jq .holds",
        "penstock demo --folder /tmp/auctions    and look around in it afterwards",
        "penstock demo --kafka",
    )
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Work in this empty folder and leave it. A temporary one is removed at the end.",
)
@click.option("--keep", is_flag=True, help="Leave the temporary folder, too.")
@click.option(
    "--documents",
    type=click.IntRange(5_000, 10_000_000),
    default=100_000,
    show_default=True,
    help="How many to generate.",
)
@click.option(
    "--kafka",
    "on_kafka",
    is_flag=True,
    help="Start a Kafka broker, and read its transactions beside Spark's own Kafka source.",
)
@click.option(
    "--seconds",
    type=click.IntRange(6, 600),
    default=36,
    show_default=True,
    help="With --kafka: how long money moves.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the generated documents.")
@web_option
@json_option
@debug_option
@click.pass_context
def demo(
    ctx: click.Context,
    *,
    folder: Path | None,
    keep: bool,
    documents: int,
    on_kafka: bool,
    seconds: int,
    seed: int,
    without_web: bool,
    as_json: bool,
) -> None:
    """Write journals with faults in them, and read them exactly once with Spark, as they come.

    Several processes write people, auctions and bids as the Nexmark benchmark has them. Batches
    are sent twice, transactions rolled back, and two processes killed inside a transaction.
    Meanwhile a streaming query joins bids with auctions and writes what it finds; one of its
    members is killed. Then Spark reads all of it as tables: what the query wrote is compared with
    that, with what the producers know they committed, and with what a plain reader would make of
    it.

    A page shows all of it as it happens.

    The exit code is 0 only if every document was read exactly once.

    With --kafka, transactional producers move money between accounts, over two topics. Spark's own
    Kafka source and Penstock read them side by side: at the end you see how many micro-batches of
    each had books that do not balance, and what an open transaction hid from whom. The exit code is
    0 only if Penstock showed every transaction whole and once.
    """
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty; choose another folder")
    from penstock.cli import terminal
    from penstock.demo import story
    from penstock.demo.stage import Stage
    from penstock.spark.java import find_java_home

    find_java_home()  # or say now what is missing, and not after the writing
    stage = Stage(terminal.messages()) if as_json else Stage()
    if on_kafka:
        _check_choices(ctx, folder=folder, keep=keep)
        ctx.exit(_on_kafka(stage, seconds, seed, as_json=as_json, without_web=without_web))
    if folder is None and not keep:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-demo-") as made,
            page([Path(made) / "store"], stage.say, without=without_web),
        ):
            verdict = story.run(stage, Path(made), documents=documents, seed=seed)
    else:
        place = folder or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        with page([place.absolute() / "store"], stage.say, without=without_web):
            verdict = story.run(stage, place.absolute(), documents=documents, seed=seed)
        stage.say(f"\nThe journals are in {place}. Look at them:")
        where = f"--store {place.absolute() / 'store'}"
        for command in ("journals", "read offers --limit 3 --meta", "read bids --raw --columns id"):
            stage.say(f"  penstock {command} {where}")
    if as_json:
        checks = [{"check": what, "holds": holds} for what, holds in verdict.checks]
        click.echo(json.dumps({"holds": verdict.holds, "checks": checks}, indent=2))
    ctx.exit(0 if verdict.holds else 1)


def _check_choices(ctx: click.Context, *, folder: Path | None, keep: bool) -> None:
    """The broker ends with the demo: there would be nothing to look at."""
    source = ctx.get_parameter_source("documents")
    if source is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--documents does not go with --kafka; give --seconds")
    if folder is not None or keep:
        raise click.UsageError("--folder and --keep do not go with --kafka: its broker is stopped")


def _on_kafka(stage: Stage, seconds: int, seed: int, *, as_json: bool, without_web: bool) -> int:
    """The exit code."""
    try:
        from penstock.demo.kafka import story
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the demo on Kafka needs the package {error.name!r}: pip install 'penstock[kafka]'"
        ) from error
    with (
        tempfile.TemporaryDirectory(prefix="penstock-demo-") as made,
        page([Path(made) / "feed"], stage.say, without=without_web),
    ):
        told = story.run(stage, Path(made), seconds=seconds, seed=seed)
    if as_json:
        checks = [{"check": what, "holds": holds} for what, holds in told.verdict.checks]
        report = {"holds": told.verdict.holds, "checks": checks, "readers": told.figures}
        click.echo(json.dumps(report, indent=2))
    return 0 if told.verdict.holds else 1
