"""The demo on Kafka from its first line to its verdict."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from penstock.demo.kafka import screen
from penstock.demo.kafka.clerks import CLERKS, Office, create_topics
from penstock.demo.kafka.readers import PENSTOCK, SPARK, Reader, ReaderFailedError, options
from penstock.demo.kafka.transfers import PARTITIONS, Topics
from penstock.demo.kafka.waits import waits_of
from penstock.demo.verdict import Verdict, tell_verdict
from penstock.spark import local_session
from penstock.spark.session import STREAMING, mute_java
from penstock.testing.kafka import KafkaCluster, kafka_jars, spark_kafka_jars

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.demo.stage import Stage

SLOTS: Final = 4
"""Two queries run at a time."""
WAIT_SECONDS_MAX: Final = 120.0
"""Only a failure takes this long."""
LOOK_SECONDS: Final = 0.2
TITLES: Final = {SPARK: 'format("kafka")', PENSTOCK: 'format("penstock")'}
_SPARK: Final[dict[str, str | int]] = {
    # The demo is over before Java's second compiler and its parallel collector pay for themselves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What came of it."""

    verdict: Verdict
    figures: dict[str, Any]
    """By reader, for `--json`."""


def run(stage: Stage, folder: Path, *, seconds: float, seed: int) -> Told:
    """Tells the story. Everything that it starts ends with it."""
    began = time.monotonic()
    # Of what goes on between clients and the broker there would be much to say; and py4j tells of a
    # batch that Ctrl-C interrupted. A query that fails is told of by its reader.
    for name in ("kafka", "penstock", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        kafka, spark = _start(stage, stack)
        interrupt = Interrupt(mute_java)
        stack.callback(interrupt.close)
        topics = Topics()
        create_topics(kafka.bootstrap_servers, topics)
        office = Office(kafka.bootstrap_servers, topics, seed)
        stack.callback(office.close)
        given = options(kafka.bootstrap_servers, topics.names)
        readers = _start_readers(stage, stack, spark, given, folder)
        _Play(stage, office, readers, interrupt).go(seconds)
        verdict, figures = _judge(stage, office, readers)
    tell_verdict(stage, 4, verdict, "Whole transactions", time.monotonic() - began)
    return Told(verdict, figures)


# Before anything moves


def _start(stage: Stage, stack: ExitStack) -> tuple[KafkaCluster, SparkSession]:
    stage.heading(1, "A broker, and Spark")
    with stage.waiting("getting Kafka ready (its jars are fetched once, in about a minute)"):
        kafka_jars()
        jars = ",".join(map(str, spark_kafka_jars()))
    with stage.waiting("starting a Kafka broker"):
        kafka = stack.enter_context(KafkaCluster())
    stage.say(f"A Kafka broker serves {kafka.bootstrap_servers}.")
    with stage.waiting("starting Spark"):
        spark = local_session("penstock demo", SLOTS, **_SPARK, **STREAMING, **{"spark.jars": jars})
    stack.callback(spark.stop)
    spark.sparkContext.setLogLevel("OFF")
    return kafka, spark


def _start_readers(
    stage: Stage, stack: ExitStack, spark: SparkSession, given: dict[str, str], folder: Path
) -> list[Reader]:
    stage.heading(2, "Two readers, with one word between them")
    stage.say('  spark.readStream.format("kafka")           and beside it: format("penstock")')
    for name, value in given.items():
        stage.say(f'    .option("{name}", "{value}")')
    readers = []
    with stage.waiting("starting both queries"):
        for form in (SPARK, PENSTOCK):
            more = {"folder": str(folder / "feed")} if form == PENSTOCK else {}
            reader = Reader(spark, form, {**given, **more}, folder / f"checkpoint-{form}")
            stack.callback(reader.stop)
            readers.append(reader)
    return readers


class Interrupt:
    """Calls `then` at Ctrl-C and remembers it, from its making to `close`.

    The handler raises KeyboardInterrupt wherever the main thread is. If that is a finalizer, as
    when py4j frees an object of Java's, Python drops the exception; so every loop looks here.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._is_set = False
        self._then = then
        self._before = signal.signal(signal.SIGINT, self._handle)

    def check(self) -> None:
        if self._is_set:
            raise KeyboardInterrupt

    def close(self) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_: object) -> None:
        self._is_set = True
        self._then()
        raise KeyboardInterrupt


# Money moves


class _Play:
    """The part of the story in which everything happens at once."""

    def __init__(
        self, stage: Stage, office: Office, readers: list[Reader], interrupt: Interrupt
    ) -> None:
        self._stage, self._office, self._readers = stage, office, readers
        self._interrupt = interrupt

    def go(self, seconds: float) -> None:
        stage, office = self._stage, self._office
        stage.heading(3, "Money moves")
        stage.say(
            f"{CLERKS} transactional producers move money between accounts: each transfer is a "
            f"debit and some credits, in one transaction over two topics of {PARTITIONS} "
            "partitions. They add up to nothing, in every batch that has whole transfers."
        )
        with stage.waiting("both readers read a first transfer"):
            # Else the time that queries take to start would count as theirs.
            first = {office.sleeper.make_one()}
            self._await(lambda: all(one.has_seen(first) for one in self._readers), "it")
        with stage.showing() as show:
            for clerk in office.clerks:
                clerk.start()
            self._watch(seconds / 3, show)
            office.sleeper.hold()
            stage.say(f"{office.sleeper.name} leaves a transaction open, and goes to lunch.")
            self._watch(seconds / 3, show)
            office.sleeper.release()
            stage.say(f"{office.sleeper.name} is back, and commits it.")
            self._watch(seconds / 3, show)
            for clerk in office.clerks:
                clerk.stop()
        with stage.waiting("both readers catch up"):
            office.close()
            office.check()
            every = office.transfers
            self._await(
                lambda: all(one.has_seen(every) for one in self._readers), "the last transfer"
            )

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                raise ReaderFailedError(
                    f"a query has not come to {what} in {WAIT_SECONDS_MAX:.0f} s"
                )
            time.sleep(LOOK_SECONDS)

    def _watch(self, seconds: float, show: Callable[[Any], None]) -> None:
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self._office.check()
            self._check()
            columns = columns_of(self._office, self._readers, now)
            opened = self._office.sleeper.diary.opened
            show(screen.picture(columns, len(self._office.committed), opened, now))
            time.sleep(LOOK_SECONDS)

    def _check(self) -> None:
        self._interrupt.check()
        for reader in self._readers:
            reader.check()


def columns_of(office: Office, readers: list[Reader], now: float) -> list[screen.Column]:
    committed, opened = office.committed, office.sleeper.diary.opened
    found = []
    for reader in readers:
        seen = reader.moments()
        waits = waits_of(committed, seen, opened, now)
        behind = len(committed.keys() - seen.keys())
        found.append(screen.Column(TITLES[reader.form], reader.books, waits, behind))
    return found


# What came of it


def _judge(stage: Stage, office: Office, readers: list[Reader]) -> tuple[Verdict, dict[str, Any]]:
    columns = columns_of(office, readers, time.monotonic())
    stage.say(f"{len(office.transfers):,} transfers were committed.")
    stage.show(screen.table(columns))
    opened = office.sleeper.diary.opened
    if opened is not None and opened.ended is not None:
        stage.say(
            f"One transaction was open for {opened.ended - opened.began:.1f} s. In the first half "
            f"of that time others committed {columns[0].waits.during:,} transfers. Until it was "
            "ended, it hid"
        )
    for column in columns:
        waits = column.waits
        style = "red" if waits.hidden > waits.during // 2 else "green"
        hidden = (f"{waits.hidden:,} of them", style)
        stage.say(Text.assemble("  ", hidden, f" from {column.title}"))
    ours = readers[-1].books
    verdict = Verdict()
    verdict.check("no micro-batch of ours has a part of a transfer", not ours.torn_batches)
    verdict.check("the books of each of ours balance", not ours.unbalanced_batches)
    verdict.check("every transfer that was committed is there", ours.transfers == office.transfers)
    verdict.check("and none of them twice", not ours.repeated)
    return verdict, {
        one.form: _figures(column) for one, column in zip(readers, columns, strict=True)
    }


def _figures(column: screen.Column) -> dict[str, Any]:
    return {
        "batches": column.books.batches,
        "torn_batches": column.books.torn_batches,
        "unbalanced_batches": column.books.unbalanced_batches,
        "transfers": len(column.books.transfers),
        "committed_during_open": column.waits.during,
        "hidden_by_open": column.waits.hidden,
        "seconds_median": round(column.waits.median_seconds, 3),
        "seconds_longest": round(column.waits.longest_seconds, 3),
    }
