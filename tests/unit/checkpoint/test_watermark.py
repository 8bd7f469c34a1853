"""Watermarks: against a model that remembers everything and works it out anew each time."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.checkpoint.alignment import Alignment
from penstock.checkpoint.alignment_events import (
    BarrierArrived,
    Capture,
    DataArrived,
    Deliver,
    Snapshot,
)
from penstock.checkpoint.barrier import Barrier, Watermark
from penstock.checkpoint.watermark import (
    ClusterWatermark,
    WatermarkState,
    WatermarkTracker,
    cluster_minimum,
    member_minimum,
)
from penstock.errors import ConfigurationError, LocalProtocolError


def test_the_minimum_over_inputs_once_all_have_reported() -> None:
    tracker = WatermarkTracker(2)
    assert tracker.watermark is None
    assert tracker.update(0, 10) is None
    assert tracker.watermark is None, "the other input may have anything"
    assert tracker.update(1, 7) == 7
    assert tracker.update(1, 12) == 10
    assert tracker.update(1, 13) is None
    assert tracker.watermark == 10


def test_an_idle_input_does_not_hold_back_and_an_update_brings_it_back() -> None:
    tracker = WatermarkTracker(2)
    tracker.update(0, 10)
    assert tracker.mark_idle(1) == 10
    assert tracker.update(0, 20) == 20
    assert tracker.update(1, 15) is None, "active again, and behind"
    assert tracker.watermark == 20
    assert tracker.update(0, 30) is None
    assert tracker.update(1, 25) == 25


def test_all_idle_is_the_maximum() -> None:
    tracker = WatermarkTracker(3)
    tracker.update(0, 10)
    tracker.update(1, 30)
    assert tracker.mark_idle(1) is None
    assert tracker.mark_idle(2) == 10
    assert tracker.mark_idle(0) == 30


def test_all_idle_without_any_clock_is_nothing() -> None:
    tracker = WatermarkTracker(1)
    assert tracker.mark_idle(0) is None
    assert tracker.watermark is None


def test_clocks_may_be_negative_and_zero() -> None:
    tracker = WatermarkTracker(1)
    assert tracker.update(0, -5) == -5
    assert tracker.update(0, 0) == 0


def test_an_input_that_ended_is_idle_for_good() -> None:
    tracker = WatermarkTracker(2)
    tracker.update(0, 10)
    assert tracker.end(1) == 10
    with pytest.raises(LocalProtocolError, match="input 1 ended, and then reported clock 11"):
        tracker.update(1, 11)
    assert tracker.update(0, 11) == 11
    again = WatermarkTracker.restored(tracker.state())
    assert again.update(1, 3) is None, "after a restart it may report again"


@pytest.mark.parametrize("index", [-1, 2])
def test_inputs_that_do_not_exist_are_refused(index: int) -> None:
    tracker = WatermarkTracker(2)
    refused = f"no input {index}: inputs are 0 to 1"
    with pytest.raises(LocalProtocolError, match=refused):
        tracker.update(index, 1)
    with pytest.raises(LocalProtocolError, match=refused):
        tracker.mark_idle(index)
    with pytest.raises(LocalProtocolError, match=refused):
        tracker.end(index)


def test_a_tracker_has_inputs() -> None:
    with pytest.raises(ConfigurationError, match="one input or more, not 0"):
        WatermarkTracker(0)


@dataclass
class Model:
    """Everything that happened to an input, and whether the last of it was idleness."""

    reports: list[list[int]] = field(default_factory=list)
    idle: list[bool] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)

    def settle(self) -> None:
        known = [max(reports) for reports in self.reports if reports]
        active = [
            reports for reports, idle in zip(self.reports, self.idle, strict=True) if not idle
        ]
        if not active and known:
            self.reached.append(max(known))
        elif active and all(active):
            self.reached.append(min(max(reports) for reports in active))

    @property
    def watermark(self) -> int | None:
        return max(self.reached, default=None)


class AgainstTheModel(RuleBasedStateMachine):
    @initialize(inputs=st.integers(1, 4))
    def start(self, inputs: int) -> None:
        self.inputs = inputs
        self.tracker = WatermarkTracker(inputs)
        self.model = Model([[] for _ in range(inputs)], [False] * inputs)
        self.before: int | None = None

    def check(self, returned: int | None) -> None:
        self.model.settle()
        assert self.tracker.watermark == self.model.watermark
        rose = self.model.watermark != self.before
        assert returned == (self.model.watermark if rose else None)
        self.before = self.model.watermark

    @rule(index=st.integers(0, 3), clock=st.integers(-20, 60))
    def update(self, index: int, clock: int) -> None:
        index %= self.inputs
        self.model.reports[index].append(clock)
        self.model.idle[index] = False
        self.check(self.tracker.update(index, clock))

    @rule(index=st.integers(0, 3))
    def mark_idle(self, index: int) -> None:
        index %= self.inputs
        self.model.idle[index] = True
        self.check(self.tracker.mark_idle(index))

    @rule(at_least=st.none() | st.integers(-30, 60))
    def restart(self, at_least: int | None) -> None:
        state = pickle.loads(pickle.dumps(self.tracker.state()))
        self.tracker = WatermarkTracker.restored(state, at_least)
        if at_least is not None:
            self.model.reached.append(at_least)
        self.before = self.model.watermark
        assert self.tracker.watermark == self.model.watermark

    @rule()
    def state_does_not_share(self) -> None:
        """A snapshot stays as it was when the tracker goes on."""
        state = self.tracker.state()
        other = WatermarkTracker.restored(state)
        other.update(0, 1_000)
        assert self.tracker.state() == state

    @invariant()
    def never_back(self) -> None:
        reached = getattr(self, "reached", None)
        tracker = getattr(self, "tracker", None)
        if tracker is not None and tracker.watermark is not None:
            assert reached is None or tracker.watermark >= reached
            self.reached = tracker.watermark


AgainstTheModel.TestCase.settings = settings(max_examples=100)
TestAgainstTheModel = AgainstTheModel.TestCase


clocks = st.lists(st.none() | st.integers(-50, 50), max_size=6)


@given(clocks)
def test_a_member_waits_for_all_its_parts(parts: list[int | None]) -> None:
    minimum = member_minimum(iter(parts))
    if None in parts or not parts:
        assert minimum is None
    else:
        assert minimum == sorted(clock for clock in parts if clock is not None)[0]


@given(clocks)
def test_the_cluster_passes_over_members_without_a_watermark(reports: list[int | None]) -> None:
    known = sorted(clock for clock in reports if clock is not None)
    assert cluster_minimum(iter(reports)) == (known[0] if known else None)


@given(st.none() | st.integers(-50, 50), clocks)
def test_the_clusters_watermark_keeps_the_newest(
    at_least: int | None, announced: list[int | None]
) -> None:
    cluster = ClusterWatermark(at_least)
    heard: list[int] = [] if at_least is None else [at_least]
    assert cluster.clock == at_least
    for clock in announced:
        if clock is not None:
            heard.append(clock)
        assert cluster.advance(clock) == cluster.clock == max(heard, default=None)


# A restart from an unaligned snapshot


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=2, max_size=3),
    st.lists(st.integers(0, 2), max_size=20),
    st.data(),
)
def test_items_in_flight_move_no_watermark_back(
    reports: list[list[int]], turns: list[int], data: st.DataObject
) -> None:
    """An operator takes an unaligned snapshot, acknowledges with its watermark at that time, and
    starts again from it: its watermark is never below what was said before, and ends the same."""
    alignment = Alignment[Watermark](len(reports), 0.0)
    tracker = WatermarkTracker(len(reports))
    scripts: list[list[Watermark | Barrier]] = []
    for clocks in reports:
        script: list[Watermark | Barrier] = [Watermark(clock) for clock in clocks]
        script.insert(data.draw(st.integers(0, len(clocks))), Barrier(1, 1))
        scripts.append(script)
    rests = [list(script) for script in scripts]
    captured: WatermarkState | None = None
    snapshot: Snapshot[Watermark] | None = None
    acknowledged: int | None = None
    order = [turn % len(scripts) for turn in turns]
    order += [index for index, script in enumerate(scripts) for _ in script]
    for index in order:
        if not rests[index]:
            continue
        entry = rests[index].pop(0)
        event = (
            BarrierArrived(index, entry)
            if isinstance(entry, Barrier)
            else DataArrived(index, entry)
        )
        for effect in alignment.handle(event, 0.0):
            if isinstance(effect, Deliver):
                tracker.update(effect.input, effect.item.clock)
            elif isinstance(effect, Capture):
                captured = tracker.state()
            elif isinstance(effect, Snapshot):
                snapshot, acknowledged = effect, tracker.watermark
    assert captured is not None
    assert snapshot is not None
    again = WatermarkTracker.restored(captured, acknowledged)
    seen = [acknowledged, again.watermark]
    for index, items in enumerate(snapshot.in_flight):
        for item in items:
            again.update(index, item.clock)
            seen.append(again.watermark)
    for index, script in enumerate(scripts):
        for entry in script[script.index(Barrier(1, 1)) + 1 :]:
            assert isinstance(entry, Watermark)
            again.update(index, entry.clock)
            seen.append(again.watermark)
    known = [clock for clock in seen if clock is not None]
    assert known == sorted(known)
    assert seen == [None] * (len(seen) - len(known)) + known
    assert again.watermark == tracker.watermark
