"""What a user has of `penstock.cluster(spark, ...)`: a context, and the options of feeds."""

from __future__ import annotations

import atexit
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.shuffle.finding import FinderServer
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.running import MEMBERS_MAX
from penstock.spark.batches import Batches
from penstock.spark.cluster.job import MemberJob
from penstock.spark.cluster.private import Private
from penstock.spark.cluster.server import OutletServer
from penstock.spark.cluster.shuffle import SparkShuffle, driver_host
from penstock.spark.cluster.slots import await_slots, is_local, warn_of_few
from penstock.spark.streaming.folders import feed_folder, settle_folder, settled_store
from penstock.spark.streaming.options import MEMBERS_DEFAULT, StreamOptions
from penstock.telemetry import Tracing

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.cluster.server import Opening


def cluster(
    spark: SparkSession,
    store: str,
    members: int = MEMBERS_DEFAULT,
    folder: str | Path | None = None,
    directory: str | None = None,
) -> Cluster:
    """Members of shuffles as tasks of this Spark, until the context is left, or `close`.

    Every feed that a query reads has so many members, in a barrier job of its own. `folder` is for
    queues and epochs, in place of a folder in the store's and of Spark's local directories.
    `directory` names a PostgreSQL server (`postgresql://user@host/database`) at which members find
    each other; without it they gossip, over UDP.
    """
    return Cluster(spark, store, members, folder, directory)


class Cluster:
    def __init__(
        self,
        spark: SparkSession,
        store: str,
        members: int,
        folder: str | Path | None,
        directory: str | None,
    ) -> None:
        if not 1 <= members <= MEMBERS_MAX:
            raise ConfigurationError(f"a cluster has 1 to {MEMBERS_MAX} members, not {members}")
        self._context = _context_of(spark)
        self._store = str(store)
        self._members = members
        self._folder = None if folder is None else str(Path(folder).absolute())
        self._directory = directory
        self._shuffles: dict[str, SparkShuffle] = {}
        await_slots(self._context, members, sum(job.members for job in MemberJob.running))
        self._private = Private()
        self._server: OutletServer | None = OutletServer(self._private.socket, self._open)
        self._closing = self._server.closing
        self._batches = Batches(spark, self._folder_of)
        self._tracing = Tracing(self._folders)
        self._finder = FinderServer(driver_host(self._context), self._server.shares)
        atexit.register(self.close)

    def feed(self, collection: str = "", **settings: Any) -> dict[str, str]:
        """The options for `spark.readStream.format("penstock").options(**...)`.

        Settings are those of a binding (`key`, `partitions`, `priority`, `read_delay`,
        `not_before`, `not_after`), or `feed` with the path of a feed file in place of a collection;
        and `splits`, `max_documents`, `max_bytes` of the read.
        """
        given = {"collection": collection} if collection else {}
        given |= {name: _text(value) for name, value in settings.items() if value is not None}
        options = {
            "store": self._store,
            **given,
            "members": str(self._members),
            "cluster": str(self._private.socket),
        }
        if self._folder is not None:
            options["folder"] = self._folder
        StreamOptions.parse(options)  # so that what is wrong is said here
        return options

    @property
    def process_ids(self) -> dict[str, dict[int, int]]:
        """Of the members that run, by feed. They may be on other machines."""
        return {feed: shuffle.process_ids for feed, shuffle in self._running()}

    @property
    def machines(self) -> dict[str, dict[int, str]]:
        """Where the members run, by feed."""
        return {feed: shuffle.machines for feed, shuffle in self._running()}

    def _folder_of(self, feed: str) -> Path | None:
        shuffle = self._shuffles.get(feed)
        return None if shuffle is None else shuffle.folder

    def _folders(self) -> list[tuple[str, Path]]:
        return [(feed, shuffle.folder) for feed, shuffle in list(self._shuffles.items())]

    def _running(self) -> list[tuple[str, SparkShuffle]]:
        return [(feed, one) for feed, one in list(self._shuffles.items()) if one.process_ids]

    def close(self) -> None:
        """Closes all feeds and ends their jobs. Stop the queries first: what they have not read
        stays in the queues, and is read when they go on."""
        server, self._server = self._server, None
        if server is None:
            return
        atexit.unregister(self.close)
        try:
            server.close()
            self._finder.close()
        finally:
            self._private.close()
            self._tracing.close()
            self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, opening: Opening) -> Outlet:
        """For a query of this Spark."""
        options = StreamOptions.parse(opening.options)
        folder = feed_folder(options, opening.feed)
        settle_folder(folder, options, is_new=opening.is_new)
        store = settled_store(options, folder, is_new=opening.is_new)
        shuffle = SparkShuffle(
            self._context,
            options.feed,
            store,
            folder,
            members=options.members,
            queues_beside=bool(options.folder) or is_local(self._context.master),
            finder=self._finder.finder(opening.feed),
            closing=self._closing,
            directory=self._directory,
        )
        warn_of_few(self._context, options.members, options.splits)
        self._shuffles[opening.feed] = shuffle
        return Outlet(shuffle, store, options.feed)


def _context_of(spark: SparkSession) -> SparkContext:
    try:
        return spark.sparkContext
    except Exception as error:
        raise ConfigurationError(
            "members run as tasks of a Spark whose driver is this process; a Spark Connect client "
            f"has none ({type(error).__name__}). Read without `cluster`, and the members run in "
            "the server's source process"
        ) from error


def _text(value: Any) -> str:
    """A setting as an option has it."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return repr(value.total_seconds())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(str(one) for one in value)
    return str(value)
