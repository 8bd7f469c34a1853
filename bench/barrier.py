"""Barriers through a pipeline of two members, each with a source and a sink, over tcp.

Each source sends to both sinks, and each sink has both sources as inputs; barrier_members.py has
them. The cut of every epoch is checked: what the sinks hold of each source, in their state and in
flight, is what that source had sent when it let the barrier go. Else there are no figures.

`injector.poll`: a look at an idle injector, as a source does it, beside reading a plain attribute
and comparing it.

`throughput`: "ours" with an epoch every half second, "peer" without epochs. Rounds of the two take
turns in one run; the ratio is the median of those of neighbours. `noise`: the same of neighbours
that are both without epochs. Where that is not 1, the machine was too busy to tell anything.

The other lines are no rates, and less is better. "Ours" is the time from the order to begin an
epoch, in milliseconds: until every sink has captured it (`captured`: an unaligned one with
everything in flight), and until the leader has recorded and announced its commit (`committed`: the
snapshots are written and synced by then). "Peer" is the interval between epochs. `keeping_up`: the
sources pause now and then, and the windows are nearly empty. `slow_sinks`: the sinks pause instead,
and the windows are full.

All of an epoch is real: announced by gossip, decided by a record in a folder, members' snapshots in
files. The leader is in the process of the benchmark, and is no member of the pipeline.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.barrier_members import (
    MEMBERS,
    AskCount,
    Count,
    Cut,
    Failed,
    Pace,
    Place,
    records_of,
    serve_member,
)
from bench.report import Line, compare
from bench.transport_servers import serving
from penstock.checkpoint import Injector
from penstock.directory.gossip import GossipKeyValue
from penstock.epoch.coordinator import Coordinator
from penstock.transport.security import ClusterSecurity, InsecureTransportWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

    from penstock.epoch.leader import Concluded

INTERVAL_SECONDS: Final = 0.5
EPOCHS_PER_ROUND: Final = 2
EPOCHS: Final = 100
"""Of each latency."""
SETTLE_SECONDS: Final = 1.0
"""Until windows are as full as they get."""
ANSWER_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.005
"""Between looks whether an epoch is concluded. When it was is noted elsewhere."""
LEADER: Final = 3
POLLS: Final = 10_000

MODES: Final = {"aligned": (math.inf, 24), "unaligned": (0.0, 8)}
"""`aligned_seconds_max` of the sinks, and pairs of rounds. Aligned is the default, and what has to
keep its throughput; the other is for comparison. More would be better: where others work too,
neighbours differ by a seventh. But all of it has to be over in three minutes."""
PACES: Final = {
    "keeping_up": (Pace(source_seconds=0.004), 0.02),
    "slow_sinks": (Pace(sink_seconds=0.003), 0.1),
}
"""And the gap between epochs, in seconds. A slow sink that barriers overtook has taken all that was
in its inbox, and its senders filled that again: it has to get through the one before the next."""


def run() -> Iterator[Line]:
    warnings.simplefilter("ignore", InsecureTransportWarning)
    yield poll()
    for mode, (aligned_seconds_max, pairs) in MODES.items():
        with contextlib.ExitStack() as stack:
            epochs = Epochs(stack, aligned_seconds_max)
            epochs.begin()
            epochs.settle()  # so everything runs
            epochs.listen_until(time.monotonic() + SETTLE_SECONDS)
            yield from throughput(f"barrier.throughput.{mode}", epochs, pairs)
            for label, (pace, gap_seconds) in PACES.items():
                epochs.tell(pace)
                epochs.listen_until(time.monotonic() + SETTLE_SECONDS)
                yield from latencies(f"{mode}.{label}", epochs, gap_seconds)


def poll() -> Line:
    return compare(
        "barrier.injector.poll",
        partial(poll_injector, Injector()),
        partial(read_attribute, _Plain()),
        POLLS,
        "polls/s",
    )


def poll_injector(injector: Injector) -> None:
    for _ in range(POLLS):
        if injector.pending is not None and injector.claim() is not None:
            raise RuntimeError("nobody triggered a barrier")


def read_attribute(plain: _Plain) -> None:
    for _ in range(POLLS):
        if plain.value is not None:
            raise RuntimeError("nobody set the value")


class _Plain:
    def __init__(self) -> None:
        self.value: object | None = None


def throughput(name: str, epochs: Epochs, pairs: int) -> Iterator[Line]:
    """The order within a pair alternates too: neither side always has the other's leavings, and two
    rounds without epochs stand side by side where one pair ends and the next begins."""
    rates: list[dict[bool, float]] = []
    for number in range(pairs):
        order = (True, False) if number % 2 else (False, True)
        rates.append({with_epochs: rows_per_second(epochs, with_epochs) for with_epochs in order})
    yield of_pairs(name, [(pair[True], pair[False]) for pair in rates])
    neighbours = zip(rates[1::2], rates[2::2], strict=False)
    yield of_pairs(f"{name}.noise", [(one[False], next_[False]) for one, next_ in neighbours])


def of_pairs(name: str, rates: list[tuple[float, float]]) -> Line:
    ours, peer = (statistics.median(side) for side in zip(*rates, strict=True))
    return Line(name, ours, peer, statistics.median(one / other for one, other in rates), "rows/s")


def rows_per_second(epochs: Epochs, with_epochs: bool) -> float:
    before = epochs.counts()
    begin = time.monotonic()
    if with_epochs:
        for number in range(EPOCHS_PER_ROUND):
            # In the middle of its interval, so that it is over within the round.
            epochs.listen_until(begin + (number + 0.5) * INTERVAL_SECONDS)
            epochs.begin()
    epochs.listen_until(begin + EPOCHS_PER_ROUND * INTERVAL_SECONDS)
    after = epochs.counts()
    epochs.settle()
    return sum(
        (after[member].rows - before[member].rows)
        / (after[member].at_seconds - before[member].at_seconds)
        for member in MEMBERS
    )


def latencies(mode: str, epochs: Epochs, gap_seconds: float) -> Iterator[Line]:
    settled: list[Settled] = []
    for _ in range(EPOCHS):
        epochs.begin()
        settled += epochs.settle()
        epochs.listen_until(time.monotonic() + gap_seconds)
    for step in ("captured", "committed"):
        seconds = [getattr(found, f"{step}_seconds") for found in settled]
        for percentile in (50, 99):
            found_ms = float(np.percentile(seconds, percentile)) * 1000
            name = f"barrier.{step}.{mode}.p{percentile}"
            yield Line.of(name, found_ms, INTERVAL_SECONDS * 1000, "ms")


@dataclass(frozen=True, slots=True)
class Settled:
    """How long an epoch took, from the order to begin it."""

    captured_seconds: float
    committed_seconds: float


class Epochs:
    """The pipeline as the benchmark sees it: it leads the epochs, and hears what members report."""

    def __init__(self, stack: contextlib.ExitStack, aligned_seconds_max: float) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = ClusterSecurity.insecure()
        key = secrets.token_bytes(32)
        keyvalue = stack.enter_context(GossipKeyValue(LEADER, key, []))
        self._open: tuple[float, Future[Concluded]] | None = None
        self._committed_seconds = 0.0
        self._cuts: dict[int, list[Cut]] = {}
        self._counts: dict[int, Count] = {}
        self._pipes: list[Connection] = []
        for member in MEMBERS:
            security = cluster.member_security(member)
            place = Place(key, keyvalue.address, folder, aligned_seconds_max)
            _, pipe = stack.enter_context(serving(serve_member, security, place))
            self._pipes.append(pipe)
        # A member refuses what may have begun before it did: nobody leads until all are there.
        self.counts()
        self._coordinator = stack.enter_context(Coordinator(keyvalue, records_of(folder), MEMBERS))
        if not self._coordinator.wait_until_leading(ANSWER_SECONDS_MAX):
            raise RuntimeError("the coordinator does not lead")
        self.listen_until(time.monotonic() + SETTLE_SECONDS)

    def begin(self) -> None:
        """Orders an epoch; if one is under way, waits for that first."""
        self.settle()
        begun_seconds = time.monotonic()
        concluded = self._coordinator.begin()
        concluded.add_done_callback(self._note_committed)
        self._open = begun_seconds, concluded

    def _note_committed(self, concluded: Future[Concluded]) -> None:
        del concluded
        self._committed_seconds = time.monotonic()

    def settle(self) -> list[Settled]:
        """Waits for the epoch that is under way, if there is one, and checks its cut."""
        if self._open is None:
            return []
        (begun_seconds, concluded), self._open = self._open, None
        self._listen_while(lambda: not concluded.done())
        decision = concluded.result().decision
        if not decision.is_commit:
            raise RuntimeError(f"epoch {decision.epoch} was aborted: {decision.reason}")
        self._listen_while(lambda: len(self._cuts.get(decision.epoch, ())) < 2 * len(MEMBERS))
        cuts = self._cuts.pop(decision.epoch)
        check_consistent(cuts)
        captured_seconds = max(cut.at_seconds for cut in cuts if cut.is_sink)
        return [Settled(captured_seconds - begun_seconds, self._committed_seconds - begun_seconds)]

    def counts(self) -> dict[int, Count]:
        self._counts = {}
        self.tell(AskCount())
        self._listen_while(lambda: len(self._counts) < len(MEMBERS))
        return self._counts

    def tell(self, message: object) -> None:
        for pipe in self._pipes:
            pipe.send(message)

    def listen_until(self, until_seconds: float) -> None:
        while (left_seconds := until_seconds - time.monotonic()) > 0:
            self._listen(left_seconds)

    def _listen_while(self, waiting: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while waiting():
            self._listen(LOOK_SECONDS)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer in {ANSWER_SECONDS_MAX} s: {self._cuts}")

    def _listen(self, timeout_seconds: float) -> None:
        ready = wait(self._pipes, timeout_seconds)
        for message in [pipe.recv() for pipe in self._pipes if pipe in ready]:
            match message:
                case Cut() as cut:
                    self._cuts.setdefault(cut.checkpoint, []).append(cut)
                case Count() as count:
                    self._counts[count.member] = count
                case Failed(member=member, reason=reason):
                    raise RuntimeError(f"member {member} failed: {reason}")


def check_consistent(cuts: list[Cut]) -> None:
    """No row is on both sides of the cut, or on neither."""
    sources = {cut.member: cut for cut in cuts if not cut.is_sink}
    sinks = {cut.member: cut for cut in cuts if cut.is_sink}
    for source in MEMBERS:
        for sink in MEMBERS:
            sent, taken = sources[source].tallies[sink], sinks[sink].tallies[source]
            if sent != taken:
                raise RuntimeError(
                    f"epoch {cuts[0].checkpoint} is no cut: member {source} had sent {sent} to "
                    f"member {sink}, whose snapshot holds {taken}"
                )
