"""A program as a user writes it, with members as tasks of its Spark. Tests run it as a process, and
kill parts of it. What it saw it prints, a line of JSON for each thing."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock.spark import local_session
from penstock.watch import find_folders, load
from tests.java_archive import brief_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.cluster import Cluster

WAIT_SECONDS_MAX = 240
LOOK_SECONDS = 0.1
QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def say(what: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"what": what, **facts}) + "\n")
    sys.stdout.flush()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still waiting for {what}")
        time.sleep(LOOK_SECONDS)


class World:
    """A store, a Spark, and a query with what its batches had."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.store = ps.open_store(folder / "store", durability="buffered")
        self.store.create(
            ps.Collection.define("orders", "id BIGINT NOT NULL, customer STRING", "customer")
        )
        self.batches: dict[int, list[list[Any]]] = {}
        self.after_batch: Callable[[], None] | None = None
        self.batches_again: dict[int, list[list[Any]]] = {}
        self._written = 0

    def write(self, count: int) -> None:
        """Some alone and twice, some in a transaction, some rolled back."""

        def orders(begin: int) -> list[dict[str, Any]]:
            return [{"id": one, "customer": f"c{one % 97}"} for one in range(begin, begin + count)]

        with self.store.producer() as producer:
            stamped = producer.stamp("orders", orders(self._written))
            producer.send(stamped)
            producer.send(stamped)
            with producer.transaction() as transaction:
                transaction.append("orders", orders(self._written + count))
            transaction = producer.transaction()
            transaction.append("orders", orders(-count))
            transaction.rollback()
        self._written += 2 * count

    def start(self, cluster: Cluster, *, ends: bool = False, **settings: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("penstock").options(
            **cluster.feed("orders", key="customer", **settings)
        )
        writer = frame.load().writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return (writer.trigger(availableNow=True) if ends else writer).start()

    def _take(self, frame: DataFrame, number: int) -> None:
        # A repeated batch takes the place of the one before.
        rows = frame.rdd.mapPartitions(_with_machine)
        self.batches[number] = rows.collect()
        if self.batches[number] and (after := self.after_batch) is not None:
            after()
            self.batches_again[number] = rows.collect()  # by the same plan

    def fail_batch(self, query: StreamingQuery) -> None:
        """The next one: it is in the queues then, and the query is not done with it."""

        def fail() -> None:
            raise InterruptedError("as the test wants it")

        self.after_batch = fail
        self.write(300)
        until(lambda: query.exception() is not None, "the query's failure")
        self.after_batch = None

    @property
    def count(self) -> int:
        return sum(len(rows) for rows in self.batches.values())

    def wait_for_all(self, query: StreamingQuery) -> None:
        until(lambda: self.count >= self._written or query.exception() is not None, "documents")
        if (error := query.exception()) is not None:
            raise error

    def say_result(self) -> None:
        reader = self.spark.read.format("penstock").option("store", self.store.url)
        found = reader.option("collection", "orders").load().select("_meta").collect()
        say(
            "result",
            delivered=[row for rows in self.batches.values() for row in rows],
            batch=[[row._meta.journal, row._meta.offset] for row in found],
        )


def _with_machine(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """In the task that read them."""
    machine = os.environ.get("PENSTOCK_MACHINE", "")
    for row in rows:
        meta = row._meta
        yield [meta.journal, meta.offset, meta.member, meta.vnode, row.customer, machine]


def processes(cluster: Cluster) -> dict[int, int]:
    """Of the one feed that is open."""
    found = [members for members in cluster.process_ids.values() if members]
    return found[0] if found else {}


def rescale(world: World, members: int) -> None:
    """The batch that failed is read again, from the queues of other members."""
    warnings = Warnings()
    failed = max(world.batches)
    with ps.cluster(world.spark, store=world.store.url, members=members) as cluster:
        world.write(300)
        query = world.start(cluster, ends=True)
        until(lambda: len(processes(cluster)) == members or not query.isActive, "members")
        machines = next(iter(cluster.machines.values()), {})
        query.awaitTermination(WAIT_SECONDS_MAX)
        world.wait_for_all(query)
    say("rescaled", failed=world.batches[failed], warnings=warnings.heard, machines=machines)


class Warnings(logging.Handler):
    """What Penstock warns of, from now on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []
        logging.getLogger("penstock").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def local(folder: Path) -> None:
    """A member killed, a rescale, too few slots, a context that is left too early; in the end this
    process waits to be killed itself."""
    world = World(local_session("penstock-cluster", cores=4, **QUICK_JAVA), folder)
    try:
        ps.cluster(world.spark, store=world.store.url, members=4)
    except ps.PenstockError as error:
        say("too few", error=str(error))
    with ps.cluster(world.spark, store=world.store.url, members=2) as cluster:
        world.write(300)
        query = world.start(cluster)
        world.wait_for_all(query)
        first = processes(cluster)
        world.write(300)
        os.kill(first[1], signal.SIGKILL)
        world.write(300)
        world.wait_for_all(query)
        told = load(find_folders(folder / "store" / "feeds")[0])
        restarts = [event.reason for event in told.restarts.events]
        consumer = None if told.consumer is None else told.consumer.kind
        after = processes(cluster)
        say("killed", before=first, after=after, restarts=restarts, consumer=consumer)
        world.fail_batch(query)
        until(lambda: not processes(cluster), "the end of the feed")
    rescale(world, 3)
    world.say_result()
    with ps.cluster(world.spark, store=world.store.url, members=1) as cluster:
        query = world.start(cluster)
        until(lambda: bool(processes(cluster)), "a member")
    until(lambda: query.exception() is not None, "the query's end")
    say("left", error=str(query.exception()))
    with ps.cluster(world.spark, store=world.store.url, members=2) as cluster:
        query = world.start(cluster)
        until(lambda: len(processes(cluster)) == 2, "members")
        world.write(100)
        until(lambda: not query.isActive or query.lastProgress is not None, "the query")
        say("waiting", processes=processes(cluster), driver=os.getpid())
        query.awaitTermination()


def standalone(folder: Path, master: str) -> None:
    """Two machines, or what passes for them: each reads what the other one's members hold."""
    conf: dict[str, Any] = {
        **QUICK_JAVA,
        "spark.master": master,
        "spark.executor.memory": "512m",
        "spark.executor.cores": 3,
        "spark.cores.max": 6,
        # A task that is run again may by chance be where its queue is.
        "spark.task.maxFailures": 1,
        "spark.executor.extraJavaOptions": brief_java(),
    }
    world = World(local_session("penstock-standalone", **conf), folder)
    with ps.cluster(world.spark, store=world.store.url, members=2) as cluster:
        world.write(1_000)
        seen: list[Any] = []

        def kill_all() -> None:
            world.after_batch = None
            before = processes(cluster)
            seen.append({"machines": next(iter(cluster.machines.values())), "before": before})
            for process in before.values():
                os.kill(process, signal.SIGKILL)

        world.after_batch = kill_all
        query = world.start(cluster, splits=2, max_documents=500)
        world.wait_for_all(query)
        world.write(300)
        world.wait_for_all(query)
        world.fail_batch(query)
        again = [world.batches_again[number] for number in sorted(world.batches_again)]
        first = [world.batches[number] for number in sorted(world.batches_again)]
    say("machines", **seen[0], first=first, again=again, batches=len(world.batches))
    rescale(world, 3)
    world.say_result()
    world.spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "local":
        local(Path(sys.argv[2]))
    else:
        standalone(Path(sys.argv[2]), sys.argv[3])
