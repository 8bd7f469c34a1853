"""Pipelines: a plain PySpark file with one decorated function, run by `penstock run`.

    import penstock as ps
    from pyspark.sql import functions as F

    @ps.pipeline
    def totals(pipeline: ps.Pipeline) -> None:
        orders = pipeline.stream("orders", key="customer")
        sums = orders.groupBy("customer").agg(F.sum("amount").alias("total"))
        pipeline.write(sums, "totals", mode="update")

The function describes queries; starting Spark, and stopping all of it, is left to whoever runs it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import ConfigurationError
from penstock.spark import SparkMissingError
from penstock.spark.streaming.folders import feeds_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.journal import OpenStore

    Function = Callable[["Pipeline"], object]

_F = TypeVar("_F", bound="Callable[[Pipeline], object]")
_MARK: Final = "_penstock_pipeline"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def pipeline(function: _F) -> _F:
    """Marks the function that describes a pipeline."""
    setattr(function, _MARK, True)
    return function


@dataclass
class Pipeline:
    """What a pipeline's function gets."""

    spark: SparkSession
    store: OpenStore
    checkpoints: Path
    """A folder for each query is made in it."""
    reading: dict[str, Any] = field(default_factory=dict)
    """Options for every stream: how many members, where they run."""
    trigger: dict[str, Any] = field(default_factory=dict)
    """For every query; empty for one batch after the other."""
    queries: list[StreamingQuery] = field(default_factory=list)
    feed: Callable[..., dict[str, str]] | None = None
    """Of the cluster that the members run in, if there is one."""
    started: Callable[[StreamingQuery], object] | None = None
    """Is told of each query. Who waits in it has the queries one after the other: so a second stage
    finds what the first has written, although both end."""

    places: list[Path] = field(init=False)
    """Folders with the feeds of its streams in them."""

    def __post_init__(self) -> None:
        self.places = [feeds_folder(self.store.url)]

    def feed_folder(self, feed: str) -> Path | None:
        """Where a feed of one of its streams is, if it is one."""
        folders = (place / feed for place in self.places)
        return next((folder for folder in folders if folder.is_dir()), None)

    def stream(self, collection: str = "", **options: Any) -> DataFrame:
        """The documents of a collection, or of a feed file (`feed=...`), as they come."""
        given = {name: _text(value) for name, value in (self.reading | options).items()}
        if collection:
            given["collection"] = collection
        if "folder" in given:
            self.places.append(Path(given["folder"]))
        if self.feed is not None:
            given = self.feed(**given)
        reader = self.spark.readStream.format("penstock").option("store", self.store.url)
        return reader.options(**given).load()

    def table(self, collection: str, **options: Any) -> DataFrame:
        """The documents of a collection as they are now: a batch read."""
        reader = self.spark.read.format("penstock").option("store", self.store.url)
        given = {name: _text(value) for name, value in options.items()}
        return reader.option("collection", collection).options(**given).load()

    def write(
        self,
        frame: DataFrame,
        collection: str = "",
        *,
        name: str = "",
        mode: str = "append",
        **options: Any,
    ) -> StreamingQuery:
        """Writes a stream into a collection, each batch in a transaction; or into another sink, by
        its options and with a name. With mode `update`, rows of an aggregation go out whenever they
        change."""
        given = {key: _text(value) for key, value in options.items()}
        if collection:
            given |= {"store": self.store.url, "collection": collection}
        name = name or collection
        if mode == "append":
            return self.start(frame.writeStream.format("penstock").options(**given), name)
        if mode != "update":
            raise ConfigurationError(
                f"mode is 'append' or 'update', not {mode!r}: nothing is ever overwritten"
            )

        def write(changed: DataFrame, number: int) -> None:
            writer = changed.write.format("penstock").options(**given)
            writer.option("batch", number).mode("append").save()

        # Spark has this mode for foreachBatch, and not for sinks in Python.
        return self.start(frame.writeStream.outputMode(mode).foreachBatch(write), name)

    def start(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        """Starts a query of any kind. By its name it goes on, the next time, where it was."""
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is no name for a query: up to 100 letters, digits, dots, hyphens and "
                "underscores, the first a letter or digit"
            )
        if any(query.name == name for query in self.queries):
            raise ConfigurationError(
                f"two queries are called {name!r}; each needs a name of its own"
            )
        writer = writer.option("checkpointLocation", str(self.checkpoints / name)).queryName(name)
        if self.trigger:
            writer = writer.trigger(**self.trigger)
        query = writer.start()
        self.queries.append(query)
        if self.started is not None:
            self.started(query)
        return query


def load_pipeline(path: Path) -> tuple[str, Function]:
    """The decorated function of a file, and its name."""
    try:
        from pyspark import cloudpickle  # noqa: PLC0415 - Penstock works without Spark
    except ModuleNotFoundError:
        raise SparkMissingError from None
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))  # for what lies beside it
    sys.modules[path.stem] = module
    # Spark's processes could not import it: its functions go to them whole, not by name.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigurationError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    found = {
        name: value
        for name, value in vars(module).items()
        if callable(value) and getattr(value, _MARK, False)
    }
    if len(found) != 1:
        names = ", ".join(sorted(found))
        raise ConfigurationError(
            f"{path} has {len(found) or 'no'} functions with @ps.pipeline"
            f"{f' ({names})' if names else ''}; there must be exactly one"
        )
    return next(iter(found.items()))


def _text(value: object) -> str:
    """As Spark's options are."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
