"""The members of the barrier benchmark: each is a process with a source and a sink.

A source makes batches, hashes their keys, takes them apart by owner and sends each member its part,
itself included, all over tcp. It leaves the vnodes off: the receiver would take every frame apart
by them, into a hundred batches of a few rows, and that would be most of what is measured. A sink
counts the rows of each source and adds up their numbers: that is its state. Every
source numbers its rows, so that both ends of a stream can say what was in front of a barrier, and
the benchmark can compare.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import threading
import time
import traceback
import warnings
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoint import (
    Aborted,
    Alignment,
    BarrierArrived,
    BarrierOvertook,
    Capture,
    DataArrived,
    Deliver,
    Injector,
    Snapshot,
)
from penstock.directory.gossip import GossipKeyValue
from penstock.epoch.decisions import DecisionLog
from penstock.epoch.member import EpochMember
from penstock.routing import assign, split_by_target, vnodes_of
from penstock.snapshot import Captured, SnapshotParticipant, SnapshotStore
from penstock.storage import Storage
from penstock.transport import Barrier, Receiver, Sender, VnodeData
from penstock.transport.connection import SendTimeoutError
from penstock.transport.discovery import ADDRESS_KEY
from penstock.transport.security import InsecureTransportWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from penstock.checkpoint import AlignmentEvent
    from penstock.transport import Received
    from penstock.transport.security import Security

MEMBERS: Final = (1, 2)
BATCH_ROWS: Final = 8192
ROW_BYTES: Final = 128
BATCHES: Final = 16
"""Made beforehand, with other keys in each."""
STAGE: Final = "rows"
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Of each stream: what a Receiver gives it by default."""
POLL_SECONDS: Final = 0.005
"""A source without credit looks at its injector this often."""


@dataclass(slots=True)
class Tally:
    """Rows, and the sum of their numbers."""

    rows: int = 0
    numbers: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.numbers += int(batch.column(1).to_numpy().sum())

    def with_all(self, batches: list[pa.RecordBatch]) -> Tally:
        if not batches:
            return replace(self)
        rows = sum(batch.num_rows for batch in batches)
        numbers = pc.sum(pa.chunked_array([batch.column(1) for batch in batches])).as_py()
        return Tally(self.rows + rows, self.numbers + numbers)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is in front of a barrier at one end: of a source by receiving member, of a sink by
    sending member."""

    checkpoint: int
    member: int
    is_sink: bool
    tallies: dict[int, Tally]
    at_seconds: float


@dataclass(frozen=True, slots=True)
class Taken:
    """A sink's snapshot."""

    checkpoint: int
    member: int
    tallies: dict[int, Tally]
    """Its state."""
    in_flight: dict[int, list[pa.RecordBatch]]
    at_seconds: float

    def cut(self) -> Cut:
        tallies = {
            member: tally.with_all(self.in_flight[member]) for member, tally in self.tallies.items()
        }
        return Cut(self.checkpoint, self.member, True, tallies, self.at_seconds)


@dataclass(frozen=True, slots=True)
class Count:
    """What a sink has processed so far."""

    member: int
    rows: int
    at_seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A thread of a member ended, which none should."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskCount:
    """Said to a member, which answers with a Count."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Said to a member: how long to pause, for each part of a batch."""

    source_seconds: float = 0.0
    sink_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member joins, and how its sink aligns."""

    key: bytes
    seed: str
    folder: str
    aligned_seconds_max: float


def records_of(folder: str) -> Storage:
    return Storage.open(folder).within("records")


def serve_member(security: Security, place: Place, said: Connection) -> None:
    """Says that it is there, waits for the others, and runs until it is killed."""
    warnings.simplefilter("ignore", InsecureTransportWarning)
    logging.disable(logging.WARNING)  # that the other member was killed is no news
    keyvalue = GossipKeyValue(security.member, place.key, [place.seed])
    receiver = Receiver(
        security,
        keyvalue,
        streams_max=len(MEMBERS),
        inbound_bytes_max=len(MEMBERS) * WINDOW_BYTES,
    )
    lock = threading.Lock()

    def report(message: object) -> None:
        with lock:
            said.send(message)

    report("here")
    with keyvalue.watch(ADDRESS_KEY) as watch:
        while keyvalue.scan(ADDRESS_KEY).keys() < set(MEMBERS):
            watch.wait()
    injector = Injector()
    captures = Captures(injector, report)
    source = Source(Sender(security, keyvalue), injector, captures.source.put)
    sink = Sink(security.member, receiver, place.aligned_seconds_max, captures.sink.put)
    for run in (source.run, sink.run):
        threading.Thread(target=_guarded, args=(run, security.member, report), daemon=True).start()
    store = SnapshotStore(Storage.open(place.folder).within("snapshots"), security.member)
    participant = SnapshotParticipant(store, captures.capture)
    EpochMember(keyvalue, DecisionLog(records_of(place.folder)), [participant]).start()
    while True:
        match said.recv():
            case AskCount():
                report(Count(security.member, sink.rows, time.monotonic()))
            case Pace() as pace:
                source.pace = sink.pace = pace


class Captures:
    """Between the epochs' worker and the threads of the pipeline: lets a barrier in, and waits for
    both ends to say what is in front of it."""

    def __init__(self, injector: Injector, report: Callable[[object], None]) -> None:
        self.source: queue.SimpleQueue[Cut] = queue.SimpleQueue()
        self.sink: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        self._injector = injector
        self._report = report

    def capture(self, barrier: Barrier) -> Captured:
        self._injector.trigger(barrier)
        sent, taken = self.source.get(), self.sink.get()
        self._report(sent)
        self._report(taken.cut())
        parts: dict[str, Iterator[pa.Buffer] | bytes] = {
            f"in flight {member}": (batch.serialize() for batch in flying)
            for member, flying in taken.in_flight.items()
            if flying
        }
        state = {"sent": sent.tallies, "taken": taken.tallies}
        return Captured({"state": repr(state).encode(), **parts})


def _guarded(run: Callable[[], None], member: int, report: Callable[[object], None]) -> None:
    try:
        run()
        report(Failed(member, "it ended"))
    except Exception:  # noqa: BLE001 - whatever it was, the benchmark is told and ends
        report(Failed(member, traceback.format_exc()))


class Source:
    """Sends as fast as it gets credit, and looks at its injector before each part of a batch."""

    def __init__(self, sender: Sender, injector: Injector, on_cut: Callable[[Cut], None]) -> None:
        self.pace = Pace()
        self._sender = sender
        self._injector = injector
        self._on_cut = on_cut
        self._sent = {member: Tally() for member in MEMBERS}

    def run(self) -> None:
        assignment = assign(MEMBERS)
        for batch in batches(seed=self._sender.origin.member):
            parts = split_by_target(batch, vnodes_of([batch.column(0)]), assignment)
            for member, part in parts.items():
                self._send(member, part.remove_column(part.num_columns - 1))
                if self.pace.source_seconds:
                    time.sleep(self.pace.source_seconds)

    def _send(self, member: int, part: pa.RecordBatch) -> None:
        """A barrier may come between the parts of one batch: each stream is cut for itself. What
        waits for credit then is not in front of the barrier; a source that can be restored would
        keep it as part of its own state."""
        while True:
            injector = self._injector
            if injector.pending is not None and (barrier := injector.claim()) is not None:
                self._cut(barrier)
            try:
                self._sender.send(member, VnodeData(STAGE, 0, part), POLL_SECONDS)
            except SendTimeoutError:
                continue
            self._sent[member].add(part)
            return

    def _cut(self, barrier: Barrier) -> None:
        tallies = {member: replace(tally) for member, tally in self._sent.items()}
        self._sender.fan_out(MEMBERS, barrier)
        origin = self._sender.origin.member
        self._on_cut(Cut(barrier.checkpoint, origin, False, tallies, time.monotonic()))


def batches(seed: int) -> Iterator[pa.RecordBatch]:
    """A key, the row's number, and bytes that fill the row; without end."""
    random = np.random.default_rng(seed)
    columns = []
    for _ in range(BATCHES):
        value = random.bytes(BATCH_ROWS * (ROW_BYTES - 16))
        values = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(ROW_BYTES - 16), BATCH_ROWS, [None, pa.py_buffer(value)]
        )
        columns.append((pa.array(random.integers(0, 1_000_000, BATCH_ROWS)), cast(Any, values)))
    numbers = np.arange(BATCH_ROWS)
    for turn, (keys, values) in enumerate(itertools.cycle(columns)):
        numbered = pa.array(numbers + turn * BATCH_ROWS)
        yield pa.record_batch([keys, numbered, values], ["key", "number", "value"])


class Sink:
    """Takes what is there in one go and hands it to the alignment, one item after the other. When
    barriers overtake, it looks for them between items.

    A held input is taken from like the others: the alignment keeps its items. Both sources get
    their barriers within milliseconds here, so that is little.
    """

    def __init__(
        self,
        member: int,
        receiver: Receiver,
        aligned_seconds_max: float,
        on_snapshot: Callable[[Taken], None],
    ) -> None:
        self.rows = 0
        self.pace = Pace()
        self._member = member
        self._receiver = receiver
        self._on_snapshot = on_snapshot
        self._alignment = Alignment["Received"](len(MEMBERS), aligned_seconds_max)
        self._overtakes = not math.isinf(aligned_seconds_max)
        self._taken: deque[Received] = deque()
        self._tallies = {member: Tally() for member in MEMBERS}
        self._captured: dict[int, dict[int, Tally]] = {}

    def run(self) -> None:
        while True:
            if not self._taken:
                first = self._receiver.receive()
                if first is None:
                    return
                self._take([first, *self._receiver.drain()])
            elif self._overtakes and (control := self._receiver.drain_control()):
                # What is in front of these has to be known, and so everything is taken.
                waiting = [*control, *self._receiver.drain()]
                self._take(sorted(waiting, key=lambda received: received.number))
            self._handle(_arrival(self._taken.popleft()))

    def _take(self, fresh: list[Received]) -> None:
        """Everything taken before has a lower number."""
        self._taken += fresh
        if not self._overtakes:
            return
        for received in fresh:
            if isinstance(received.frame, Barrier):
                passed = [
                    _data(waiting)
                    for waiting in self._taken
                    if waiting.origin == received.origin
                    and waiting.number < received.number
                    and waiting.stage is not None
                ]
                self._handle(BarrierOvertook(_input(received), received.frame, tuple(passed)))

    def _handle(self, event: AlignmentEvent[Received]) -> None:
        for effect in self._alignment.handle(event, time.monotonic()):
            match effect:
                case Deliver(item=received):
                    self._process(received)
                case Capture(barrier=barrier):
                    self._captured[barrier.checkpoint] = {
                        member: replace(tally) for member, tally in self._tallies.items()
                    }
                case Snapshot(barrier=barrier, in_flight=in_flight):
                    self._cut(barrier, in_flight)
                case Aborted(checkpoint=checkpoint, reason=reason):
                    raise RuntimeError(f"checkpoint {checkpoint} was aborted: {reason.value}")

    def _process(self, received: Received) -> None:
        batch = _batch(received)
        self._tallies[received.origin.member].add(batch)
        self.rows += batch.num_rows
        if self.pace.sink_seconds:
            time.sleep(self.pace.sink_seconds)

    def _cut(self, barrier: Barrier, in_flight: tuple[tuple[Received, ...], ...]) -> None:
        flying = {
            member: [_batch(received) for received in items]
            for member, items in zip(MEMBERS, in_flight, strict=True)
        }
        state = self._captured.pop(barrier.checkpoint)
        self._on_snapshot(Taken(barrier.checkpoint, self._member, state, flying, time.monotonic()))


def _arrival(received: Received) -> AlignmentEvent[Received]:
    match received.frame:
        case VnodeData():
            return _data(received)
        case Barrier() as barrier:
            return BarrierArrived(_input(received), barrier)
        case other:
            raise RuntimeError(f"{received.origin} said {other}")


def _data(received: Received) -> DataArrived[Received]:
    return DataArrived(_input(received), received, received.charged_bytes)


def _input(received: Received) -> int:
    return MEMBERS.index(received.origin.member)


def _batch(received: Received) -> pa.RecordBatch:
    if not isinstance(received.frame, VnodeData):
        raise TypeError(f"{received.frame} has no rows")
    return received.frame.batch
