"""The query that runs while the producers write: a join of two streams, into a collection."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from penstock.demo.answers import OFFERS, offers
from penstock.errors import PenstockError
from penstock.spark.cluster import cluster
from penstock.spark.progress import Progress, plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.progress import Figures

FEEDS: Final = 2
MEMBERS: Final = 2
"""Of each feed."""
SLOTS: Final = 8
"""For the members of two feeds and the query's tasks. A member mostly waits."""
DELAY: Final = "1s"
"""Bids are held back for so long: then their auctions are there, mostly, and wait in Spark's state
rather than the bids, which are many."""
WAIT_SECONDS_MAX: Final = 240.0
POLL_S: Final = 0.1


class QueryFailedError(PenstockError):
    """The demo's query failed, or does not go on. Spark's words are quoted."""


class LiveQuery:
    """From its start to `close`; a context."""

    def __init__(self, spark: SparkSession, store: str, folder: Path) -> None:
        self._spark = spark
        # What is said of the member that will be killed is the story's to tell.
        logging.getLogger("penstock").addHandler(logging.NullHandler())
        logging.getLogger("penstock").propagate = False
        self._cluster = cluster(spark, store, members=MEMBERS)
        try:
            auctions = self._stream("auctions", key="id")
            bids = self._stream("bids", key="auction", read_delay=DELAY)
            self._query = (
                offers(auctions, bids)
                .writeStream.format("penstock")
                .option("store", store)
                .option("collection", OFFERS.name)
                .option("checkpointLocation", str(folder))
                .start()
            )
        except BaseException:
            self._cluster.close()
            raise
        self._progress = Progress(self._query)

    def _stream(self, collection: str, **settings: str) -> DataFrame:
        options = self._cluster.feed(collection, **settings)
        return self._spark.readStream.format("penstock").options(**options).load()

    def look(self) -> Figures:
        error = self._query.exception()
        if error is not None:
            raise QueryFailedError(f"the query failed: {plain(error)}")
        return self._progress.look()

    def await_members(self) -> None:
        """Until the query reads: members of both feeds run."""
        self.wait(
            lambda _: sum(map(len, self._cluster.process_ids.values())) == FEEDS * MEMBERS,
            "running members",
        )

    def kill_member(self) -> int:
        """SIGKILL for one of the members' processes; gives its id."""
        process = min(
            process
            for of_feed in self._cluster.process_ids.values()
            for process in of_feed.values()
        )
        os.kill(process, signal.SIGKILL)
        return process

    def wait(self, condition: Callable[[Figures], bool], what: str) -> None:
        """Until the query has come so far."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not condition(self.look()):
            if time.monotonic() > deadline:
                raise QueryFailedError(f"the query has not come to {what} in time")
            time.sleep(POLL_S)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._cluster.close)
            self._query.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
