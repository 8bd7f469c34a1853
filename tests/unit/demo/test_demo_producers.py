"""The faulty producers: their reports say what is really in the journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.demo import fleet
from penstock.demo.producers import Entry, Fault, Job, Outcome, read_report, run
from penstock.journal import open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal import OpenStore


@pytest.fixture
def store(tmp_path: Path) -> OpenStore:
    opened = open_store(tmp_path / "store", durability="buffered")
    for collection in fleet.COLLECTIONS:
        opened.create(collection)
    return opened


def _job(store: OpenStore, tmp_path: Path, fault: Fault, events: int = 1_200) -> Job:
    report = str(tmp_path / "report.jsonl")
    return Job(
        "one", store.url, report, seed=1, first=0, count=events, batch_events=100, fault=fault
    )


def _bids(store: OpenStore) -> list[int]:
    journals = [journal.name for journal in store.journals("bids")]
    found: list[int] = []
    for cut in take_cut(store, journals):
        for documents in read_documents(store, cut, ["id"]):
            found += documents.documents.column("id").to_numpy().tolist()
    return sorted(found)


def _true_bids(written: fleet.Written) -> list[int]:
    found: list[int] = []
    for tables in written.truth():
        found += tables["bids"]["id"].to_numpy().tolist()
    return sorted(found)


def test_jobs_and_entries_survive_being_written_down(store: OpenStore, tmp_path: Path) -> None:
    job = _job(store, tmp_path, Fault.KILLED_OPEN)
    assert Job.from_json(job.to_json()) == job
    entry = Entry(5, 6, Outcome.TORN, waits=True)
    assert Entry.from_line(entry.to_line().decode()) == entry


def test_a_half_written_line_of_a_report_is_left_out(tmp_path: Path) -> None:
    line = Entry(5, 6, Outcome.COMMITTED).to_line()
    (tmp_path / "report").write_bytes(line + line[:9])
    assert read_report(tmp_path / "report") == [Entry(5, 6, Outcome.COMMITTED)]


def test_an_ordinary_producer_repeats_and_rolls_back_and_reports_it(
    store: OpenStore, tmp_path: Path
) -> None:
    job = _job(store, tmp_path, Fault.ORDINARY)
    run(job)
    written = fleet.collect([job])
    assert written.rows(*Outcome) == 1_200
    assert {outcome: written.batches(outcome) for outcome in Outcome} == {
        Outcome.COMMITTED: 8,
        Outcome.REPEATED: 2,
        Outcome.ROLLED_BACK: 2,
        Outcome.TORN: 0,
    }
    truth = _true_bids(written)
    assert _bids(store) == truth
    raw = sum(store.probe(journal.name).write_head for journal in store.journals("bids"))
    assert raw > len(truth) + 46 * 2 * 4  # repeated and rolled back are there, too


def test_every_event_has_one_producer(tmp_path: Path) -> None:
    jobs = fleet.plan_jobs("file:///x", tmp_path, seed=1, events=10_001)
    events = sorted(number for job in jobs for number in range(job.first, job.first + job.count))
    assert events == list(range(10_001))
    assert {job.fault for job in jobs} == {
        Fault.ORDINARY,
        Fault.KILLED_OPEN,
        Fault.KILLED_DECIDED,
    }


@pytest.mark.slow
def test_a_fleet_with_two_killed_producers_leaves_what_its_reports_say(
    store: OpenStore, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    jobs = [
        job
        for job in fleet.plan_jobs(store.url, reports, seed=1, events=5_000)
        if job.fault is not Fault.ORDINARY
    ]
    done: list[int] = []
    fleet.run_fleet(jobs, done.append)
    assert done[-1] == sum(job.count for job in jobs)
    written = fleet.collect(jobs)
    assert written.killed == 2
    assert _bids(store) == []  # decided, but not acknowledged everywhere: seen nowhere
    assert len(store.recover()) == 2
    truth = _true_bids(written)
    assert truth
    assert _bids(store) == truth


def test_a_producer_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    job = Job("broken", "ftp://nowhere", str(tmp_path / "r"), 1, 0, 100, 50, Fault.NONE)
    with pytest.raises(fleet.ProducerFailedError, match=r"broken ended with status 1: .*'ftp'"):
        fleet.run_fleet([job], lambda _: None)
