"""Alignment: stories of each rule, and random runs that must cut every stream consistently."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.checkpoint.alignment import CHECKPOINTS_IN_FLIGHT_MAX, Alignment
from penstock.checkpoint.alignment_events import (
    Aborted,
    AbortReason,
    AlignmentEffect,
    AlignmentEvent,
    BarrierArrived,
    BarrierOvertook,
    Capture,
    CheckpointCancelled,
    DataArrived,
    Deliver,
    Forward,
    Hold,
    Ignored,
    IgnoreReason,
    InputEnded,
    Release,
    Snapshot,
    TimePassed,
)
from penstock.checkpoint.barrier import Barrier, Flags
from penstock.errors import ConfigurationError, LocalProtocolError
from tests.unit.checkpoint.alignment_runs import (
    ALIGNED,
    UNALIGNED,
    Advance,
    Cancel,
    Overtake,
    Run,
    Step,
    Tick,
    checkpoints_to_complete,
    items_before,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FOUR, FIVE, SIX = Barrier(4, 40), Barrier(5, 50), Barrier(6, 60)
FOUR_U, FIVE_U, SIX_U = (barrier.flagged(Flags.UNALIGNED) for barrier in (FOUR, FIVE, SIX))


class Story:
    """An alignment, validated after each step. `story(event)` returns its effects."""

    def __init__(self, inputs: int, aligned_seconds_max: float = ALIGNED, **options: int) -> None:
        self.alignment = Alignment[str](inputs, aligned_seconds_max, **options)

    def __call__(
        self, *events: AlignmentEvent[str], now: float = 0.0
    ) -> list[AlignmentEffect[str]]:
        effects: list[AlignmentEffect[str]] = []
        for event in events:
            effects += self.alignment.handle(event, now)
            self.alignment.validate()
        return effects


def data(index: int, item: str, cost_bytes: int = 1) -> DataArrived[str]:
    return DataArrived(index, item, cost_bytes)


def barrier(index: int, arrived: Barrier) -> BarrierArrived:
    return BarrierArrived(index, arrived)


def cancelled(aborted: Barrier, reason: AbortReason) -> list[AlignmentEffect[str]]:
    return [Aborted(aborted.checkpoint, reason), Forward(aborted.flagged(Flags.CANCEL))]


def whole(barrier: Barrier, *in_flight: tuple[str, ...]) -> Snapshot[str]:
    return Snapshot(barrier, in_flight)


# Aligned


def test_inputs_that_delivered_are_held_until_the_last_has() -> None:
    story = Story(3)
    assert story(data(0, "a")) == [Deliver(0, "a")]
    assert story(barrier(1, FOUR)) == [Hold(1)]
    assert story(data(1, "b"), data(1, "c")) == []
    assert story(data(0, "d"), data(2, "e")) == [Deliver(0, "d"), Deliver(2, "e")]
    assert story(barrier(0, FOUR)) == [Hold(0)]
    assert list(story.alignment.in_flight) == [4]
    assert story(barrier(2, FOUR)) == [
        Capture(FOUR),
        Forward(FOUR),
        whole(FOUR, (), (), ()),
        Release(0),
        Release(1),
        Deliver(1, "b"),
        Deliver(1, "c"),
    ]
    assert list(story.alignment.in_flight) == []


def test_one_input_is_always_aligned() -> None:
    story = Story(1)
    assert story(barrier(0, FOUR)) == [Capture(FOUR), Forward(FOUR), whole(FOUR, ())]
    assert story(data(0, "a")) == [Deliver(0, "a")]


def test_the_first_barriers_flags_are_kept() -> None:
    drain = FOUR.flagged(Flags.DRAIN | Flags.FULL_SNAPSHOT)
    story = Story(2)
    story(barrier(0, drain))
    assert Forward(drain) in story(barrier(1, drain))


def test_a_newer_barrier_waits_until_the_older_is_complete() -> None:
    story = Story(2)
    story(barrier(0, FOUR), data(0, "a"), barrier(0, FIVE), data(0, "b"))
    assert story.alignment.in_flight == (4,), "five is held behind four"
    assert story(barrier(1, FOUR)) == [
        Capture(FOUR),
        Forward(FOUR),
        whole(FOUR, (), ()),
        Release(0),
        Deliver(0, "a"),
        Hold(0),
    ]
    assert story(barrier(1, FIVE))[2:] == [whole(FIVE, (), ()), Release(0), Deliver(0, "b")]


def test_what_is_held_completes_several_checkpoints_in_one_step() -> None:
    story = Story(2)
    story(barrier(0, FOUR), barrier(0, FIVE), barrier(0, SIX))
    story(InputEnded(1))
    assert story.alignment.in_flight == ()
    story = Story(2)
    story(barrier(0, FOUR), barrier(0, FIVE), barrier(0, SIX), data(0, "a"))
    done = [effect for effect in story(InputEnded(1)) if not isinstance(effect, Hold | Release)]
    assert done == [
        effect
        for each in (FOUR, FIVE, SIX)
        for effect in (Capture(each), Forward(each), whole(each, (), ()))
    ] + [Deliver(0, "a")]


# Unaligned


def test_unaligned_nothing_is_held_and_the_barrier_goes_on_at_once() -> None:
    story = Story(3, UNALIGNED)
    story(data(0, "before"))
    assert story(barrier(0, FOUR)) == [Capture(FOUR_U), Forward(FOUR_U)]
    assert story(data(0, "after")) == [Deliver(0, "after")]
    assert story(data(1, "x"), data(2, "y")) == [Deliver(1, "x"), Deliver(2, "y")]
    assert story(barrier(1, FOUR)) == []
    assert story(data(1, "after")) == [Deliver(1, "after")]
    assert story(data(2, "z"), barrier(2, FOUR)) == [
        Deliver(2, "z"),
        whole(FOUR_U, (), ("x",), ("y", "z")),
    ]


def test_a_flagged_barrier_is_unaligned_in_an_aligned_operator() -> None:
    story = Story(2)
    assert story(barrier(0, FOUR_U)) == [Capture(FOUR_U), Forward(FOUR_U)]
    assert story(data(1, "x"), barrier(1, FOUR)) == [Deliver(1, "x"), whole(FOUR_U, (), ("x",))]


def test_a_flagged_barrier_turns_a_checkpoint_that_is_aligning() -> None:
    story = Story(3)
    story(barrier(0, FOUR), data(0, "held"))
    assert story(barrier(1, FOUR_U)) == [
        Capture(FOUR_U),
        Forward(FOUR_U),
        Release(0),
        Deliver(0, "held"),
    ]
    assert story(data(2, "x"), barrier(2, FOUR))[1:] == [whole(FOUR_U, (), (), ("x",))]


def test_several_unaligned_checkpoints_record_the_same_items() -> None:
    story = Story(2, UNALIGNED)
    story(barrier(0, FOUR), data(1, "x"), data(0, "a"), barrier(0, FIVE), data(1, "y"))
    assert story.alignment.in_flight == (4, 5)
    assert story(barrier(1, FOUR)) == [whole(FOUR_U, (), ("x", "y"))]
    assert story(data(1, "z"), barrier(1, FIVE)) == [
        Deliver(1, "z"),
        whole(FIVE_U, (), ("y", "z")),
    ]


def test_an_aligned_checkpoint_behind_an_unaligned_one() -> None:
    story = Story(2)
    assert story(barrier(0, FOUR_U), barrier(0, FIVE), data(0, "held")) == [
        Capture(FOUR_U),
        Forward(FOUR_U),
        Hold(0),
    ]
    assert story(data(1, "x"), barrier(1, FOUR_U)) == [Deliver(1, "x"), whole(FOUR_U, (), ("x",))]
    assert story(data(1, "y")) == [Deliver(1, "y")]
    assert story(barrier(1, FIVE)) == [
        Capture(FIVE),
        Forward(FIVE),
        whole(FIVE, (), ()),
        Release(0),
        Deliver(0, "held"),
    ]


# Overtaking


def test_a_barrier_overtakes_what_the_caller_has_queued() -> None:
    story = Story(2, UNALIGNED)
    assert story(BarrierOvertook(0, FOUR, (data(0, "a"), data(0, "b")))) == [
        Capture(FOUR_U),
        Forward(FOUR_U),
    ]
    assert story(BarrierOvertook(1, FOUR, (data(1, "x"),))) == [
        whole(FOUR_U, ("a", "b"), ("x",)),
    ]
    assert story(data(0, "a"), data(0, "b")) == [Deliver(0, "a"), Deliver(0, "b")]
    assert story(barrier(0, FOUR)) == [Ignored(0, FOUR, IgnoreReason.STALE)]


def test_what_was_overtaken_is_not_recorded_twice() -> None:
    story = Story(2, UNALIGNED)
    story(BarrierOvertook(0, FOUR, (data(0, "a"),)), data(0, "a"))
    assert story(barrier(0, FOUR)) == [Ignored(0, FOUR, IgnoreReason.DUPLICATE)]
    assert story(barrier(1, FOUR)) == [whole(FOUR_U, ("a",), ())]


def test_overtaking_turns_an_aligned_checkpoint() -> None:
    story = Story(2)
    story(barrier(0, FOUR), data(0, "held"))
    assert story(BarrierOvertook(1, FOUR, (data(1, "x"),))) == [
        Capture(FOUR_U),
        Forward(FOUR_U),
        Release(0),
        whole(FOUR_U, (), ("x",)),
        Deliver(0, "held"),
    ]


def test_overtaking_on_a_held_input_takes_what_is_held_first() -> None:
    """Held items stand in front of the newer barrier, and a barrier between them holds again."""
    story = Story(2)
    story(barrier(0, FOUR), data(0, "a"), barrier(0, FIVE), data(0, "b"))
    assert story(BarrierOvertook(0, SIX, (data(0, "c"),))) == [
        Capture(FOUR_U),
        Forward(FOUR_U),
        Release(0),
        Deliver(0, "a"),
        Hold(0),
        Capture(FIVE_U),
        Forward(FIVE_U),
        Release(0),
        Deliver(0, "b"),
        Capture(SIX_U),
        Forward(SIX_U),
    ]
    story(data(1, "x"), barrier(1, FOUR), barrier(1, FIVE))
    assert story(barrier(1, SIX)) == [whole(SIX_U, ("c",), ("x",))]


def test_a_stale_barrier_overtakes_nothing() -> None:
    story = Story(2)
    story(barrier(0, FIVE), data(0, "held"))
    assert story(BarrierOvertook(0, FOUR, ())) == [Ignored(0, FOUR, IgnoreReason.STALE)]
    assert story(BarrierOvertook(0, FIVE, ())) == [Ignored(0, FIVE, IgnoreReason.DUPLICATE)]
    cancel = FIVE.flagged(Flags.CANCEL)
    assert Aborted(5, AbortReason.CANCELLED) in story(BarrierOvertook(0, cancel, ()))


def test_overtaking_ends_when_a_held_barrier_is_the_same() -> None:
    """The caller handed the barrier in and then let it overtake: it counts once."""
    story = Story(2)
    story(barrier(0, FOUR), barrier(0, FIVE))
    effects = story(BarrierOvertook(0, FIVE, ()))
    assert effects[-1] == Ignored(0, FIVE, IgnoreReason.DUPLICATE)
    assert story(barrier(1, FOUR), barrier(1, FIVE))[-2] == whole(FIVE, (), ())


# Time


def test_alignment_turns_when_its_time_is_over_and_not_before() -> None:
    story = Story(2, 10.0)
    assert story.alignment.deadline_seconds is None
    assert story(barrier(0, FOUR), data(0, "held"), now=100.0) == [Hold(0)]
    assert story.alignment.deadline_seconds == 110.0
    assert story(data(1, "x"), TimePassed(), now=109.9) == [Deliver(1, "x")]
    assert story(TimePassed(), now=110.0) == [
        Capture(FOUR_U),
        Forward(FOUR_U),
        Release(0),
        Deliver(0, "held"),
    ]
    assert story.alignment.deadline_seconds is None
    assert story(data(1, "y"), barrier(1, FOUR), now=300.0) == [
        Deliver(1, "y"),
        whole(FOUR_U, (), ("y",)),
    ]


def test_any_event_tells_the_time_and_held_items_keep_their_order() -> None:
    story = Story(2, 10.0)
    story(barrier(0, FOUR), data(0, "first"))
    assert story(data(0, "second"), now=10.0)[2:] == [
        Release(0),
        Deliver(0, "first"),
        Deliver(0, "second"),
    ]


def test_a_held_barrier_gets_its_own_time() -> None:
    story = Story(2, 10.0)
    story(barrier(0, FOUR), barrier(0, FIVE), now=0.0)
    story(barrier(1, FOUR), now=8.0)
    assert story.alignment.deadline_seconds == 18.0
    assert story(TimePassed(), now=17.0) == []


def test_time_does_not_go_back() -> None:
    story = Story(2, 10.0)
    story(TimePassed(), now=50.0)
    story(barrier(0, FOUR), now=20.0)
    assert story.alignment.deadline_seconds == 60.0


def test_aligned_for_ever_has_no_deadline() -> None:
    story = Story(2)
    story(barrier(0, FOUR), now=5.0)
    assert story.alignment.deadline_seconds is None
    assert story(TimePassed(), now=1e18) == []


def test_a_cancelled_newer_checkpoint_does_not_hide_the_deadline() -> None:
    story = Story(2, 10.0)
    story(barrier(0, FOUR), CheckpointCancelled(9))
    assert story.alignment.deadline_seconds == 10.0
    assert story(TimePassed(), now=10.0)[0] == Capture(FOUR_U)


# Cancelling


def test_cancelling_releases_what_is_held_and_tells_downstream() -> None:
    story = Story(2)
    story(barrier(0, FOUR), data(0, "a"))
    assert story(CheckpointCancelled(4)) == [
        *cancelled(FOUR, AbortReason.CANCELLED),
        Release(0),
        Deliver(0, "a"),
    ]
    assert story(barrier(1, FOUR)) == [Ignored(1, FOUR, IgnoreReason.STALE)]
    assert story(data(1, "x")) == [Deliver(1, "x")]


def test_cancelling_while_recording() -> None:
    story = Story(2, UNALIGNED)
    story(barrier(0, FOUR), data(1, "x"))
    assert story(CheckpointCancelled(4)) == cancelled(FOUR_U, AbortReason.CANCELLED)
    assert story(data(1, "y"), barrier(1, FOUR)) == [
        Deliver(1, "y"),
        Ignored(1, FOUR, IgnoreReason.STALE),
    ]


def test_a_checkpoint_cancelled_before_its_barriers_never_opens() -> None:
    story = Story(2)
    assert story(CheckpointCancelled(5)) == []
    assert story(barrier(0, FIVE), barrier(1, FOUR)) == [
        Ignored(0, FIVE, IgnoreReason.STALE),
        Ignored(1, FOUR, IgnoreReason.STALE),
    ]
    assert story(barrier(0, SIX)) == [Hold(0)]


def test_an_older_checkpoint_in_flight_goes_on_when_a_newer_is_cancelled() -> None:
    story = Story(2)
    story(barrier(0, FOUR), CheckpointCancelled(5))
    assert whole(FOUR, (), ()) in story(barrier(1, FOUR))


def test_cancelling_what_is_complete_changes_nothing() -> None:
    story = Story(1)
    story(barrier(0, FOUR))
    assert story(CheckpointCancelled(4)) == []


def test_a_cancelling_barrier_acts_at_once_and_is_passed_on_once() -> None:
    story = Story(2)
    cancel = FOUR.flagged(Flags.CANCEL)
    story(barrier(0, FOUR), data(0, "a"))
    assert story(barrier(0, cancel)) == [
        *cancelled(FOUR, AbortReason.CANCELLED),
        Release(0),
        Deliver(0, "a"),
    ]
    assert story(barrier(1, cancel)) == [Ignored(1, cancel, IgnoreReason.STALE)]


def test_a_cancelling_barrier_goes_on_when_all_is_done_here() -> None:
    story = Story(2)
    cancel = FOUR.flagged(Flags.CANCEL)
    story(barrier(0, FOUR), barrier(1, FOUR))
    assert story(barrier(0, cancel)) == [Forward(cancel)]
    assert story(barrier(1, cancel)) == [Ignored(1, cancel, IgnoreReason.STALE)]
    unseen = SIX.flagged(Flags.CANCEL)
    assert story(barrier(1, unseen)) == [Forward(unseen)]
    assert story(barrier(0, SIX)) == [Ignored(0, SIX, IgnoreReason.STALE)]


# Duplicates, late and stale barriers


def test_a_repeat_during_alignment_changes_nothing() -> None:
    story = Story(3, UNALIGNED)
    story(barrier(0, FOUR), data(1, "x"))
    assert story(barrier(0, FOUR)) == [Ignored(0, FOUR, IgnoreReason.DUPLICATE)]
    story(barrier(1, FOUR))
    assert story(barrier(2, FOUR)) == [whole(FOUR_U, (), ("x",), ())]


def test_a_repeat_on_a_held_input_is_held_and_then_stale() -> None:
    story = Story(2)
    story(barrier(0, FOUR), data(0, "a"), barrier(0, FOUR), data(0, "b"))
    assert story(barrier(1, FOUR))[3:] == [
        Release(0),
        Deliver(0, "a"),
        Ignored(0, FOUR, IgnoreReason.STALE),
        Deliver(0, "b"),
    ]


@pytest.mark.parametrize("seconds", [ALIGNED, UNALIGNED, 10.0])
def test_a_repeat_after_completion_opens_nothing(seconds: float) -> None:
    story = Story(2, seconds)
    story(barrier(0, FOUR), barrier(1, FOUR))
    for index in (0, 1):
        assert story(barrier(index, FOUR)) == [Ignored(index, FOUR, IgnoreReason.STALE)]
    assert story.alignment.in_flight == ()
    assert story(data(0, "a")) == [Deliver(0, "a")]


def test_a_late_barrier_below_a_newer_checkpoint_is_stale() -> None:
    story = Story(2)
    story(barrier(0, FIVE))
    assert story(barrier(1, FOUR)) == [Ignored(1, FOUR, IgnoreReason.STALE)]
    assert whole(FIVE, (), ()) in story(barrier(1, FIVE))
    assert story(barrier(0, FOUR)) == [Ignored(0, FOUR, IgnoreReason.STALE)]


def test_after_a_restart_barriers_up_to_the_restored_checkpoint_are_stale() -> None:
    story = Story(1, settled=5)
    assert story(barrier(0, FIVE)) == [Ignored(0, FIVE, IgnoreReason.STALE)]
    assert whole(SIX, ()) in story(barrier(0, SIX))
    assert whole(Barrier(0, 0), ()) in Story(1)(barrier(0, Barrier(0, 0)))


def test_inputs_that_disagree_on_the_epoch_abort_the_checkpoint() -> None:
    story = Story(2)
    story(barrier(0, FOUR), data(0, "a"))
    assert story(barrier(1, Barrier(4, 41))) == [
        *cancelled(FOUR, AbortReason.DISAGREEMENT),
        Release(0),
        Deliver(0, "a"),
    ]
    assert story(data(1, "x")) == [Deliver(1, "x")]


# Several checkpoints in flight


def test_an_input_that_skips_a_checkpoint_aborts_it() -> None:
    """Its injector had a newer barrier before anybody claimed the older."""
    story = Story(2)
    story(barrier(0, FOUR), data(0, "a"))
    assert story(barrier(1, FIVE)) == [
        *cancelled(FOUR, AbortReason.SKIPPED),
        Release(0),
        Hold(1),
        Deliver(0, "a"),
    ]
    assert whole(FIVE, (), ()) in story(barrier(0, FIVE))


def test_an_input_skips_a_checkpoint_by_a_stale_barrier_too() -> None:
    story = Story(2)
    story(barrier(0, FOUR), CheckpointCancelled(5))
    assert (
        story(barrier(1, FIVE))
        == [
            *cancelled(FOUR, AbortReason.SKIPPED),
            Release(0),
            Ignored(1, FIVE, IgnoreReason.STALE),
        ]
        or story.alignment.in_flight == ()
    )
    assert story.alignment.in_flight == ()


def test_the_oldest_is_crowded_out() -> None:
    story = Story(2, UNALIGNED)
    barriers = [Barrier(number, number, 8) for number in range(CHECKPOINTS_IN_FLIGHT_MAX)]
    story(*(barrier(0, each) for each in barriers), data(1, "x"))
    assert story.alignment.in_flight == tuple(range(CHECKPOINTS_IN_FLIGHT_MAX))
    newest = Barrier(CHECKPOINTS_IN_FLIGHT_MAX, 0, 8)
    assert story(barrier(0, newest)) == [
        *cancelled(barriers[0], AbortReason.CROWDED_OUT),
        Capture(newest),
        Forward(newest),
    ]
    assert story(barrier(1, barriers[0])) == [Ignored(1, barriers[0], IgnoreReason.STALE)]
    assert story(barrier(1, barriers[1])) == [whole(barriers[1], (), ("x",))]


def test_one_checkpoint_at_a_time_supersedes_the_last() -> None:
    story = Story(2, UNALIGNED, in_flight_max=1)
    story(barrier(0, FOUR))
    assert story(barrier(0, FIVE)) == [
        *cancelled(FOUR_U, AbortReason.CROWDED_OUT),
        Capture(FIVE_U),
        Forward(FIVE_U),
    ]
    assert story(barrier(1, FOUR), barrier(1, FIVE))[-1] == whole(FIVE_U, (), ())


def test_a_checkpoint_with_too_much_in_flight_is_aborted_and_nothing_is_lost() -> None:
    story = Story(2, UNALIGNED, recorded_bytes_max=10)
    story(barrier(0, FOUR))
    assert story(data(1, "x", 10)) == [Deliver(1, "x")]
    assert story(data(1, "y", 1)) == [
        *cancelled(FOUR_U, AbortReason.TOO_LARGE),
        Deliver(1, "y"),
    ]
    assert story(barrier(1, FOUR)) == [Ignored(1, FOUR, IgnoreReason.STALE)]


def test_overtaking_too_much_aborts_the_checkpoint() -> None:
    story = Story(2, UNALIGNED, recorded_bytes_max=10)
    passed = (data(0, "x", 10), data(0, "y", 1), data(0, "z", 1))
    assert story(BarrierOvertook(0, FOUR, passed)) == [
        Capture(FOUR_U),
        Forward(FOUR_U),
        *cancelled(FOUR_U, AbortReason.TOO_LARGE),
    ]


# Inputs that end


def test_an_input_that_ends_counts_as_aligned_for_all_checkpoints() -> None:
    story = Story(2, UNALIGNED)
    story(barrier(0, FOUR), barrier(0, FIVE), data(1, "x"))
    assert story(InputEnded(1)) == [
        whole(FOUR_U, (), ("x",)),
        whole(FIVE_U, (), ("x",)),
    ]
    assert story(barrier(0, SIX))[-1] == whole(SIX_U, (), ())


def test_an_end_keeps_its_place_behind_held_items() -> None:
    story = Story(3)
    story(barrier(0, FOUR), data(0, "a"), InputEnded(0), barrier(1, FOUR))
    assert story(barrier(2, FOUR))[3:] == [Release(0), Release(1), Deliver(0, "a")]
    story(barrier(1, FIVE))
    assert whole(FIVE, (), (), ()) in story(barrier(2, FIVE))


def test_an_end_may_be_told_twice_and_nothing_follows_it() -> None:
    story = Story(2)
    story(barrier(0, FOUR))
    assert story(InputEnded(0), InputEnded(0)) == []
    overtook: BarrierOvertook[str] = BarrierOvertook(0, FIVE, ())
    for event in (data(0, "a"), barrier(0, FIVE), overtook):
        with pytest.raises(LocalProtocolError, match="input 0 ended, and then"):
            story(event)
    assert whole(FOUR, (), ()) in story(InputEnded(1))
    assert story(InputEnded(1)) == []


# What is refused


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (0, {}, "one input or more, not 0"),
        (1, {"aligned_seconds_max": -0.1}, "aligned_seconds_max is zero or more, not -0.1"),
        (1, {"aligned_seconds_max": math.nan}, "aligned_seconds_max is zero or more, not nan"),
        (1, {"in_flight_max": 0}, "in_flight_max is one or more, not 0"),
    ],
)
def test_options_that_cannot_work_are_refused(
    inputs: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Alignment(inputs, **options)


@pytest.mark.parametrize("index", [-1, 2])
def test_inputs_that_do_not_exist_are_refused(index: int) -> None:
    story = Story(2)
    events: tuple[AlignmentEvent[str], ...] = (
        data(index, "a"),
        barrier(index, FOUR),
        InputEnded(index),
        BarrierOvertook(index, FOUR, ()),
    )
    for event in events:
        with pytest.raises(LocalProtocolError, match=f"no input {index}: inputs are 0 to 1"):
            story(event)
    with pytest.raises(LocalProtocolError, match="input 0 cannot overtake what is on input 1"):
        story(BarrierOvertook(0, FOUR, (data(1, "x"),)))
    assert story.alignment.in_flight == ()


def test_events_and_effects_pickle() -> None:
    for each in (
        data(0, "a"),
        barrier(0, FOUR),
        whole(FOUR, ("a",)),
        Aborted(4, AbortReason.SKIPPED),
    ):
        assert pickle.loads(pickle.dumps(each)) == each


# Every interleaving


@st.composite
def scripts(draw: st.DrawFn, faithful: bool) -> list[list[int | Barrier]]:
    """What each input sends. A faithful input delivers each checkpoint once and in order; others
    skip, repeat and disorder them."""
    item = iter(range(1_000))
    count = draw(st.sampled_from((1, 2, 2, 3, 3, 4)))
    numbers = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=5)))
    written: list[list[int | Barrier]] = []
    for _ in range(count):
        own = numbers
        if not faithful:
            own = [
                number for number in numbers for _ in range(draw(st.sampled_from((1, 0, 1, 1, 2))))
            ]
            if draw(st.sampled_from((False, False, False, True))):
                own = draw(st.permutations(own))
        script: list[int | Barrier] = []
        for number in own:
            script += [next(item) for _ in range(draw(st.integers(0, 3)))]
            script.append(Barrier(number, number, draw(st.sampled_from((0, 0, 0, 8)))))
        script += [next(item) for _ in range(draw(st.integers(0, 3)))]
        written.append(script)
    return written


def steps(inputs: int, cancels: bool) -> st.SearchStrategy[list[Step]]:
    index = st.integers(0, inputs - 1)
    advance = st.builds(Advance, index, st.integers(1, 5))
    kinds: list[st.SearchStrategy[Step]] = [advance, advance, advance]
    kinds.append(st.integers(1, 6).map(Tick))
    kinds.append(index.map(Overtake))
    if cancels:  # rarely: one of a high number makes everything below it stale
        kinds = [*kinds, *kinds, st.builds(Cancel, st.none() | st.integers(0, 6))]
    return st.lists(st.one_of(kinds), min_size=8, max_size=30)


MODES = st.sampled_from([ALIGNED, UNALIGNED, 5.0])


def run_of(
    draw: Callable[[st.SearchStrategy[Any]], Any], faithful: bool, cancels: bool, **limits: int
) -> Run:
    written = draw(scripts(faithful))
    run = Run.start(written, Alignment[int](len(written), draw(MODES), **limits))
    run.finish(draw(steps(len(written), cancels)))
    return run


@settings(max_examples=120)
@given(st.data(), st.booleans())
def test_every_checkpoint_that_can_complete_is_a_consistent_cut(
    data: st.DataObject, faithful: bool
) -> None:
    run = run_of(data.draw, faithful, cancels=False, in_flight_max=10)
    assert set(run.snapshots) == checkpoints_to_complete(run.scripts)
    reasons = {aborted.reason for aborted in run.aborted.values()}
    assert reasons <= {AbortReason.SKIPPED}


@settings(max_examples=120)
@given(st.data(), st.booleans(), st.integers(1, 2), st.integers(0, 6))
def test_whatever_is_aborted_the_rest_is_a_consistent_cut(
    data: st.DataObject, faithful: bool, in_flight_max: int, recorded_bytes_max: int
) -> None:
    run = run_of(
        data.draw,
        faithful,
        cancels=True,
        in_flight_max=in_flight_max,
        recorded_bytes_max=recorded_bytes_max,
    )
    assert set(run.snapshots) <= checkpoints_to_complete(run.scripts)


@settings(max_examples=80)
@given(st.data(), st.booleans(), MODES)
def test_a_run_restored_from_any_snapshot_ends_as_if_uninterrupted(
    data: st.DataObject, faithful: bool, mode: float
) -> None:
    run = run_of(data.draw, faithful, cancels=False)
    for checkpoint in run.snapshots:
        again = run.restore(checkpoint, mode)
        again.finish(data.draw(steps(len(run.scripts), cancels=False)))
        assert Counter(chain(*again.delivered)) == Counter(chain(*run.delivered))
        assert all(number > checkpoint for number in again.snapshots)
        twice = again.snapshots.keys() & run.snapshots.keys()
        for number in twice:  # any two cuts of one checkpoint are the same cut
            for index, script in enumerate(run.scripts):
                state = again.captured[number][index]
                assert [*state, *again.snapshots[number].in_flight[index]] == items_before(
                    script, number
                )


def random_scripts(random: Random) -> list[list[int | Barrier]]:
    """As above, but long: most inputs deliver most checkpoints."""
    item = iter(range(1_000))
    numbers = sorted(random.sample(range(10), random.randint(1, 6)))
    written: list[list[int | Barrier]] = []
    for _ in range(random.randint(1, 4)):
        own = [number for number in numbers for _ in range(random.choice((0, 1, 1, 1, 1, 1, 2)))]
        if random.random() < 0.1:
            random.shuffle(own)
        script: list[int | Barrier] = []
        for number in own:
            script += [next(item) for _ in range(random.randint(0, 3))]
            script.append(Barrier(number, number, random.choice((0, 0, 0, 0, 8))))
        written.append([*script, next(item)])
    return written


def random_steps(random: Random, inputs: int, cancel_rate: float) -> list[Step]:
    steps: list[Step] = []
    for _ in range(40):
        index, chance = random.randrange(inputs), random.random()
        if chance < cancel_rate:
            steps.append(Cancel(random.choice((None, None, None, random.randrange(10)))))
        elif chance < 0.10:
            steps.append(Overtake(index))
        elif chance < 0.25:
            steps.append(Tick(random.randint(1, 4)))
        else:
            steps.append(Advance(index, random.randint(1, 4)))
    return steps


@pytest.mark.parametrize("mode", [ALIGNED, UNALIGNED, 5.0])
def test_long_runs_cut_consistently_and_reach_every_effect_and_reason(mode: float) -> None:
    seen: Counter[object] = Counter()

    class Watched(Run):
        def perform(self, effect: AlignmentEffect[int]) -> None:
            super().perform(effect)
            seen[type(effect)] += 1
            if isinstance(effect, Aborted | Ignored):
                seen[effect.reason] += 1
            if isinstance(effect, Snapshot):
                seen["in flight"] += any(effect.in_flight)
                seen["aligned"] += not effect.barrier.is_unaligned
                seen["several"] += len(self.alignment.in_flight) > 0

    for seed in range(1_000):
        random = Random(seed)
        written = random_scripts(random)
        is_limited = random.random() < 0.5
        alignment = (
            Alignment[int](len(written), mode, in_flight_max=2, recorded_bytes_max=8)
            if is_limited
            else Alignment[int](len(written), mode, in_flight_max=10)
        )
        run = Watched.start(written, alignment)
        try:
            run.finish(random_steps(random, len(written), 0.04 if is_limited else 0.0))
            if is_limited:
                assert set(run.snapshots) <= checkpoints_to_complete(written)
            else:
                assert set(run.snapshots) == checkpoints_to_complete(written)
            for checkpoint in run.snapshots:
                again = run.restore(checkpoint, mode)
                again.finish(random_steps(random, len(written), 0.0))
        except (AssertionError, LocalProtocolError) as error:
            raise AssertionError(f"seed {seed}") from error

    reasons = (set(AbortReason) - {AbortReason.DISAGREEMENT}) | set(IgnoreReason)
    kinds = {Deliver, Hold, Release, Capture, Forward, Snapshot, Aborted, Ignored}
    wanted = {*reasons, *kinds, "in flight", "aligned", "several"}
    if mode == UNALIGNED:
        wanted -= {Hold, Release, "aligned"}
    assert not {each: seen[each] for each in wanted if seen[each] < 20}


# The oracle finds broken rules


class Broken(Alignment[int]):
    def validate(self) -> None:
        """The runs are to find it, by themselves."""


class Loses(Broken):
    def _record(self, checkpoint: Any, event: DataArrived[int]) -> None:
        pass


class RecordsLate(Broken):
    """Goes on recording after the barrier."""

    def _process(self, event: Any) -> None:
        if isinstance(event, DataArrived):
            for checkpoint in self._checkpoints.values():
                if event.input not in checkpoint.waiting:
                    checkpoint.recorded[event.input].append(event.item)
        super()._process(event)


class NeverHolds(Broken):
    def _arrive(self, event: Any) -> None:
        self._process(event)


class Reopens(Broken):
    def _settle(self, checkpoint: Any) -> None:
        super()._settle(checkpoint)
        self._newest = -1


@pytest.mark.parametrize("broken", [Loses, RecordsLate, NeverHolds, Reopens])
def test_the_oracle_finds_a_broken_rule(broken: type[Broken]) -> None:
    @settings(
        max_examples=300,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    @given(st.data(), st.booleans())
    def find(data: st.DataObject, faithful: bool) -> None:
        written = data.draw(scripts(faithful))
        run = Run.start(written, broken(len(written), data.draw(MODES)))
        run.finish(data.draw(steps(len(written), False)))

    with pytest.raises((AssertionError, LocalProtocolError)):
        find()
