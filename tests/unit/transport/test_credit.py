"""Credits: a sender never exceeds its window, and never waits for ever.

The state machine joins both ends by channels that keep their order and delay as they like. What it
holds them to is written out by its own books, kept beside the code's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport.credit import (
    CONTROL_FRAMES_MAX,
    QUEUED_BYTES_MAX,
    QUEUED_FRAMES_MAX,
    WINDOW_BYTES_MIN,
    Allowance,
    Window,
    charge,
)
from penstock.transport.frames import Credit

WINDOWS = (WINDOW_BYTES_MIN, WINDOW_BYTES_MIN + 1, WINDOW_BYTES_MIN + 3, 4 * QUEUED_BYTES_MAX)
FRACTIONS = st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.25, 3.0])


@dataclass(frozen=True)
class Data:
    """A data frame, as this test knows it."""

    estimate_bytes: int
    cost_bytes: int


@dataclass(frozen=True)
class Held:
    """What the receiver holds: a data frame's charge, or zero for a control frame."""

    charged_bytes: int
    was_put_back: bool = False


CONTROL = None
"""A control frame on its way."""


@st.composite
def sizes(draw: st.DrawFn) -> tuple[float, int]:
    """A fraction of the window, and bytes beside it: as a pair, since the window is not known."""
    return draw(st.just(0.0) | FRACTIONS), draw(st.integers(-2, 2) | st.integers(1, 3_000))


class TwoEnds(RuleBasedStateMachine):
    @initialize(window_bytes=st.sampled_from(WINDOWS))
    def open(self, window_bytes: int) -> None:
        self.window = Window(window_bytes)
        self.held: list[Held] = []
        self.taken: list[Held] = []
        self.connect()

    def connect(self) -> None:
        """A new sender: what was under way in either direction is gone."""
        self.allowance = Allowance(window_bytes=self.window.capacity_bytes)
        self.queued: deque[Data] = deque()  # reserved, waits to be encoded
        self.waiting: deque[Data] = deque()  # callers that wait for credit
        self.controls_waiting = 0
        self.to_receiver: deque[Data | None] = deque()
        self.to_sender: deque[Credit] = deque([self.window.reopen()])

    def bytes_of(self, size: tuple[float, int]) -> int:
        return max(1, int(size[0] * self.window.capacity_bytes) + size[1])

    @rule()
    def reconnect(self) -> None:
        self.connect()

    @rule(cost=sizes(), estimate=st.none() | sizes())
    def send(self, cost: tuple[float, int], estimate: tuple[float, int] | None) -> None:
        cost_bytes = self.bytes_of(cost)
        estimate_bytes = max(cost_bytes, self.bytes_of(estimate)) if estimate else cost_bytes
        self.waiting.append(Data(estimate_bytes, cost_bytes))
        self.reserve()

    @precondition(lambda self: self.waiting)
    @rule()
    def reserve(self) -> None:
        """Any caller may be first. Here it is the one that waits longest."""
        if self.allowance.reserve(self.waiting[0].estimate_bytes):
            assert self.allowance.data_bytes >= self.allowance.reserved_bytes
            self.queued.append(self.waiting.popleft())

    @precondition(lambda self: self.queued)
    @rule()
    def encode(self) -> None:
        self.settle()

    def settle(self) -> None:
        """Without a condition: what is queued never waits for credit."""
        front = self.queued.popleft()
        self.allowance.settle(front.estimate_bytes, front.cost_bytes)
        assert self.allowance.data_bytes >= self.allowance.reserved_bytes
        self.to_receiver.append(front)

    @rule(count=st.sampled_from([1, 2, 300, 1_500]))
    def send_control(self, count: int) -> None:
        self.controls_waiting = min(self.controls_waiting + count, 3_000)
        self.spend_control()

    def spend_control(self) -> None:
        while self.controls_waiting and self.allowance.spend_control():
            self.controls_waiting -= 1
            self.to_receiver.append(CONTROL)

    @precondition(lambda self: self.to_receiver)
    @rule(count=st.sampled_from([1, 1, 5, 2_000]))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.to_receiver))):
            match self.to_receiver.popleft():
                case None:
                    self.window.arrive_control()
                    self.held.append(Held(0))
                case frame:
                    charged_bytes = self.window.arrive(frame.cost_bytes)
                    assert charged_bytes == charge(frame.cost_bytes, self.window.capacity_bytes)
                    self.held.append(Held(charged_bytes))

    @precondition(lambda self: self.to_sender)
    @rule()
    def deliver_credit(self) -> None:
        self.allowance.grant(self.to_sender.popleft())
        self.spend_control()

    @precondition(lambda self: self.held)
    @rule(begin=st.integers(0), count=st.sampled_from([1, 1, 2, 300, 2_000]))
    def take(self, begin: int, count: int) -> None:
        """From anywhere: a stage may be drained past another."""
        begin %= len(self.held)
        parted, self.held[begin : begin + count] = self.held[begin : begin + count], []
        controls = sum(not each.charged_bytes for each in parted)
        credit = self.window.take(sum(each.charged_bytes for each in parted), controls)
        if credit is not None:
            assert credit.data_bytes or credit.control_frames, "a grant is worth a frame"
            self.to_sender.append(credit)
        self.taken = [*self.taken, *parted][-20:]

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0))
    def put_back(self, which: int) -> None:
        each = self.taken.pop(which % len(self.taken))
        self.window.put_back(each.charged_bytes, int(not each.charged_bytes))
        self.held.append(Held(each.charged_bytes, was_put_back=True))

    @rule(at_once=st.booleans(), cost=sizes())
    def let_all_be_taken(self, at_once: bool, cost: tuple[float, int]) -> None:
        """Liveness: with nothing under way and nothing held, whoever is in front goes on."""
        self.waiting.append(Data(self.bytes_of(cost), self.bytes_of(cost)))
        self.controls_waiting += 1
        while self.queued or self.waiting or self.controls_waiting:
            self.empty_the_channels(2_000 if at_once else 7)
            controls = self.controls_waiting
            self.spend_control()
            assert not controls or self.controls_waiting < controls, "a barrier waits for ever"
            if self.queued:
                self.settle()
            elif self.waiting:
                self.reserve()
                assert self.queued, "a caller waits for ever"

    def empty_the_channels(self, count: int) -> None:
        while self.to_receiver or self.held or self.to_sender:
            if self.to_receiver:
                self.deliver(len(self.to_receiver))
            if self.held:
                self.take(0, count)
            while self.to_sender:
                self.deliver_credit()

    @invariant()
    def books_agree(self) -> None:
        window, allowance = self.window, self.allowance
        under_way = [each for each in self.to_receiver if each is not None]
        granted = [credit.data_bytes for credit in self.to_sender]
        charges = [charge(each.cost_bytes, window.capacity_bytes) for each in under_way]
        assert window.held_bytes == sum(each.charged_bytes for each in self.held)
        assert window.promised_bytes == allowance.data_bytes + sum(granted) + sum(charges)
        assert window.held_frames == sum(not each.charged_bytes for each in self.held)
        controls = len(self.to_receiver) - len(under_way)
        granted = [credit.control_frames for credit in self.to_sender]
        assert window.promised_frames == allowance.control_frames + sum(granted) + controls
        reserved = [charge(each.estimate_bytes, window.capacity_bytes) for each in self.queued]
        assert allowance.reserved_bytes == sum(reserved)
        assert allowance.free_bytes == max(0, allowance.data_bytes - sum(reserved))

    @invariant()
    def the_window_is_overdrawn_by_what_was_put_back_only(self) -> None:
        window = self.window
        back = [each for each in self.held if each.was_put_back]
        overdrawn_bytes = window.held_bytes + window.promised_bytes - window.capacity_bytes
        assert overdrawn_bytes <= sum(each.charged_bytes for each in back)
        overdrawn_frames = window.held_frames + window.promised_frames - CONTROL_FRAMES_MAX
        assert overdrawn_frames <= sum(not each.charged_bytes for each in back)


TwoEnds.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestTwoEnds = TwoEnds.TestCase


@given(st.integers(1, 2**40), st.integers(WINDOW_BYTES_MIN, 2**32))
def test_a_charge_leaves_a_quarter(cost_bytes: int, window_bytes: int) -> None:
    charged_bytes = charge(cost_bytes, window_bytes)
    assert 0 < charged_bytes <= cost_bytes
    assert charged_bytes == cost_bytes or 4 * charged_bytes >= 3 * window_bytes
    assert charged_bytes <= window_bytes - window_bytes // 4


def test_a_window_that_is_too_small_is_refused() -> None:
    assert Window(WINDOW_BYTES_MIN).reopen() == Credit(WINDOW_BYTES_MIN, CONTROL_FRAMES_MAX)
    with pytest.raises(ConfigurationError, match="raise inbound_bytes_max or lower streams_max"):
        Window(WINDOW_BYTES_MIN - 1)


def test_room_is_granted_in_quarters() -> None:
    """A credit for every frame would be as many frames again."""
    window = Window(40_000)
    window.reopen()
    for _ in range(11):
        window.arrive(1_000)
    assert window.take(5_000, 0) is None
    assert window.take(4_999, 0) is None
    assert window.take(1, 0) == Credit(10_000, 0)
    assert window.take(1_000, 0) is None


def test_control_frames_are_granted_in_quarters() -> None:
    window = Window(40_000)
    window.reopen()
    for _ in range(CONTROL_FRAMES_MAX):
        window.arrive_control()
    quarter = CONTROL_FRAMES_MAX // 4
    assert window.take(0, quarter - 1) is None
    assert window.take(0, 1) == Credit(0, quarter)


def test_a_sender_that_exceeds_its_credit_is_refused() -> None:
    window = Window(40_000)
    window.reopen()
    window.arrive(30_000)
    with pytest.raises(RemoteProtocolError, match="a frame of 10001 bytes with 10000 left"):
        window.arrive(10_001)
    assert (window.held_bytes, window.promised_bytes) == (30_000, 10_000), "it is not counted"
    window.arrive(10_000)
    for _ in range(CONTROL_FRAMES_MAX):
        window.arrive_control()
    with pytest.raises(RemoteProtocolError, match="1024 control frames wait already"):
        window.arrive_control()


def test_a_receiver_that_grants_more_than_its_window_is_refused() -> None:
    allowance = Allowance(window_bytes=40_000)
    allowance.grant(Credit(40_000, CONTROL_FRAMES_MAX))
    for excess in (Credit(1, 0), Credit(0, 1)):
        with pytest.raises(RemoteProtocolError, match="granted more than its window"):
            Allowance(40_000, 40_000, CONTROL_FRAMES_MAX).grant(excess)


def test_a_caller_that_is_far_ahead_waits_until_half_is_encoded() -> None:
    allowance = Allowance(window_bytes=8 * QUEUED_BYTES_MAX)
    allowance.grant(Credit(8 * QUEUED_BYTES_MAX, 1))
    eighth = QUEUED_BYTES_MAX // 8
    for _ in range(8):
        assert allowance.reserve(eighth)
    assert not allowance.reserve(1), "there is credit, but enough is queued"
    for _ in range(3):
        allowance.settle(eighth, eighth)
        assert not allowance.reserve(1)
    allowance.settle(eighth, eighth)
    assert allowance.reserve(1)


def test_a_caller_with_many_small_frames_waits_too() -> None:
    allowance = Allowance(window_bytes=40_000)
    allowance.grant(Credit(40_000, 1))
    for _ in range(QUEUED_FRAMES_MAX):
        assert allowance.reserve(10)
    while allowance.reserved_frames > QUEUED_FRAMES_MAX // 2:
        assert not allowance.reserve(10)
        allowance.settle(10, 10)
    assert allowance.reserve(10)


def test_nothing_costs_more_than_was_reserved() -> None:
    allowance = Allowance(window_bytes=40_000)
    allowance.grant(Credit(40_000, 1))
    assert allowance.reserve(10_000)
    with pytest.raises(LocalProtocolError):
        allowance.settle(10_000, 10_001)
    allowance.settle(10_000, 4_000)
    assert (allowance.data_bytes, allowance.free_bytes) == (36_000, 36_000)
