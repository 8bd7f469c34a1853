"""The demo's producer processes: started together, watched, and two of them killed."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.demo import nexmark
from penstock.demo.nexmark import generate
from penstock.demo.producers import Entry, Fault, Job, Outcome, read_report
from penstock.errors import PenstockError
from penstock.journal import Collection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

COLLECTIONS: Final = (
    Collection.define("people", nexmark.PEOPLE_SCHEMA, key="id"),
    Collection.define("auctions", nexmark.AUCTIONS_SCHEMA, key="id"),
    Collection.define("bids", nexmark.BIDS_SCHEMA, key="id", partition_by="channel"),
)
ORDINARY_PRODUCERS: Final = 3
BATCHES_PER_PRODUCER: Final = 24
"""Enough for each kind of fault to come up several times."""
WRITING_SECONDS: Final = 12.0
"""At least, so that a query has batches to make of it while it is written."""
POLL_S: Final = 0.05
FLEET_SECONDS_MAX: Final = 300
"""The default demo writes for some seconds; a fleet that takes so long is stuck."""


class ProducerFailedError(PenstockError):
    """A producer process of the demo ended in a way that was not planned. Its words are quoted."""


@dataclass(frozen=True, slots=True)
class Written:
    """What the producers know they did, by collection where it is about documents."""

    entries: tuple[Entry, ...]
    seed: int
    killed: int

    def rows(self, *outcomes: Outcome) -> int:
        """One event is one document."""
        return sum(entry.count for entry in self.entries if entry.outcome in outcomes)

    def batches(self, *outcomes: Outcome) -> int:
        return sum(entry.outcome in outcomes for entry in self.entries)

    def truth(self) -> Iterator[dict[str, pa.Table]]:
        """The documents that were committed, slice by slice: generated anew, not read."""
        for entry in self.entries:
            if entry.outcome in (Outcome.COMMITTED, Outcome.REPEATED):
                yield generate(self.seed, entry.first, entry.count).tables()


def plan_jobs(store: str, reports: Path, seed: int, events: int) -> list[Job]:
    """Who writes which events. The last tenth goes to the two producers that are killed."""
    torn = max(events // 20, 1)
    ordinary = events - 2 * torn
    share = -(-ordinary // ORDINARY_PRODUCERS)
    plans = []
    for number in range(ORDINARY_PRODUCERS):
        first = number * share
        plans.append(
            (f"producer-{number + 1}", first, min(share, ordinary - first), Fault.ORDINARY)
        )
    plans.append(("killed-open", ordinary, torn, Fault.KILLED_OPEN))
    plans.append(("killed-decided", ordinary + torn, torn, Fault.KILLED_DECIDED))
    return [
        Job(
            name=name,
            store=store,
            report=str(reports / f"{name}.jsonl"),
            seed=seed,
            first=first,
            count=count,
            batch_events=max(count // BATCHES_PER_PRODUCER, 1)
            if fault is Fault.ORDINARY
            else count,
            fault=fault,
            pause_s=WRITING_SECONDS / BATCHES_PER_PRODUCER,
        )
        for name, first, count, fault in plans
    ]


def run_fleet(jobs: list[Job], progress: Callable[[int], None]) -> None:
    """Runs all jobs at once; once the others are through, kills those that wait for it.

    `progress` is told how many events are done. The killing comes last because every producer
    that opens settles the dead: the open transactions are to be there all the while.
    """
    running = [_Running(job) for job in jobs]
    deadline = time.monotonic() + FLEET_SECONDS_MAX
    try:
        while not all(one.is_over() or one.waits() for one in running):
            progress(sum(one.events_done() for one in running))
            if time.monotonic() > deadline:
                raise ProducerFailedError("the demo's producers did not finish; is the disk slow?")
            time.sleep(POLL_S)
        progress(sum(one.events_done() for one in running))
    finally:
        for one in running:
            one.kill()


def collect(jobs: list[Job]) -> Written:
    """All of one seed."""
    entries = tuple(entry for job in jobs for entry in read_report(Path(job.report)))
    return Written(entries, jobs[0].seed, sum(entry.waits for entry in entries))


class _Running:
    """One producer process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            # -P: files in the folder where the demo was started must not pass for modules.
            [sys.executable, "-P", "-m", "penstock.demo.producers", job.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def events_done(self) -> int:
        return sum(entry.count for entry in read_report(Path(self._job.report)))

    def waits(self) -> bool:
        """Whether it has come to where it is to be killed."""
        entries = read_report(Path(self._job.report))
        return bool(entries) and entries[-1].waits

    def is_over(self) -> bool:
        """Whether it has ended by itself, as planned."""
        status = self._process.poll()
        if status is None:
            return False
        if status != 0:
            said = (self._process.stderr.read() if self._process.stderr else "").strip()
            last = said.splitlines()[-1] if said else "it said nothing"
            raise ProducerFailedError(f"{self._job.name} ended with status {status}: {last}")
        return True

    def kill(self) -> None:
        """SIGKILL: it cannot tidy up. Does nothing to one that is over."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
