"""The state of a feed, put together from what members told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.epoch.announcements import Stage
from penstock.epoch.decisions import Decision, Verdict
from penstock.epoch.times import EpochTime
from penstock.ids import Producer, clock_from_unix
from penstock.journal.names import EVERYTHING
from penstock.journal.transaction_log import NamedProducer
from penstock.routing import assign
from penstock.shuffle.gathering import Gathering
from penstock.shuffle.plan import BindingPlan, Plan
from penstock.shuffle.session.pipeline import Awaited
from penstock.shuffle.session.view import AwaitedView, SessionView
from penstock.shuffle.status import (
    Details,
    JournalStatus,
    MemberStatus,
    QueueStatus,
    Sent,
    SliceStatus,
    SpanStatus,
)
from penstock.watch.causes import Credit, DiskOverdrawn
from penstock.watch.standing import Seen
from penstock.watch.state import FeedState

NOW = 1_700_000_000.0
ASSIGNMENT = assign((1, 2))
PRODUCER = Producer.from_hex("010203040506")
BINDING = BindingPlan(0, "orders", ("k",), False, EVERYTHING, ("region",), 0, 0, 0, 0, 2**64 - 1)
PLAN = Plan("orders", (BINDING,), (5,))


def status(member: int, rows: int = 0, *waits: Seen, **queue: Any) -> MemberStatus:
    made = QueueStatus(rows, 1, 1000, 900, 0, 65536, False, False, 0)
    told = SliceStatus(2, rows, 10 * member, rows, 7, False, NOW - member, (Sent(1, rows, 0.5),))
    return MemberStatus(member, 0, 100 + member, "host", told, replace(made, **queue), waits, None)


def details(member: int) -> Details:
    return Details(
        (JournalStatus(f"j{member}", 0, 5, 5 + member, NOW - 1),),
        (SpanStatus(str(PRODUCER), f"j{member}", 0, NOW - 10 * member, member, 100),),
        3,
        f"j{member}",
    )


def view(**changes: Any) -> SessionView:
    made = SessionView(
        plan=PLAN,
        members=(1, 2),
        heard={(1, 0): (NOW, status(1)), (2, 0): (NOW, status(2))},
        details={(1, 0): details(1), (2, 0): details(2)},
        unlisted=(),
        awaited=(),
        epochs=(),
        epoch_rows={},
        consumed=3,
        drawn=3,
        newest=3,
        epochs_ahead_max=4,
        has_news=False,
        is_recovery=False,
        is_caught_up=False,
        rows_to_recover=0,
    )
    return replace(made, **changes)


def begun(now: float) -> FeedState:
    return FeedState("orders", "file:///s", "/f", 1, "host", NOW - 60, now, "running")


def look(gathering: Gathering, found: SessionView | None, now: float = NOW) -> FeedState:
    return gathering.look(begun(now), found, ASSIGNMENT, "spark", ())


def test_figures_of_members_are_put_side_by_side() -> None:
    gathering = Gathering()
    look(gathering, view())
    heard = {(1, 0): (NOW + 2, status(1, 200)), (2, 0): (NOW + 2, status(2, 100))}
    state = look(gathering, view(heard=heard), NOW + 2)
    first, second = state.members
    assert (first.member, first.process, first.vnodes) == (1, 101, 128)
    assert first.queue is not None
    assert first.queue.rows_per_second == 100.0
    assert second.slices[0].to[0].rows_per_second == 50.0
    assert (state.rows_behind, state.rows_per_second, state.disk_bytes) == (30, 150.0, 2000)
    assert [each.journal for each in state.journals.shown] == ["j2", "j1"], "furthest behind first"
    assert state.journals.count == 4
    assert state.bindings[0].priority == 5
    assert state.watermark.held_by is not None
    assert state.watermark.held_by.journal == "j2", "its promise is the older one"
    assert state.history.rows_behind == (30, 30)
    assert len(state.vnodes) == 256


def test_spans_of_one_producer_are_one_transaction() -> None:
    state = look(Gathering(), view())
    (transaction,) = state.transactions.shown
    assert (transaction.producer, transaction.since) == (str(PRODUCER), NOW - 20)
    assert (transaction.touched, transaction.rows, transaction.bytes) == (("j1", "j2"), 3, 200)
    assert state.transactions.count == 5, "the others are counted"
    assert [wait.kind for wait in state.waits] == ["open_transaction"]


def test_a_transaction_that_is_awaited_says_by_whom_it_is_known() -> None:
    awaited = Awaited("j1", 0, PRODUCER, 0, clock_from_unix(1_699_999_990))
    found = view(awaited=(AwaitedView(0, NOW - 5, awaited, "j3"),))
    state = look(Gathering(), found)
    (transaction,) = state.transactions.shown
    assert (transaction.awaited, transaction.hinted_by) == (("j1",), "j3")
    assert transaction.holds_up
    assert [wait.kind for wait in state.waits] == ["awaited_commit"]
    assert state.waits[0].since == NOW - 5
    assert state.verdict == "stuck"


def test_a_queue_over_its_budget_is_told_whose_rows_it_holds() -> None:
    over = Seen(DiskOverdrawn(1, 1000, 900, 100, None, None))
    heard = {(1, 0): (NOW, status(1, 0, over, is_overdrawn=True)), (2, 0): (NOW, status(2))}
    gathering = Gathering()
    look(gathering, view(heard=heard))
    heard = {key: (NOW + 3, one) for key, (_, one) in heard.items()}
    older = SpanStatus("0a0b0c0d0e0f", "j1", 0, NOW - 900, 1, 50)
    known = view()
    spans = (*known.details[1, 0].spans, older)
    told = {**known.details, (1, 0): replace(known.details[1, 0], spans=spans)}
    state = look(gathering, replace(known, heard=heard, details=told), NOW + 3)
    wait = next(wait for wait in state.waits if wait.kind == "disk_overdrawn")
    assert (wait.facts["producer"], wait.since) == (str(PRODUCER), NOW), "not the oldest"
    queue = state.members[0].queue
    assert queue is not None
    assert queue.disk.overdrawn_bytes == 100


def test_what_a_silent_member_waited_for_is_not_told_any_more() -> None:
    lacks = Seen(Credit(2, 0, 1, 0.0))
    gathering = Gathering()
    heard = {(1, 0): (NOW, status(1)), (2, 0): (NOW, status(2, 0, lacks))}
    look(gathering, view(heard=heard))
    found = view(heard=heard, epochs=(EpochTime(4, NOW - 1, stage=Stage.CAPTURED, waits_for=(2,)),))
    state = look(gathering, found, NOW + 9)
    assert "credit" not in [wait.kind for wait in state.waits]
    wait = next(wait for wait in state.waits if wait.kind == "acknowledgement")
    assert (wait.facts["members"], wait.facts["silent"]) == ((2,), (2,))


def test_epochs_outlive_their_session() -> None:
    gathering = Gathering()
    decision = Decision(4, Verdict.COMMIT, 1, 0, (0, 1, 2), clock_from_unix(1_699_999_000))
    over = EpochTime(4, NOW, NOW + 0.25, NOW + 0.5, NOW + 1, last_member=2, decision=decision)
    open_ = EpochTime(5, NOW + 2, stage=Stage.CAPTURED, waits_for=(1,))
    state = look(gathering, view(epochs=(over, open_), epoch_rows={4: 70}), NOW + 3)
    assert [(each.number, each.verdict) for each in state.epochs] == [(4, "commit"), (5, "open")]
    first = state.epochs[0]
    assert (first.captured_seconds, first.prepared_seconds, first.total_seconds) == (0.25, 0.5, 1)
    assert (first.rows, first.last_member, first.aligned) == (70, 2, True)
    assert state.watermark.clock == 1_699_999_000
    gathering.session_ends()
    state = look(gathering, None, NOW + 4)
    assert [each.number for each in state.epochs] == [4], "nobody tells any more of the open one"


def test_the_consumer_is_done_since_then() -> None:
    gathering = Gathering()
    look(gathering, view(newest=4))
    state = look(gathering, view(newest=7, has_news=True), NOW + 3)
    assert state.consumer is not None
    assert (state.consumer.kind, state.consumer.consumed, state.consumer.since) == ("spark", 3, NOW)
    state = look(gathering, view(newest=7, has_news=True), NOW + 5)
    assert [wait.kind for wait in state.waits] == ["epochs_ahead", "consumer", "open_transaction"]


def test_the_consumer_is_as_fast_as_its_epochs_are_large() -> None:
    gathering = Gathering()
    state = look(gathering, view(consumed=3, epoch_rows={3: 1_000}))
    assert state.consumer is not None
    assert state.consumer.rows_per_second is None, "not known yet"
    rows = {3: 1_000, 4: 50, 5: 150, 6: 1_000}
    state = look(gathering, view(consumed=5, newest=6, epoch_rows=rows), NOW + 2)
    assert state.consumer is not None
    assert state.consumer.rows_per_second == 100.0
    state = look(gathering, view(consumed=5, newest=6, epoch_rows=rows), NOW + 9)
    assert state.consumer is not None
    assert state.consumer.rows_per_second == 0.0, "it has stopped"


def test_a_recovery_says_how_long_it_will_take() -> None:
    gathering = Gathering()
    look(gathering, view(is_recovery=True, rows_to_recover=100))
    heard = {(1, 0): (NOW + 2, status(1, 20)), (2, 0): (NOW + 2, status(2, 0))}
    state = look(gathering, view(heard=heard, is_recovery=True, rows_to_recover=100), NOW + 2)
    assert state.recovery is not None
    assert (state.recovery.rows_done, state.recovery.seconds_left) == (20, 8.0)
    assert state.waits[0].kind == "recovery"


PARTITION = "shop/topic=my%20orders/partition=%_3/000"
TOPICS = replace(PLAN, bindings=(replace(BINDING, collection="shop", by_offset=True),))


def test_partitions_and_transactional_ids_have_the_names_that_kafka_s_tools_know() -> None:
    hung = SpanStatus(str(PRODUCER), PARTITION, 0, None, None, None)
    told = Details((JournalStatus(PARTITION, 0, 5, 9, NOW - 1),), (hung,), 1, PARTITION)
    named = {str(PRODUCER): NamedProducer("nightly import", NOW - 90)}
    found = view(plan=TOPICS, details={(2, 0): told}, named=named)
    state = look(Gathering(), found)
    assert [(one.journal, one.rows_behind) for one in state.journals.shown] == [("my orders-3", 4)]
    assert state.watermark.held_by is not None
    assert state.watermark.held_by.journal == "my orders-3"
    (transaction,) = state.transactions.shown
    assert (transaction.producer, transaction.touched) == ("nightly import", ("my orders-3",))
    assert transaction.since == NOW - 90, "as the transaction log knows it"
    (wait,) = state.waits
    assert "open for 1 min 30 s in partition my orders-3" in wait.text
    assert wait.advice is not None
    assert "penstock abort 'nightly import' --store kafka://" in wait.advice


def test_a_span_of_which_nobody_knows_the_begin_is_as_old_as_the_feed() -> None:
    hung = SpanStatus(str(PRODUCER), PARTITION, 0, None, None, None)
    found = view(plan=TOPICS, details={(1, 0): Details((), (hung,), 1, None)})
    (transaction,) = look(Gathering(), found).transactions.shown
    assert (transaction.producer, transaction.since) == (str(PRODUCER), NOW - 60)


def test_a_commit_that_is_awaited_in_a_partition_is_named_once() -> None:
    known = f"{PARTITION}@0011"
    other = "shop/topic=orders/partition=%_0/000"
    span = SpanStatus(str(PRODUCER), PARTITION, 0, NOW, 1, 10)
    awaited = AwaitedView(0, NOW - 5, Awaited(f"{other}@0022", 0, PRODUCER, 0, 8), known)
    details = {(1, 0): Details((), (span,), 1, None)}
    (one,) = look(
        Gathering(), view(plan=TOPICS, details=details, awaited=(awaited,))
    ).transactions.shown
    assert (one.touched, one.awaited) == (("my orders-3",), ("orders-0",))
    assert one.hinted_by == "my orders-3"
