"""The demo from its first line to its verdict."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from rich.text import Text

from penstock.demo import answers, fleet, nexmark
from penstock.demo.live import DELAY, MEMBERS, SLOTS, LiveQuery
from penstock.demo.producers import Fault, Job, Outcome
from penstock.demo.verdict import Verdict, tell_verdict
from penstock.journal import OpenStore, open_store
from penstock.journal.documents import read_documents
from penstock.spark import documents as documents_by_sql
from penstock.spark import local_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.demo.answers import CategoryAnswer
    from penstock.demo.fleet import Written
    from penstock.demo.stage import Stage
    from penstock.spark.progress import Figures

_SPARK: Final[dict[str, str | int]] = {
    # The demo is over before Java's second compiler and its parallel collector pay for themselves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
}


def run(stage: Stage, folder: Path, *, documents: int, seed: int) -> Verdict:
    """Tells the story in `folder`."""
    began = time.monotonic()
    verdict = Verdict()
    url = f"file://{folder / 'store'}"
    reports = folder / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    with open_store(url) as store:
        for collection in (*fleet.COLLECTIONS, answers.OFFERS):
            store.create(collection)
        spark = _start_spark(stage)
        try:
            with _start_query(stage, spark, store, folder) as query:
                jobs, killed_after = _write(
                    stage, query, store, reports=reports, documents=documents, seed=seed
                )
                written = _recover(stage, store, verdict, jobs, reports)
                truth = _truth(written)
                offers = answers.true_offers(truth["auctions"], truth["bids"])
                last = _catch_up(stage, query, store, len(offers), killed_after)
            verdict.check(
                "a member was killed, and the query went on by itself", last > killed_after
            )
            _read(stage, spark, store, verdict, written=written, truth=truth)
            _compare(stage, spark, store, offers, verdict)
        finally:
            spark.stop()
    tell_verdict(stage, 5, verdict, "Exactly once", time.monotonic() - began)
    return verdict


# A query, before there is anything to read


def _start_spark(stage: Stage) -> SparkSession:
    stage.heading(1, "A query waits")
    with stage.waiting("starting Spark"):
        spark = local_session("penstock demo", cores=SLOTS, **_SPARK)
    # Of the process that will be killed there would be much to say.
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _start_query(stage: Stage, spark: SparkSession, store: OpenStore, folder: Path) -> LiveQuery:
    stage.say(
        "Spark joins bids with the auctions they are for, as both come, and writes what it finds "
        "into a collection, offers. "
        f"Bids are held back for {DELAY}. Each stream has {MEMBERS} members, which run as tasks of "
        "the same Spark; each batch is one transaction."
    )
    with stage.waiting("starting the query"):
        query = LiveQuery(spark, store.url, folder / "checkpoint")
        try:
            query.await_members()
        except BaseException:
            query.close()
            raise
    return query


# Writing, badly


def _write(
    stage: Stage, query: LiveQuery, store: OpenStore, *, reports: Path, documents: int, seed: int
) -> tuple[list[Job], int]:
    """While the query runs. One of its members does not survive it: after which batch, is told."""
    stage.heading(2, "Producers write, and not all of them well")
    jobs = fleet.plan_jobs(store.url, reports, seed, documents)
    stage.say(
        f"{len(jobs)} processes write {documents:,} Nexmark people, auctions and bids into "
        f"{2 + len(nexmark.CHANNELS)} journals at once, while the query reads them."
    )
    killed_after: int | None = None
    with stage.working("writing", total=documents) as progress:

        def watch(done: int) -> None:
            nonlocal killed_after
            progress(done)
            if killed_after is None and done > documents // 3:
                killed_after = _kill_member(stage, query)

        fleet.run_fleet(jobs, watch)
    with stage.waiting("the query's first batch"):
        # If the producers were quicker. There is more for the query to read in any case.
        query.wait(lambda seen: bool(seen.documents), "its first batch")
    while killed_after is None:
        killed_after = _kill_member(stage, query)
    _show_faults(stage, fleet.collect(jobs))
    return jobs, killed_after


def _kill_member(stage: Stage, query: LiveQuery) -> int | None:
    """Once something is committed. Gives the number of the batch after which it happens."""
    seen = query.look()
    if seen.batch is None or not seen.documents:
        return None
    killed = query.kill_member()
    stage.say(
        f"After batch {seen.batch} of the query, one of its members is killed with SIGKILL "
        f"(process {killed}). All of them begin anew from the last epoch; the query only waits."
    )
    return seen.batch


def _recover(
    stage: Stage, store: OpenStore, verdict: Verdict, jobs: list[Job], reports: Path
) -> Written:
    stage.heading(3, "Two producers are dead: recovery")
    _settle(stage, store)
    committed = fleet.collect(jobs).rows(Outcome.COMMITTED, Outcome.REPEATED)
    seen = _count_documents(store, *(spec.name for spec in fleet.COLLECTIONS))
    stage.say(
        f"A reader sees {seen:,} documents: of the dead, the decided transaction whole, and "
        "nothing of the other."
    )
    verdict.check("recovery committed what was decided and rolled back the rest", seen == committed)
    # As in life: somebody starts the work of the one that was rolled back again.
    lost = next(job for job in jobs if job.fault is Fault.KILLED_OPEN)
    report = str(reports / "successor.jsonl")
    successor = replace(lost, name="successor", report=report, fault=Fault.NONE)
    with stage.working("a successor repeats the lost work", total=successor.count) as progress:
        fleet.run_fleet([successor], progress)
    stage.say("A new process has done the rolled-back work again.")
    return fleet.collect([*jobs, successor])


def _settle(stage: Stage, store: OpenStore) -> None:
    """Settles the dead. Everybody who opens a producer does; the query may have come first."""
    records = [ledger.record() for ledger in store.ledgers()]
    decided = {record.producer for record in records if record.decision is not None}
    settled = store.recover()
    if not settled:
        stage.say("The query, which writes too, has settled them already.")
    for producer in settled:
        found = (
            "decided, so it is committed" if producer in decided else "open, so it is rolled back"
        )
        stage.say(f"  producer {producer} is gone; its transaction was {found}")


def _show_faults(stage: Stage, written: Written) -> None:
    stage.table(
        ("what the producers did", "batches", "documents"),
        [
            (what, f"{written.batches(outcome):,}", f"{written.rows(outcome):,}")
            for what, outcome in (
                ("committed", Outcome.COMMITTED),
                ("committed, and sent again: the answer got lost", Outcome.REPEATED),
                ("rolled back", Outcome.ROLLED_BACK),
                ("torn: killed with SIGKILL inside a transaction", Outcome.TORN),
            )
        ],
    )
    stage.say(
        "One more was killed with SIGKILL after its commit was decided, with the first of its "
        "acknowledgements written and the others missing."
    )


def _count_documents(store: OpenStore, *collections: str) -> int:
    journals = [journal.name for name in collections for journal in store.journals(name)]
    return sum(
        len(found.offsets)
        for cut in store.cut(journals)
        for found in read_documents(store, cut, ())
    )


# Reading, once


def _catch_up(
    stage: Stage, query: LiveQuery, store: OpenStore, expected: int, killed_after: int
) -> int:
    """Until the query has written as many offers as there are. Whether they are the right ones is
    another question. Gives the number of the last batch."""

    def has_all(seen: Figures) -> bool:
        # Spark tells of a batch a moment after it is committed.
        is_told = seen.batch is not None and seen.batch > killed_after
        return is_told and _count_documents(store, answers.OFFERS.name) >= expected

    with stage.waiting("the query catches up"):
        query.wait(has_all, f"all {expected:,} offers")
    last = query.look().batch or 0
    stage.say(f"The query has come to batch {last}, and has written {expected:,} offers.")
    return last


def _read(
    stage: Stage,
    spark: SparkSession,
    store: OpenStore,
    verdict: Verdict,
    *,
    written: Written,
    truth: dict[str, pa.Table],
) -> None:
    stage.heading(4, "The proof: Spark reads everything again, as tables")
    read: dict[str, pa.Table] = {}
    raw: dict[str, int] = {}
    for name, true in truth.items():
        with stage.waiting(
            f"reading {name}: with Penstock, with Spark SQL, and as they were written"
        ):
            found = answers.documents_once(spark, store.url, name).toArrow()
            read[name] = found.drop_columns(["_meta"])
            by_sql = documents_by_sql(spark, store=store.url, collection=name).toArrow()
            raw[name] = answers.rows_as_written(spark, store.url, name).count()
            verdict.check(
                f"{name}: what was read is what was committed, once each",
                answers.same_documents(true, read[name]),
            )
            verdict.check(
                f"{name}: a second reader, in Spark SQL, finds the same",
                answers.same_documents(found, by_sql),
            )
    stage.table(
        ("collection", "rows written", "committed", "read by Penstock"),
        [
            (name, f"{raw[name]:,}", f"{len(truth[name]):,}", f"{len(read[name]):,}")
            for name in truth
        ],
    )
    surplus = sum(raw.values()) - sum(map(len, truth.values()))
    faulty = written.rows(Outcome.REPEATED, Outcome.ROLLED_BACK, Outcome.TORN)
    stage.say(
        f"A plain reader takes {surplus:,} rows too many for documents: "
        f"{written.rows(Outcome.REPEATED):,} repeated, {written.rows(Outcome.ROLLED_BACK):,} "
        f"rolled back, {written.rows(Outcome.TORN):,} torn."
    )
    verdict.check("the surplus rows are those of the faults, and no others", surplus == faulty)


def _compare(
    stage: Stage, spark: SparkSession, store: OpenStore, true: pa.Table, verdict: Verdict
) -> None:
    """What the query has written, with what tables have in the end, and with what a plain reader
    would have."""
    once = [answers.documents_once(spark, store.url, name) for name in ("auctions", "bids")]
    plain = [answers.rows_as_written(spark, store.url, name) for name in ("auctions", "bids")]
    with stage.waiting("comparing what the query wrote with what the tables have"):
        written = answers.documents_once(spark, store.url, answers.OFFERS.name).drop("_meta")
        found = written.toArrow()
        of_tables = answers.offers(*once).toArrow()
    verdict.check(
        "offers: what the query wrote is what the batch reader finds, once each",
        answers.same_documents(of_tables, found),
    )
    verdict.check(
        "offers: it is what follows from what was committed", answers.same_documents(true, found)
    )
    with stage.waiting("asking a plain reader for the same"):
        naive = answers.answer(answers.offers(*plain).toArrow())
    _show_answers(stage, answers.answer(found), naive)
    verdict.check(
        "the faults are real: a plain reader's answer is wrong", naive != answers.answer(true)
    )


def _truth(written: Written) -> dict[str, pa.Table]:
    """What was committed, by collection."""
    parts = list(written.truth())
    return {
        spec.name: pa.concat_tables([part[spec.name] for part in parts])
        for spec in fleet.COLLECTIONS
    }


def _show_answers(stage: Stage, once: list[CategoryAnswer], naive: list[CategoryAnswer]) -> None:
    stage.say("What did auctions bring, by category? Beside it, what the plain reader answers:")
    others = {answer.category: answer for answer in naive}
    rows: list[tuple[str | Text, ...]] = []
    for answer in once:
        other = others.get(answer.category, answer)
        rows.append(
            (
                str(answer.category),
                f"{answer.bids:,}",
                _beside(other.bids, answer.bids, f"{other.bids:,}"),
                f"{answer.average_won:,.2f}",
                _beside(other.average_won, answer.average_won, f"{other.average_won:,.2f}"),
            )
        )
    stage.table(("category", "bids", "plain reader", "average win", "plain reader"), rows)


def _beside(value: float, true: float, text: str) -> Text:
    """A plain reader's number, with how far it is off."""
    if value == true:
        return Text(text)
    return Text(f"{text} ({(value - true) / true:+.1%})", style="red")
