"""The order in which a batch is committed, with processes that die and sleep between any two steps.

Processes are threads here, of which one runs at a time: up to its next look at the records or its
next step. Which one that is, who is killed, and when Spark runs a batch again is drawn. An older
process of a batch may sleep while others replace it, go on to later batches, and wake up then.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CommitFailedError, ConfigurationError, CorruptStorageError
from penstock.sinks import batches
from penstock.sinks.batches import Decisions, commit_batch
from penstock.sinks.two_phase import Batch, Decision, Part, TwoPhaseSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

QUERY = "q"


class KilledError(BaseException):
    pass


class Process:
    """A thread that stops at every `pause` until it is told to go on."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._killed = False
        self.ended = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        self._go.release()
        self._stopped.acquire()

    def kill(self) -> None:
        self._killed = True
        while not self.ended:
            self.go_on()

    def is_this(self) -> bool:
        return threading.current_thread() is self._thread

    def pause(self) -> None:
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise KilledError

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work()
        except KilledError:
            pass
        except Exception as error:  # noqa: BLE001 - Spark would be told
            self.error = error
        self.ended = True
        self._stopped.release()


@dataclass
class World:
    """What all processes share: records, staged parts, and a place that shows batches."""

    processes: list[Process] = field(default_factory=list)
    records: dict[str, bytes] = field(default_factory=dict)
    staged: dict[str, tuple[int, int]] = field(default_factory=dict)
    prepared: dict[str, str] = field(default_factory=dict)
    shown: list[int] = field(default_factory=list)
    tokens: Iterator[int] = field(default_factory=itertools.count)

    def pause(self) -> None:
        for process in self.processes:
            if process.is_this():
                process.pause()


class MemoryRecords:
    creates_atomically = True

    def __init__(self, world: World) -> None:
        self._world = world

    def create(self, name: str, value: bytes) -> bool:
        self._world.pause()
        if name in self._world.records:
            return False
        self._world.records[name] = value
        return True

    def read(self, name: str) -> bytes | None:
        self._world.pause()
        return self._world.records.get(name)

    def replace(self, name: str, value: bytes) -> None:
        self._world.records[name] = value

    def shown(self, name: str) -> str:
        return name

    def names(self, prefix: str = "") -> list[str]:
        self._world.pause()
        return sorted(name for name in self._world.records if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._world.pause()
        self._world.records.pop(name, None)

    def delete_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.delete(name)


class ModelSink(TwoPhaseSink):
    """What is prepared belongs to its process, as a producer does. Anybody else ends it first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._own: set[str] = set()

    @property
    def records(self) -> MemoryRecords:
        return MemoryRecords(self._world)

    def stage(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> Part | None:
        del rows
        name = f"{batch.number}-{partition}-{next(self._world.tokens)}"
        self._world.staged[name] = (batch.number, partition)
        return Part(name, 1)

    def prepare(self, batch: Batch, parts: Sequence[Part]) -> str:
        del batch, parts
        token = str(next(self._world.tokens))
        self._own.add(token)
        self._world.prepared[token] = "open"
        return token

    def commit(self, decision: Decision) -> None:
        prepared, token = self._world.prepared, decision.prepared
        if prepared[token] == "open" and token not in self._own:
            prepared[token] = "lost"
        self._world.pause()
        if prepared[token] == "committed":
            return
        if prepared[token] == "lost":
            raise CommitFailedError
        missing = [part for part in decision.parts if part.name not in self._world.staged]
        if missing:
            raise CorruptStorageError
        self._world.shown += [decision.batch.number] * len(decision.parts)
        prepared[token] = "committed"
        self._world.pause()

    def discard(self, parts: Sequence[Part]) -> None:
        self._world.pause()
        for part in parts:
            self._world.staged.pop(part.name, None)

    def finish(self, decision: Decision) -> None:
        """Removes none but its own: that no others are left must not be what safety rests on."""
        self.discard(decision.parts)


def run_batch(world: World, number: int) -> None:
    """As Spark does: stages with one task more than chosen, then commits."""
    sink, batch = ModelSink(world), Batch(QUERY, number)
    sink.stage(batch, 9, iter(()))
    parts = [sink.stage(batch, partition, iter(())) for partition in range(2)]
    world.pause()
    commit_batch(sink, batch, [part for part in parts if part is not None])


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_every_batch_is_shown_once(seed: int) -> None:
    world = World()
    real = batches.reached
    batches.reached = lambda step: world.pause()  # noqa: ARG005 - it is called by its name
    try:
        number = drive(world, random.Random(seed))
    finally:
        batches.reached = real
        for process in world.processes:
            process.kill()
    assert Counter(world.shown) == Counter(dict.fromkeys(range(number + 1), 2))
    assert list(world.records) == [f"decisions/{QUERY}/{number:020}-000000"]


def drive(world: World, chance: random.Random) -> int:
    """Runs batches, again and again, then wakes up what sleeps; gives the number of the last."""

    def start(number: int) -> Process:
        process = Process(lambda: run_batch(world, number))
        world.processes.append(process)
        return process

    number, newest = 0, start(0)
    restarts = chance.choice([0.01, 0.05, 0.2])
    for _ in range(chance.randrange(300)):
        if newest.ended and newest.error is None:
            number, newest = number + 1, start(number + 1)
        elif newest.ended or chance.random() < restarts:
            if chance.random() < 0.5:
                newest.kill()
            newest = start(number)  # Spark runs it again; the one before may be asleep
        alive = [process for process in world.processes if not process.ended]
        # Mostly the newest one, or hardly any batch would come to its end.
        moved = newest if chance.random() < 0.8 else chance.choice(alive)
        if not moved.ended:
            moved.go_on()
        assert max(Counter(world.shown).values(), default=0) <= 2, "a batch is shown twice"
    for process in chance.sample(world.processes, len(world.processes)):
        while not process.ended:
            process.go_on()
    for each in (number, number + 1):
        run_batch(world, each)
    return number + 1


class Refusing(MemoryRecords):
    creates_atomically = False


def test_place_that_could_hold_two_decisions_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be decided in this place"):
        Decisions(Refusing(World()), QUERY)


def test_decision_comes_back_as_it_was_written() -> None:
    parts = (Part("staged/q/1", 3, 4, 2**64 - 1), Part("ü", 0))
    decision = Decision(Batch(QUERY, 12), 3, parts, '{"a": 1}')
    assert Decision.from_bytes(decision.to_bytes()) == decision
    for bad in (b"", b"[]", b"{}", decision.to_bytes().replace(b"parts", b"parcels")):
        with pytest.raises(CorruptStorageError, match="its/name is damaged"):
            Decision.from_bytes(bad, "its/name")


@pytest.mark.parametrize("query", ["", "../x", "a/b", ".hidden", "x" * 65])
def test_strange_query_ids_are_refused(query: str) -> None:
    with pytest.raises(Exception, match="cannot be the id of a query"):
        Batch(query, 0)
