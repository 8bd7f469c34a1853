"""How a batch is committed once: the steps, in their order, for every two-phase sink.

    1  stage      tasks make their rows durable, out of sight: each attempt as a part of its own
    2  look       the query's newest decision is read
    3  prepare    the sink gets ready to commit the parts that Spark has chosen
    4  decide     a create-only record names these parts: they are the batch, for ever
    5  commit     the sink makes them visible. It can be called again and does nothing then
    6  finish     parts that nobody needs any more are removed
    7  forget     the query's older decisions are removed

Before step 4 everything can be thrown away. After it nothing can: whoever finds the decision of
this batch in step 2, or is not the one who creates it in step 4, goes on with 5 and with the parts
that it names, and drops its own. A sink that finds in step 5 that what was prepared is lost says
so, and 3 to 5 are done again under the next attempt, with the same parts.

Spark runs a query's batches one after the other, and the next one only when `commit_batch` of the
one before has returned. So a decision also says that all batches before it are committed: one
record for each query is all that is kept.
"""

from __future__ import annotations

import contextlib
import enum
import re
from typing import TYPE_CHECKING, Final

from penstock.errors import (
    CommitFailedError,
    ConfigurationError,
    CorruptStorageError,
    PenstockError,
)
from penstock.sealed import DamagedFileError, is_sealed
from penstock.sinks.two_phase import Batch, Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.epoch.records import Records
    from penstock.sinks.two_phase import Part, TwoPhaseSink

ATTEMPTS_MAX: Final = 5
"""A decision whose preparation is lost was made by a process that died, and the next attempt is our
own. More are lost only to others who commit the same batch at the same time."""
LISTINGS_MAX: Final = 100
"""How often records are listed again because the newest was removed meanwhile, for a newer one."""

_NAME: Final = re.compile(r"(\d{20})-(\d{6})")


class Step(enum.Enum):
    """What has just been done when `reached` is called, by the numbers above."""

    STAGED = "1"
    LOOKED = "2"
    PREPARED = "3"
    DECIDED = "4"
    COMMITTED = "5"
    FINISHED = "6"
    FORGOTTEN = "7"


def reached(step: Step) -> None:
    """Called after each step. Does nothing; the crash tests put a kill in its place."""


def commit_batch(sink: TwoPhaseSink, batch: Batch, parts: Sequence[Part]) -> None:
    """Steps 2 to 7. Any number of times, by any number of processes: the batch is visible once
    this has returned in one of them, and never twice."""
    decisions = Decisions(sink.records, batch.query)
    held = decisions.newest()
    reached(Step.LOOKED)
    if held is None or held.batch.number < batch.number:
        if not parts:
            return  # nothing to write, and nothing was decided otherwise
        held = _decide(sink, decisions, batch, 0, parts)
    for _ in range(ATTEMPTS_MAX):
        if held.batch.number > batch.number:
            break  # it was committed long ago
        try:
            sink.commit(held)
        except CommitFailedError as error:
            lost = error
            held = _decide(sink, decisions, batch, held.attempt + 1, held.parts)
        else:
            break
    else:
        raise lost
    reached(Step.COMMITTED)
    sink.discard([part for part in parts if part not in held.parts])
    if held.batch == batch:
        sink.finish(held)
        reached(Step.FINISHED)
        decisions.forget_before(held)
        reached(Step.FORGOTTEN)


def abort_batch(sink: TwoPhaseSink, parts: Sequence[Part], *, all_staged: bool) -> None:
    """If some task of the batch failed, nothing was decided, and what the others have staged is
    removed. If all have staged their rows, `commit_batch` was called. It may be under way at this
    moment, so its parts are left alone; whoever runs the batch again finishes it."""
    if not all_staged:
        sink.discard(parts)


def forget_query(sink: TwoPhaseSink, query: str) -> None:
    """For a query that has ended for good, and will not ask again what was decided."""
    Decisions(sink.records, query).forget_all()


def _decide(
    sink: TwoPhaseSink, decisions: Decisions, batch: Batch, attempt: int, parts: Sequence[Part]
) -> Decision:
    prepared = sink.prepare(batch, parts)
    reached(Step.PREPARED)
    wanted = Decision(batch, attempt, tuple(parts), prepared)
    held = decisions.decide(wanted)
    if held != wanted:
        sink.abandon(batch, prepared)
    reached(Step.DECIDED)
    return held


class Decisions:
    """The decision records of one query. The newest is never removed."""

    def __init__(self, records: Records, query: str) -> None:
        if not records.creates_atomically:
            raise ConfigurationError(
                "batches cannot be decided in this place: two who create the same record at once "
                "may both be told that theirs holds. Keep decisions in a folder of a file system "
                "that all machines share; the data may stay where it is"
            )
        self._records = records
        self._folder = f"decisions/{query}/"

    def newest(self) -> Decision | None:
        for _ in range(LISTINGS_MAX):
            orders = self._orders()
            if not orders:
                return None
            name = self._name(orders[-1])
            data = self._records.read(name)
            if data is not None:
                return self._decoded(name, data, orders[-1])
        raise CorruptStorageError(f"records in {self._folder} vanish while they are read")

    def _decoded(self, name: str, data: bytes, order: tuple[int, int]) -> Decision:
        shown = self._records.shown(name)
        found = Decision.from_bytes(data, shown)
        if found.order != order:
            raise DamagedFileError(shown, f"it is of batch {found.batch.number}")
        if not is_sealed(data):
            with contextlib.suppress(PenstockError):  # whoever may only read leaves it
                self._records.replace(name, found.to_bytes())
        return found

    def decide(self, wanted: Decision) -> Decision:
        """Records a decision, unless one at least as new is there. Gives the one that holds."""
        self._records.create(self._name(wanted.order), wanted.to_bytes())
        # Looked for again also if it was created: it may have been there before, and have been
        # forgotten when a newer one came. What is below the newest counts for nothing.
        held = self.newest()
        if held is None or held.order < wanted.order:
            raise CorruptStorageError(
                f"the decision of {wanted.batch} was there and is gone: something deletes records "
                "that it must not"
            )
        return held

    def forget_before(self, held: Decision) -> None:
        for order in self._orders():
            if order < held.order:
                self._records.delete(self._name(order))

    def forget_all(self) -> None:
        for order in self._orders():
            self._records.delete(self._name(order))

    def _orders(self) -> list[tuple[int, int]]:
        found = []
        for name in self._records.names(self._folder):
            match = _NAME.fullmatch(name.removeprefix(self._folder))
            if match is not None:
                found.append((int(match[1]), int(match[2])))
        return sorted(found)

    def _name(self, order: tuple[int, int]) -> str:
        number, attempt = order
        return f"{self._folder}{number:020}-{attempt:06}"
