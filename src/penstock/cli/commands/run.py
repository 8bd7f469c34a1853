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
from penstock.cli.options import examples, json_option, log_json_option, open_store, store_option
from penstock.cli.page import page, web_option
from penstock.errors import ConfigurationError, PenstockError
from penstock.logs import written_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.run_view import RunView
    from penstock.journal import OpenStore
    from penstock.spark.pipeline import Function, Pipeline
    from penstock.spark.progress import Figures, Progress

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
    default=2,
    show_default=True,
    help="How many share the documents of a stream.",
)
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    help="How far each query came. A next run goes on there.  [default: FILE.checkpoints]",
)
@click.option(
    "--once",
    is_flag=True,
    help="Stop when everything that is there now is done. Queries run one after the other, so that "
    "a later one has what earlier ones have written.",
)
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A setting for Spark.")
@web_option
@log_json_option
@json_option
@store_option
def run(
    *,
    file: Path,
    master: str,
    members: int,
    checkpoints: Path | None,
    once: bool,
    confs: tuple[str, ...],
    without_web: bool,
    log_json: Path | None,
    as_json: bool,
    store_url: str | None,
) -> None:
    """Run a pipeline: a PySpark file in which one function has @ps.pipeline.

    Starts Spark with settings for streaming, calls the function, and shows how its queries go,
    until Ctrl-C or until one of them fails; a page shows more of it. On a cluster, members run as
    tasks of the same application; on this machine, within Spark's own processes.
    """
    settings = dict(_setting(one) for one in confs)
    from penstock.cli import terminal
    from penstock.cli.run_view import RunView
    from penstock.spark.pipeline import load_pipeline

    with contextlib.ExitStack() as stack:
        stack.enter_context(written_to(log_json))
        store = stack.enter_context(open_store(store_url))
        name, function = load_pipeline(file)
        view = stack.enter_context(RunView(terminal.messages()))
        view.say(f"starting Spark ({master})")
        folder = (checkpoints or file.with_suffix(".checkpoints")).absolute()
        settings |= {"spark.master": master, "spark.app.name": f"penstock run {name}"}
        made = stack.enter_context(_pipeline(store, folder, settings, members))
        stack.enter_context(page(made.places, view.tell, without=without_web))
        ran = Run(made, view, once=once)
        failure = ran.to_end(function)
        view.say("stopping Spark")
    documents = {each.name: each.documents for each in ran.figures}
    if as_json:
        said = None if failure is None else str(failure)
        report = {"pipeline": name, "documents": documents, "failure": said}
        click.echo(json.dumps(report, indent=2))
    else:
        for query, count in documents.items():
            click.echo(f"{query}: {terminal.counted(count, 'document')}")
    if failure is not None:
        raise failure


class PipelineFailedError(PenstockError):
    """A query failed, or could not be started. Spark's message says why; its cause, which --debug
    shows, has all of it."""


class Run:
    """A pipeline's queries, until they end."""

    def __init__(self, made: Pipeline, view: RunView, *, once: bool) -> None:
        self._made = made
        self._view = view
        self._stopping = threading.Event()
        self._followed: list[Progress] = []
        self.figures: list[Figures] = []
        if once:
            made.trigger = {"availableNow": True}
            made.started = lambda _: self._watch()

    def to_end(self, function: Function) -> PipelineFailedError | None:
        """Until all queries have ended, or one failed, or Ctrl-C. What failed, if something did."""
        from penstock.spark.progress import is_of_spark, plain

        self._view.say("starting queries")
        with interrupts(self._stopping.set):
            try:
                function(self._made)
                self._watch()
            except _OverError:
                pass
            except Exception as error:
                if not is_of_spark(error):
                    raise
                return _failed(plain(error), error)
            finally:
                self._stop()
        if not self._made.queries:
            raise ConfigurationError(
                "the pipeline started no query; end it with pipeline.write(...) or "
                "pipeline.start(...)"
            )
        for query in self._made.queries:
            if (found := query.exception()) is not None:
                return _failed(f"query {query.name!r} failed: {plain(found)}", found)
        return None

    def _watch(self) -> None:
        """Until the queries that are there have ended; or no other one is to be started."""
        queries = self._made.queries
        while not self._stopping.is_set():
            is_active = any(query.isActive for query in queries)
            self._show()
            if any(query.exception() is not None for query in queries):
                break
            if not is_active:
                return
            self._stopping.wait(LOOK_SECONDS)
        raise _OverError

    def _stop(self) -> None:
        self._show(stopping=True)
        for query in self._made.queries:
            query.stop()
        self._show(stopping=True)

    def _show(self, *, stopping: bool = False) -> None:
        from penstock.spark.progress import Progress

        new = self._made.queries[len(self._followed) :]
        self._followed += [Progress(query) for query in new]
        self.figures = [each.look() for each in self._followed]
        if self.figures:
            self._view.show(self.figures, stopping=stopping)


class _OverError(Exception):
    """Ctrl-C came, or a query failed."""


def _failed(words: str, cause: BaseException) -> PipelineFailedError:
    made = PipelineFailedError(words)
    made.__cause__ = cause
    return made


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.UsageError(f"--conf {text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


@contextlib.contextmanager
def _pipeline(
    store: OpenStore, checkpoints: Path, settings: dict[str, str], members: int
) -> Iterator[Pipeline]:
    """With a Spark of its own, and a cluster if it is on more than this machine."""
    from penstock.spark.batches import Batches
    from penstock.spark.cluster import cluster
    from penstock.spark.cluster.slots import is_local
    from penstock.spark.pipeline import Pipeline
    from penstock.spark.session import STREAMING, local_session

    tuned: dict[str, Any] = {**STREAMING, **settings}
    spark = local_session("penstock run", **tuned)
    try:
        if is_local(settings["spark.master"]):
            pipeline = Pipeline(spark, store, checkpoints, reading={"members": members})
            batches = Batches(spark, pipeline.feed_folder)
            try:
                yield pipeline
            finally:
                batches.close()
        else:
            with cluster(spark, store.url, members) as made:
                yield Pipeline(spark, store, checkpoints, feed=made.feed)
    finally:
        spark.stop()
