"""The outbox: order is kept, credits add up, and nothing follows a Close."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from penstock.transport.frames import ALIVE, Barrier, Close, Credit, Flush, Frame
from penstock.transport.outbox import Outbox, Outgoing

NEVER_SECONDS = 3600.0
SOON_SECONDS = 0.001
WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""

FRAMES = st.one_of(
    st.builds(Barrier, st.integers(0, 99), st.just(0)),
    st.builds(Flush, st.integers(0, 99)),
    st.builds(Credit, st.integers(0, 9), st.integers(0, 9)),
    st.builds(Credit, st.integers(0, 9), st.integers(0, 9)),
)
PUTS = st.tuples(FRAMES, st.integers(0, 9))
STEPS = st.lists(st.one_of(PUTS, st.none()), max_size=40)
"""What to put, with its estimate; None: take."""


def summed_up(outgoing: list[Outgoing]) -> list[Outgoing | tuple[int, int]]:
    """The same to a peer: credits between two other frames are one sum, wherever it was cut."""
    result: list[Outgoing | tuple[int, int]] = []
    data_bytes = control_frames = 0
    for each in outgoing:
        frame, _ = each
        if isinstance(frame, Credit):
            data_bytes += frame.data_bytes
            control_frames += frame.control_frames
            continue
        result += [(data_bytes, control_frames), each]
        data_bytes = control_frames = 0
    return [*result, (data_bytes, control_frames)]


@given(STEPS, st.booleans())
def test_order_and_sums_are_kept(steps: list[tuple[Frame, int] | None], closed: bool) -> None:
    outbox = Outbox(SOON_SECONDS)
    put: list[Outgoing] = []
    taken: list[Outgoing] = []
    for step in steps:
        if step is None:
            taken += outbox.take()
        else:
            outbox.put(*step)
            put.append(step)
    if closed:
        outbox.put(Close("done"))
        put.append((Close("done"), 0))
        outbox.put(Flush(1))
        outbox.put(Credit(1, 1))
        outbox.put(Close("again"))
    taken += outbox.take()
    assert summed_up(taken) == summed_up(put)
    if closed:
        assert outbox.take() == []
        assert outbox.take() == [], "and so for ever"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_a_peer_that_reads_no_credits_costs_one_frame(grants: list[tuple[int, int]]) -> None:
    outbox = Outbox(NEVER_SECONDS)
    for each in grants:
        outbox.put(Credit(*each))
    expected = Credit(sum(data for data, _ in grants), sum(control for _, control in grants))
    assert outbox.take() == [(expected, 0)]


def test_what_was_taken_is_not_added_to() -> None:
    outbox = Outbox(NEVER_SECONDS)
    outbox.put(Credit(1, 0))
    assert outbox.take() == [(Credit(1, 0), 0)]
    outbox.put(Credit(2, 0))
    assert outbox.take() == [(Credit(2, 0), 0)]


def test_with_nothing_to_say_it_says_so() -> None:
    outbox = Outbox(SOON_SECONDS)
    assert outbox.take() == [(ALIVE, 0)]
    outbox.put(Flush(1))
    assert outbox.take() == [(Flush(1), 0)]
    assert outbox.take() == [(ALIVE, 0)]


def test_what_is_discarded_is_not_written() -> None:
    outbox = Outbox(NEVER_SECONDS)
    outbox.put(Flush(1))
    outbox.discard()
    assert outbox.take() == []
    outbox.put(Flush(2))
    outbox.put(Close())
    assert outbox.take() == []


def test_a_waiting_writer_wakes() -> None:
    with ThreadPoolExecutor(3) as pool:
        for wake, expected in (
            (lambda outbox: outbox.put(Flush(1), 7), [(Flush(1), 7)]),
            (lambda outbox: outbox.put(Close()), [(Close(), 0)]),
            (Outbox.discard, []),
        ):
            outbox = Outbox(NEVER_SECONDS)
            taking = pool.submit(outbox.take)
            wake(outbox)
            assert taking.result(WAIT_SECONDS_MAX) == expected


def test_frames_of_many_threads_are_all_there() -> None:
    outbox = Outbox(NEVER_SECONDS)
    counts = 300

    def put(lane: int) -> None:
        for count in range(counts):
            outbox.put(Barrier(lane, count))
            outbox.put(Credit(1, 1))

    taken: list[Outgoing] = []

    def take() -> None:
        while not taken or taken[-1][0] != Close():
            taken.extend(outbox.take())

    with ThreadPoolExecutor(4) as pool:
        taking = pool.submit(take)
        for putting in [pool.submit(put, lane) for lane in range(3)]:
            putting.result(WAIT_SECONDS_MAX)
        outbox.put(Close())
        taking.result(WAIT_SECONDS_MAX)
    barriers = [frame for frame, _ in taken if isinstance(frame, Barrier)]
    for lane in range(3):
        epochs = [barrier.epoch for barrier in barriers if barrier.checkpoint == lane]
        assert epochs == list(range(counts))
    granted = [frame for frame, _ in taken if isinstance(frame, Credit)]
    assert sum(credit.data_bytes for credit in granted) == 3 * counts
    assert taken[-1][0] == Close()
