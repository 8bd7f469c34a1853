"""`penstock run`: a pipeline, with everything it needs around it."""

# The modules that do the work bring Spark, which --help does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.interrupts import interrupts
from penstock.cli.options import examples, json_option, open_store, store_option
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.run_view import RunView
    from penstock.spark.pipeline import Pipeline

LOOK_SECONDS: Final = 0.25


@click.command(
    epilog=examples(
        "penstock run totals.py",
        "penstock run totals.py --once             until what is there now is done",
        "penstock run totals.py --master spark://host:7077 --members 8",
        "penstock run totals.py --conf spark.driver.memory=4g --json",
    )
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option(
    "--members",
    type=click.IntRange(1, 256),
    help="How many share the documents of a stream.  [default: 2]",
)
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    help="How far each query came. A next run goes on there.  [default: FILE.checkpoints]",
)
@click.option("--once", is_flag=True, help="Stop when everything that is there now is done.")
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A setting for Spark.")
@json_option
@store_option
@click.pass_context
def run(
    ctx: click.Context,
    *,
    file: Path,
    master: str,
    members: int | None,
    checkpoints: Path | None,
    once: bool,
    confs: tuple[str, ...],
    as_json: bool,
    store_url: str | None,
) -> None:
    """Run a pipeline: a PySpark file in which one function has @ps.pipeline.

    Starts Spark with settings for streaming, calls the function, and shows how its queries go,
    until Ctrl-C or until one of them fails. On a cluster, members run as tasks of the same
    application; on this machine, within Spark's own processes.
    """
    settings = dict(_setting(one) for one in confs)
    from penstock.cli import terminal
    from penstock.cli.run_view import RunView
    from penstock.spark.pipeline import Pipeline, load_pipeline

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(store_url))
        name, function = load_pipeline(file)
        view = RunView(terminal.messages())
        view.say(f"starting Spark ({master})")
        spark = stack.enter_context(_session(name, master, settings))
        made = Pipeline(
            spark,
            store,
            (checkpoints or file.with_suffix(".checkpoints")).absolute(),
            reading={} if members is None else {"members": members},
            trigger={"availableNow": True} if once else {},
        )
        if not master.startswith("local"):
            from penstock.spark.cluster import cluster

            given = {} if members is None else {"members": members}
            made.feed = stack.enter_context(cluster(spark, store=store.url, **given)).feed
            made.reading = {}
        failure = _watch(made, function, view)
    report = {"pipeline": name, "documents": view.documents, "failure": failure}
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        for query, documents in view.documents.items():
            click.echo(f"{query}: {documents:,} documents")
    if failure is not None:
        raise ConfigurationError(failure) if ctx.meta.get("penstock.debug") else _Failed(failure)


class _Failed(click.ClickException):
    """A query failed: what Spark says of it."""


def _watch(made: Pipeline, function: Any, view: RunView) -> str | None:
    """Until all queries have ended, or one failed, or Ctrl-C. What failed, if something did."""
    stopping = threading.Event()
    with view, interrupts(stopping.set):
        function(made)
        if not made.queries:
            raise ConfigurationError(
                "the pipeline started no query; end it with pipeline.write(...) or "
                "pipeline.start(...)"
            )
        while not stopping.is_set() and all(query.exception() is None for query in made.queries):
            view.show(made.queries, stopping=False)
            if not any(query.isActive for query in made.queries):
                break
            stopping.wait(LOOK_SECONDS)
        for query in made.queries:
            query.stop()
        view.show(made.queries, stopping=True)
    failed = [
        f"query {query.name!r} failed: {_plain(query.exception())}"
        for query in made.queries
        if query.exception() is not None
    ]
    return "\n".join(failed) or None


def _plain(error: BaseException | None) -> str:
    """Spark's message without Java's stack and the plan, which are in its log."""
    text = str(error).partition("=== Streaming Query ===")[0]
    ours = [line for line in text.splitlines() if line.startswith("penstock.")]
    return ours[-1].partition(": ")[2] if ours else text.partition("\n\tat ")[0].strip()


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.UsageError(f"--conf {text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


@contextlib.contextmanager
def _session(name: str, master: str, settings: dict[str, str]) -> Any:
    from penstock.spark.session import STREAMING, local_session

    tuned: dict[str, Any] = {**STREAMING, "spark.master": master, **settings}
    spark: SparkSession = local_session(f"penstock run {name}", **tuned)
    try:
        yield spark
    finally:
        spark.stop()
