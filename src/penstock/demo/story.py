"""The demo from its first line to its verdict."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from rich.text import Text

from penstock.demo import answers, fleet, nexmark
from penstock.demo.producers import Fault, Job, Outcome
from penstock.journal import OpenStore, open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.spark import documents as documents_by_sql
from penstock.spark import local_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.demo.answers import CategoryAnswer
    from penstock.demo.fleet import Written
    from penstock.demo.stage import Stage

_SPARK: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""The demo is over before Java's second compiler and its parallel collector pay for themselves."""


@dataclass(slots=True)
class Verdict:
    """What was checked, and whether it held."""

    checks: list[tuple[str, bool]] = field(default_factory=list)

    def check(self, what: str, holds: bool) -> None:
        self.checks.append((what, holds))

    @property
    def holds(self) -> bool:
        return bool(self.checks) and all(holds for _, holds in self.checks)


def run(stage: Stage, folder: Path, *, documents: int, seed: int) -> bool:
    """Tells the story in `folder`; gives whether every document was read exactly once."""
    began = time.monotonic()
    verdict = Verdict()
    url = f"file://{folder / 'store'}"
    with open_store(url) as store:
        for collection in fleet.COLLECTIONS:
            store.create(collection)
        written = _write(stage, store, verdict, folder=folder, documents=documents, seed=seed)
        spark = _start_spark(stage)
        try:
            _read(stage, spark, store, written, verdict)
        finally:
            spark.stop()
    _judge(stage, verdict, time.monotonic() - began)
    return verdict.holds


# Writing, badly


def _write(
    stage: Stage,
    store: OpenStore,
    verdict: Verdict,
    *,
    folder: Path,
    documents: int,
    seed: int,
) -> Written:
    stage.heading(1, "Producers write, and not all of them well")
    reports = folder / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    jobs = fleet.plan_jobs(store.url, reports, seed, documents)
    stage.say(
        f"{len(jobs)} processes write {documents:,} Nexmark people, auctions and bids into "
        f"{2 + len(nexmark.CHANNELS)} journals at once."
    )
    _run_fleet(stage, jobs, "writing")
    written = fleet.collect(jobs, seed)
    _show_faults(stage, written)

    stage.heading(2, "Two of them are dead: recovery")
    decided = sum(job.count for job in jobs if job.fault is Fault.KILLED_DECIDED)
    seen = _count_documents(store)
    committed = written.rows(Outcome.COMMITTED, Outcome.REPEATED)
    stage.say(
        f"Before recovery a reader sees {seen:,} documents, and nothing of the dead: not even of "
        "the transaction that is acknowledged in one journal already."
    )
    verdict.check("before recovery, no part of a dead producer's work", seen == committed - decided)
    outcomes = _recover(stage, store)
    seen = _count_documents(store)
    stage.say(f"After recovery it sees {seen:,}: the decided transaction whole, the other not.")
    verdict.check(
        "recovery committed what was decided and rolled back the rest",
        outcomes == ["committed", "rolled back"] and seen == committed,
    )
    # As in life: somebody starts the work of the one that was rolled back again.
    lost = next(job for job in jobs if job.fault is Fault.KILLED_OPEN)
    successor = replace(
        lost, name="successor", report=str(reports / "successor.jsonl"), fault=Fault.NONE
    )
    _run_fleet(stage, [successor], "a successor repeats the lost work")
    stage.say("A new process has done the rolled-back work again.")
    return fleet.collect([*jobs, successor], seed)


def _run_fleet(stage: Stage, jobs: list[Job], what: str) -> None:
    with stage.working(what, total=sum(job.count for job in jobs)) as progress:
        fleet.run_fleet(jobs, progress)


def _recover(stage: Stage, store: OpenStore) -> list[str]:
    """Settles the dead; gives what became of their transactions."""
    records = [ledger.record() for ledger in store.ledgers()]
    decided = {record.producer for record in records if record.decision is not None}
    outcomes = []
    for producer in store.recover():
        outcomes.append("committed" if producer in decided else "rolled back")
        found = (
            "decided, so it is committed" if producer in decided else "open, so it is rolled back"
        )
        stage.say(f"  producer {producer} is gone; its transaction was {found}")
    return sorted(outcomes)


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


def _count_documents(store: OpenStore) -> int:
    journals = [journal.name for spec in fleet.COLLECTIONS for journal in store.journals(spec.name)]
    return sum(
        len(found.offsets)
        for cut in take_cut(store, journals)
        for found in read_documents(store, cut, ())
    )


# Reading, once


def _start_spark(stage: Stage) -> SparkSession:
    stage.heading(3, "Spark reads")
    with stage.waiting("starting Spark"):
        return local_session("penstock demo", cores=2, **_SPARK)


def _read(
    stage: Stage, spark: SparkSession, store: OpenStore, written: Written, verdict: Verdict
) -> None:
    truth = _truth(written)
    read: dict[str, pa.Table] = {}
    raw: dict[str, int] = {}
    for name in truth:
        with stage.waiting(
            f"reading {name}: with Penstock, with Spark SQL, and as they were written"
        ):
            found = answers.documents_once(spark, store.url, name).toArrow()
            read[name] = found.drop_columns(["_meta"])
            by_sql = documents_by_sql(spark, store=store.url, collection=name).toArrow()
            raw[name] = answers.rows_as_written(spark, store.url, name).count()
            verdict.check(
                f"{name}: what was read is what was committed, once each",
                answers.same_documents(truth[name], read[name]),
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
    with stage.waiting("asking both readers what auctions brought"):
        once = answers.spark_answer(
            *(answers.documents_once(spark, store.url, name) for name in ("auctions", "bids"))
        )
        naive = answers.spark_answer(
            *(answers.rows_as_written(spark, store.url, name) for name in ("auctions", "bids"))
        )
    true = answers.true_answer(truth["auctions"], truth["bids"])
    _show_answers(stage, once, naive)
    verdict.check("the query's answer is the true one", once == true)
    verdict.check("the faults are real: a plain reader's answer is wrong", naive != true)


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


def _judge(stage: Stage, verdict: Verdict, seconds: float) -> None:
    stage.heading(4, "Verdict")
    for what, holds in verdict.checks:
        mark = ("yes", "green") if holds else ("NO ", "bold red")
        stage.say(Text.assemble(mark, f"  {what}"))
    stage.say()
    if verdict.holds:
        stage.say(Text(f"Exactly once: it held. ({seconds:.0f} s)", style="bold green"))
    else:
        stage.say(Text(f"Exactly once did NOT hold. ({seconds:.0f} s)", style="bold red"))
