"""The inbox against a plain list: whatever is taken in whatever way, nothing is lost, doubled or
out of order."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.errors import LocalProtocolError
from penstock.transport.frames import Barrier, Close, Flush, Origin, VnodeData
from penstock.transport.inbox import Inbox, Received

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport.inbox import Arrival

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""
BATCH = pa.record_batch([pa.array([1])], ["n"])
ORIGINS = [Origin(1), Origin(1, 1), Origin(2)]
STAGES = ["a", "ab", "abc", "b"]

FRAMES = st.one_of(
    st.builds(VnodeData, st.sampled_from(STAGES), st.integers(0, 255), st.just(BATCH)),
    st.builds(Barrier, st.integers(0, 99), st.integers(0, 99)),
    st.builds(Flush, st.integers(0, 99)),
    st.builds(Close, st.text(max_size=3)),
)
ARRIVALS = st.lists(st.tuples(FRAMES, st.integers(0, 99)), max_size=5)


class AgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(self.on_taken)
        self.model: list[Received] = []
        self.taken: list[Received] = []
        self.told: list[Received] = []
        self.fails = False
        self.closed = False
        self.number = 0

    def on_taken(self, taken: list[Received]) -> None:
        if self.fails:
            raise ConnectionError("the credit cannot be sent")
        self.told += taken

    @rule(origin=st.sampled_from(ORIGINS), connection=st.integers(1, 3), arrivals=ARRIVALS)
    def put(self, origin: Origin, connection: int, arrivals: list[Arrival]) -> None:
        self.inbox.put(origin, connection, arrivals)
        if self.closed:
            return
        for frame, charged_bytes in arrivals:
            self.number += 1
            self.model.append(Received(origin, connection, self.number, frame, charged_bytes))

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0))
    def put_back(self, which: int) -> None:
        received = self.taken.pop(which % len(self.taken))
        self.inbox.put_back(received)
        self.model.append(received)
        self.model.sort(key=lambda each: each.number)

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0))
    def put_back_what_is_there(self, which: int) -> None:
        with pytest.raises(LocalProtocolError, match="is staged already"):
            self.inbox.put_back(self.model[which % len(self.model)])

    @rule()
    def take(self) -> None:
        expected = self.model[:1]
        received = self.inbox.take(0)
        self.is_taken([] if received is None else [received], expected)

    @rule(stage=st.sampled_from(STAGES))
    def drain_stage(self, stage: str) -> None:
        self.drain(lambda found: found == stage)

    @rule(prefix=st.sampled_from(["", "a", "ab", "c"]))
    def drain_prefix(self, prefix: str) -> None:
        self.drain(lambda stage: stage is not None and stage.startswith(prefix))

    @rule()
    def drain_control(self) -> None:
        self.drain(lambda stage: stage is None)

    @rule()
    def drain_all(self) -> None:
        self.drain(lambda _: True)

    def drain(self, chosen: Callable[[str | None], bool]) -> None:
        expected = [each for each in self.model if chosen(stage_of(each))]
        self.is_taken(self.inbox.drain(chosen), expected)

    def is_taken(self, found: list[Received], expected: list[Received]) -> None:
        assert found == expected
        assert self.told == expected, "whoever returns the credits hears of everything, once"
        self.told.clear()
        numbers = {each.number for each in expected}
        self.model = [each for each in self.model if each.number not in numbers]
        self.taken += expected

    @precondition(lambda self: self.model)
    @rule(all_at_once=st.booleans())
    def fail_to_take(self, all_at_once: bool) -> None:
        self.fails = True
        with pytest.raises(ConnectionError):
            self.inbox.drain(lambda _: True) if all_at_once else self.inbox.take(0)
        self.fails = False

    @rule()
    def interrupt(self) -> None:
        self.inbox.interrupt()

    @precondition(lambda self: self.number > 5)
    @rule()
    def close(self) -> None:
        self.inbox.close()
        self.closed = True

    def teardown(self) -> None:
        self.drain_all()
        assert self.inbox.take(0) is None


AgainstAList.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAgainstAList = AgainstAList.TestCase


def stage_of(received: Received) -> str | None:
    return received.frame.stage if isinstance(received.frame, VnodeData) else None


def untold(taken: list[Received]) -> None:
    pass


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(untold)


def fill(inbox: Inbox, origin: Origin, count: int) -> None:
    for number in range(count):
        frame: VnodeData | Barrier = Barrier(number, 0)
        if number % 5:
            frame = VnodeData(STAGES[number % 4], number, BATCH)
        inbox.put(origin, 1, [(frame, number)])


def key_of(received: Received) -> tuple[Origin, int]:
    """What tells frames of `fill` apart."""
    return received.origin, received.charged_bytes


def test_takers_lose_and_double_nothing(inbox: Inbox) -> None:
    count = 1_500
    done = threading.Event()

    def take(number: int) -> list[Received]:
        taken: list[Received] = []
        while True:
            last_round = done.is_set()
            if number == 0:
                found = inbox.drain(lambda stage: stage is None)
            elif number == 1:
                found = inbox.drain(lambda stage: stage is not None and stage.startswith("ab"))
            else:
                received = inbox.take(0.001)
                found = [] if received is None else [received]
            taken += found
            if last_round and not found:
                return taken

    with ThreadPoolExecutor(7) as pool:
        takers = [pool.submit(take, number) for number in range(4)]
        fillers = [pool.submit(fill, inbox, origin, count) for origin in ORIGINS]
        for filler in fillers:
            filler.result(WAIT_SECONDS_MAX)
        done.set()
        taken = [taker.result(WAIT_SECONDS_MAX) for taker in takers]
    together = [received for each in taken for received in each]
    assert Counter(map(key_of, together)) == Counter(
        (origin, number) for origin in ORIGINS for number in range(count)
    )
    assert sorted(received.number for received in together) == list(range(1, 3 * count + 1))
    for each in taken:
        for origin in ORIGINS:
            for stage in (None, *STAGES):
                numbers = [r.number for r in each if r.origin == origin and stage_of(r) == stage]
                assert numbers == sorted(numbers), "order within origin and stage"


def test_frames_put_back_from_many_threads_are_not_lost(inbox: Inbox) -> None:
    count = 600
    for origin in ORIGINS:
        fill(inbox, origin, count)

    def take(seed: int) -> list[Received]:
        chance = random.Random(seed)
        kept: list[Received] = []
        for _ in range(3 * count):
            if chance.random() < 0.05:
                stage = chance.choice(STAGES)
                found = inbox.drain({stage}.__contains__)
            else:
                received = inbox.take(0)
                found = [] if received is None else [received]
            for received in found:
                if chance.random() < 0.5:
                    inbox.put_back(received)
                else:
                    kept.append(received)
        return kept

    with ThreadPoolExecutor(4) as pool:
        kept = [each for taken in pool.map(take, range(4)) for each in taken]
    rest = inbox.drain(lambda _: True)
    assert [each.number for each in rest] == sorted(each.number for each in rest)
    numbers = sorted(received.number for received in [*kept, *rest])
    assert numbers == list(range(1, 3 * count + 1))


def finished(future: Future[Received | None], wake: Callable[[], None]) -> Received | None:
    """Wakes until the waiter is done: it may not have begun to wait yet."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not future.done() and time.monotonic() < deadline:
        wake()
        time.sleep(0.001)
    return future.result(0)


def test_a_taker_waits_and_wakes(inbox: Inbox) -> None:
    with ThreadPoolExecutor(1) as pool, closing(inbox):
        taking = pool.submit(inbox.take)
        inbox.put(Origin(1), 4, [(Flush(1), 0)])
        assert taking.result(WAIT_SECONDS_MAX) == Received(Origin(1), 4, 1, Flush(1), 0)
        received = Received(Origin(1), 4, 1, Flush(1), 0)
        taking = pool.submit(inbox.take)
        inbox.put_back(received)
        assert taking.result(WAIT_SECONDS_MAX) == received
        assert finished(pool.submit(inbox.take), inbox.interrupt) is None
        taking = pool.submit(inbox.take)
        inbox.close()
        assert taking.result(WAIT_SECONDS_MAX) is None
        assert inbox.take() is None, "nobody waits for a closed inbox"


def test_an_interrupt_wakes_everybody_and_is_over(inbox: Inbox) -> None:
    with ThreadPoolExecutor(3) as pool, closing(inbox):
        for taking in [pool.submit(inbox.take) for _ in range(3)]:
            assert finished(taking, inbox.interrupt) is None
        taking = pool.submit(inbox.take, WAIT_SECONDS_MAX)
        inbox.put(Origin(1), 1, [(Flush(1), 0)])
        received = taking.result(WAIT_SECONDS_MAX)
        assert received is not None
        assert received.frame == Flush(1)


def test_what_arrived_before_a_close_can_still_be_taken(inbox: Inbox) -> None:
    inbox.put(Origin(1), 1, [(Flush(1), 0), (Flush(2), 0)])
    inbox.close()
    inbox.put(Origin(1), 1, [(Flush(3), 0)])
    first = inbox.take()
    assert first is not None
    inbox.put_back(first)
    assert [each.frame for each in inbox.drain(lambda _: True)] == [Flush(1), Flush(2)]


def test_a_taker_thrown_out_of_its_wait_has_taken_nothing(inbox: Inbox) -> None:
    class ThrownOutError(Exception):
        pass

    def throw(number: int, frame: object) -> None:
        raise ThrownOutError

    before = signal.signal(signal.SIGALRM, throw)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ThrownOutError):
            inbox.take()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    inbox.put(Origin(1), 1, [(Flush(1), 0)])
    received = inbox.take(0)
    assert received is not None
    assert received.frame == Flush(1)
