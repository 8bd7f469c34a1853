"""A producer process of the demo, with the faults it is told to have.

Runs as `python -m penstock.demo.producers JOB`, where JOB is a `Job` as JSON. Whatever it does, it
first does and then notes in its report, a file that outlives it: what was committed is known even
of a producer that is killed.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import penstock.journal.transaction
from penstock.demo.nexmark import Events, generate
from penstock.errors import LocalProtocolError
from penstock.journal import open_store
from penstock.journal.transaction import Step

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from penstock.journal.producer import OpenProducer
    from penstock.journal.transaction import Transaction

KILL_WAIT_S: Final = 120
"""A producer that waits to be killed gives up after this, should the demo itself be gone."""


class Fault(enum.StrEnum):
    """What goes wrong with a producer."""

    ORDINARY = "ordinary"
    """Some batches are sent twice, some transactions are rolled back."""
    NONE = "none"
    KILLED_OPEN = "killed open"
    """Killed with everything appended and nothing decided."""
    KILLED_DECIDED = "killed decided"
    """Killed with the commit decided and only the first acknowledgement written."""


class Outcome(enum.StrEnum):
    """What became of a slice of events, as its producer knows it."""

    COMMITTED = "committed"
    REPEATED = "repeated"
    """Committed, and sent once more under the same identities."""
    ROLLED_BACK = "rolled back"
    TORN = "torn"
    """Written and not decided when the producer is killed."""


@dataclass(frozen=True, slots=True)
class Job:
    """The events one producer writes, and how."""

    name: str
    store: str
    report: str
    seed: int
    first: int
    count: int
    batch_events: int
    fault: Fault
    pause_s: float = 0.0
    """Between two batches, so that there is something to watch."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**{**fields, "fault": Fault(fields["fault"])})


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a report: events [first, first + count) and what became of them."""

    first: int
    count: int
    outcome: Outcome
    waits: bool = False
    """The producer does nothing more, and waits to be killed."""

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: str) -> Entry:
        fields = json.loads(line)
        return cls(**{**fields, "outcome": Outcome(fields["outcome"])})


def read_report(path: Path) -> list[Entry]:
    """All whole lines of a report so far."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [Entry.from_line(line) for line in lines if line.endswith("\n")]


def run(job: Job) -> None:
    with open_store(job.store) as store, store.producer() as producer:
        for batch, first in enumerate(range(job.first, job.first + job.count, job.batch_events)):
            count = min(job.batch_events, job.first + job.count - first)
            if batch:
                time.sleep(job.pause_s)
            _write(job, producer, batch, first, count)


def _write(job: Job, producer: OpenProducer, batch: int, first: int, count: int) -> None:
    events = generate(job.seed, first, count)
    match job.fault:
        case Fault.ORDINARY:
            outcome = _write_ordinarily(producer, batch, events)
            _note(job, Entry(first, count, outcome))
        case Fault.NONE:
            with producer.transaction() as transaction:
                _append(transaction, events)
            _note(job, Entry(first, count, Outcome.COMMITTED))
        case Fault.KILLED_OPEN:
            transaction = producer.transaction()
            _append(transaction, events)
            _wait_to_be_killed(job, Entry(first, count, Outcome.TORN, waits=True))
        case Fault.KILLED_DECIDED:

            def stop(step: Step) -> None:
                if step is Step.ACKNOWLEDGED_ONE:
                    _wait_to_be_killed(job, Entry(first, count, Outcome.COMMITTED, waits=True))

            penstock.journal.transaction.reached = stop
            with producer.transaction() as transaction:
                _append(transaction, events)


def _write_ordinarily(producer: OpenProducer, batch: int, events: Events) -> Outcome:
    """Of six batches, three are transactions, one is rolled back, two are outside of
    transactions, and one of these is repeated as after an answer that got lost."""
    place = batch % 6
    if place in (1, 4):
        for collection, table in events.tables().items():
            stamped = producer.stamp(collection, table)
            producer.send(stamped)
            if place == 4:
                producer.send(stamped)
        return Outcome.REPEATED if place == 4 else Outcome.COMMITTED
    transaction = producer.transaction()
    _append(transaction, events)
    if place == 2:
        transaction.rollback()
        return Outcome.ROLLED_BACK
    transaction.commit()
    return Outcome.COMMITTED


def _append(transaction: Transaction, events: Events) -> None:
    for collection, table in events.tables().items():
        transaction.append(collection, table)


def _note(job: Job, entry: Entry) -> None:
    descriptor = os.open(job.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, entry.to_line())
    finally:
        os.close(descriptor)


def _wait_to_be_killed(job: Job, entry: Entry) -> NoReturn:
    _note(job, entry)
    time.sleep(KILL_WAIT_S)
    raise LocalProtocolError("nobody killed this producer, although it waits for that")


if __name__ == "__main__":
    run(Job.from_json(sys.argv[1]))
