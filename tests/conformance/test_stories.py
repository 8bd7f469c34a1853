"""Many senders, all ways to take, and connections that are cut: compared with a simple model."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PeerUnavailableError
from penstock.transport import Barrier, Close, Flush, Flushed, Mark, MarkKind, Origin, VnodeData
from penstock.transport.connection import SendTimeoutError
from tests.conformance.batches import number_of, numbered
from tests.conformance.fabric import RECEIVING, SMALL_WINDOW_BYTES
from tests.conformance.model import Dials, Model, identity
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, eventually, waiting_frames

if TYPE_CHECKING:
    from penstock.transport import Received, Receiver, Sender
    from penstock.transport.frames import Message
    from tests.conformance.fabric import Fabric

STAGES = ["a/1", "a/2", "ab", "b", "c/long/name"]
PREFIXES = ["a", "a/", "c", "", "nothing"]
ORIGINS = [Origin(1, 0), Origin(1, 1), Origin(3, 0)]


class Story:
    """One thread does everything, by chance; the carriers' own threads are chance enough."""

    def __init__(self, fabric: Fabric, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.choose = random.Random(seed)
        self.model = Model()
        self.dials = Dials(fabric, monkeypatch)
        self.receiver: Receiver = fabric.small_receiver()
        self.senders: dict[Origin, Sender] = {
            origin: fabric.sender(origin.member, lane=origin.lane) for origin in ORIGINS
        }
        self.answered: dict[tuple[Origin, int], list[int]] = defaultdict(list)
        """Flushes that were answered, by origin and the receiver's connection."""
        self.answers: dict[Origin, list[int]] = {origin: [] for origin in ORIGINS}
        self._last = 0

    def step(self) -> None:
        steps = [self.send] * 8 + [self.take_one, self.take_many, self.put_back, self.keep] * 2
        steps += [self.answer, self.hear_answers, self.interrupt]
        steps += [self.cut] if self.choose.random() < 0.3 else []
        self.choose.choice(steps)()
        self.check_window()

    def send(self) -> None:
        origin = self.choose.choice(ORIGINS)
        for _ in range(self.choose.choice((1, 1, 5))):
            self._last += 1
            message: Message = numbered(
                self._last,
                stage=self.choose.choice(STAGES),
                pad_bytes=self.choose.choice((0, 10, 300, 3000, 20_000)),
            )
            if self.choose.random() < 0.2:
                mark = Mark(self.choose.choice(list(MarkKind)), self._last)
                kind = self.choose.choice((Barrier(self._last, 1), Flush(self._last), mark))
                message = kind
            try:
                self.senders[origin].send(RECEIVING, message, 0.01)
            except SendTimeoutError:
                continue
            except PeerUnavailableError:
                continue  # the connection was cut while this waited: it was not sent
            self.model.sent[origin, self.dials.counts[origin]].append(self._last)

    def take_one(self) -> None:
        self.model.on_received(self.receiver.receive(self.choose.choice((0, 0, 0.01))))

    def take_many(self) -> None:
        way = self.choose.randrange(4)
        if way == 0:
            self.model.on_drained(self.receiver.drain())
        elif way == 1:
            stage = self.choose.choice(STAGES)
            taken = self.receiver.drain_stage(stage)
            self.model.on_drained(taken, lambda found: found == stage)
        elif way == 2:
            prefix = self.choose.choice(PREFIXES)
            stages = self.receiver.drain_prefix(prefix)
            assert all(each.stage == stage for stage in stages for each in stages[stage])
            together = sorted(chain(*stages.values()), key=lambda each: each.number)
            self.model.on_drained(
                together, lambda found: found is not None and found.startswith(prefix)
            )
        else:
            self.model.on_drained(self.receiver.drain_control(), lambda found: found is None)

    def put_back(self) -> None:
        for received in self._some_in_hand(3):
            self.receiver.stage(received)
            self.model.put_back(received)

    def keep(self) -> None:
        for received in self._some_in_hand(30):
            self.model.keep(received)

    def answer(self) -> None:
        for received in list(self.model.hand.values()):
            if isinstance(received.frame, Flush) and self.choose.random() < 0.7:
                cycle = received.frame.cycle
                if self.receiver.reply(received.origin, Flushed(cycle, cycle)):
                    self.answered[received.origin, received.connection].append(cycle)
                self.model.keep(received)

    def hear_answers(self) -> None:
        for origin, sender in self.senders.items():
            while (heard := sender.receive_flushed(0.001)) is not None:
                member, flushed = heard
                assert member == RECEIVING
                assert flushed.lsn == flushed.cycle
                self.answers[origin].append(flushed.cycle)

    def interrupt(self) -> None:
        self.receiver.interrupt()

    def cut(self) -> None:
        origin = self.choose.choice(ORIGINS)
        connection = self.senders[origin]._pool.connections.get(RECEIVING)
        if connection is not None and connection._link is not None:
            self.model.cut.add((origin, self.dials.counts[origin]))
            connection._link.cut()

    def check_window(self) -> None:
        inbox = self.receiver._inbox
        with inbox._ready:
            waiting = [each for queue in inbox._queues.values() for each in queue]
        for origin in ORIGINS:
            held = sum(each.charged_bytes for each in waiting if each.origin == origin)
            put_back = sum(
                each.charged_bytes for each in self.model.staged.values() if each.origin == origin
            )
            assert held - put_back <= SMALL_WINDOW_BYTES

    def end(self) -> None:
        for origin, sender in self.senders.items():
            Background(sender.close, f"closing the sender of {origin}").result()
        self.hear_answers()
        eventually(self._all_ended, "that every connection has ended")
        self.model.on_drained(self.receiver.drain())
        for received in list(self.model.hand.values()):
            self.model.keep(received)
        self.model.check_end(self.dials)
        self._check_answers()

    def _all_ended(self) -> bool:
        self.model.on_drained(self.receiver.drain())
        everything = [*self.model.hand.values(), *self.model.done]
        ends = Counter(each.origin for each in everything if isinstance(each.frame, Close))
        return ends == Counter(self.dials.counts) and waiting_frames(self.receiver) == 0

    def _check_answers(self) -> None:
        for origin, heard in self.answers.items():
            assert len(set(heard)) == len(heard), "an answer came twice"
            connections = sorted(at for who, at in self.answered if who == origin)
            said = [cycle for at in connections for cycle in self.answered[origin, at]]
            assert set(heard) <= set(said)
            if not any(who == origin for who, _ in self.model.cut):
                assert heard == said, "every answer came, in order"

    def _some_in_hand(self, at_most: int) -> list[Received]:
        held = list(self.model.hand.values())
        return self.choose.sample(held, min(len(held), self.choose.randint(1, at_most)))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_done_agrees_with_the_model(
    fabric: Fabric, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(fabric, seed, monkeypatch)
    for _ in range(160):
        story.step()
    story.end()
    assert len(story.model.done) > 60


def test_many_senders_and_takers_at_once(fabric: Fabric) -> None:
    """Threads of several members and lanes; each frame comes once, and stages keep their order."""
    receiver = fabric.small_receiver(streams_max=8)
    origins = [Origin(member, lane) for member in (1, 3, 4) for lane in range(2)]
    senders = {origin: fabric.sender(origin.member, lane=origin.lane) for origin in origins}
    per_thread = 60

    def send_all(origin: Origin, thread: int) -> None:
        choose = random.Random(f"{origin} {thread}")
        stage = f"stage/{thread}"
        for number in range(per_thread):
            pad_bytes = choose.choice((0, 100, 4000, 30_000))
            message = numbered(number, stage=stage, pad_bytes=pad_bytes)
            senders[origin].send(RECEIVING, message, WAIT_SECONDS_MAX)
            if number % 20 == 19:
                senders[origin].send(RECEIVING, Barrier(number, thread), WAIT_SECONDS_MAX)

    sending = [
        Background(partial(send_all, origin, thread), f"thread {thread} of {origin}")
        for origin in origins
        for thread in range(2)
    ]
    taken: list[Received] = []
    lock, ended = threading.Lock(), threading.Event()

    def take_all(seed: int) -> None:
        choose = random.Random(seed)
        while not ended.is_set():
            way = choose.randrange(4)
            if way == 0:
                one = receiver.receive(0.01)
                found = [one] if one is not None else []
            elif way == 1:
                found = receiver.drain_stage(f"stage/{choose.randrange(2)}")
            elif way == 2:
                found = list(chain(*receiver.drain_prefix("stage").values()))
            else:
                found = receiver.drain_control()
            put_back = [each for each in found if choose.random() < 0.1]
            for each in put_back:
                receiver.stage(each)
            with lock:
                taken.extend(each for each in found if each not in put_back)

    taking = [Background(partial(take_all, seed), f"taker {seed}") for seed in range(3)]
    expected = len(sending) * (per_thread + 3)
    for each in sending:
        each.result()

    def all_taken() -> bool:
        with lock:
            return len(taken) >= expected

    eventually(all_taken, lambda: f"that all {expected} frames are taken; {len(taken)} are")
    ended.set()
    for taker in taking:
        taker.result()
    assert len({each.number for each in taken}) == len(taken) == expected
    by_stage: dict[tuple[Origin, str | None], list[int]] = defaultdict(list)
    for received in sorted(taken, key=lambda each: each.number):
        by_stage[received.origin, received.stage].append(identity(received.frame))
    for origin in origins:
        for thread in range(2):
            assert by_stage[origin, f"stage/{thread}"] == list(range(per_thread))
        assert sorted(by_stage[origin, None]) == [19, 19, 39, 39, 59, 59]


def test_one_taker_sees_every_stage_in_order_while_senders_reconnect(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    sender = fabric.sender()
    stop = threading.Event()

    def cut_now_and_then() -> None:
        choose = random.Random(1)
        while not stop.wait(choose.choice((0.001, 0.01, 0.05))):
            connection = sender._pool.connections.get(RECEIVING)
            if connection is not None and connection._link is not None:
                connection._link.cut()

    def send_all() -> None:
        for number in range(400):
            with suppress(PeerUnavailableError):
                message = numbered(number, stage=STAGES[number % 3], pad_bytes=2000)
                sender.send(RECEIVING, message, WAIT_SECONDS_MAX)

    cutting = Background(cut_now_and_then, "cutting connections")
    sending = Background(send_all, "sending over connections that are cut")
    last: dict[str, int] = {}
    connections: list[int] = []
    ended: set[int] = set()
    while sending.running or waiting_frames(receiver):
        received = receiver.receive(0.05)
        if received is None:
            continue
        assert received.connection not in ended, "a frame came after the Close of its connection"
        if isinstance(received.frame, Close):
            ended.add(received.connection)
            continue
        assert isinstance(received.frame, VnodeData)
        number = number_of(received.frame)
        assert number > last.get(received.frame.stage, -1), "a frame came twice, or too late"
        last[received.frame.stage] = number
        connections.append(received.connection)
    stop.set()
    cutting.result()
    sending.result()
    assert connections == sorted(connections)
