"""The sender's end: who waits for credit, who is woken, and what becomes of wrong estimates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError, RemoteProtocolError
from penstock.transport import connection as connection_module
from penstock.transport import stages
from penstock.transport.connection import SendTimeoutError
from penstock.transport.credit import CONTROL_FRAMES_MAX, QUEUED_BYTES_MAX
from penstock.transport.frames import (
    FRAME_COST_BYTES,
    Barrier,
    Credit,
    Flush,
    Flushed,
    Hello,
    VnodeData,
)
from tests.unit.transport.fake_link import (
    PEER,
    TOKEN,
    WAIT_SECONDS_MAX,
    World,
    data,
    price_by_rows,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def unpriced(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def world(unpriced: World, monkeypatch: pytest.MonkeyPatch) -> World:
    price_by_rows(monkeypatch)
    return unpriced


@pytest.fixture
def pool(world: World) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool
        world.connection.lose("the test is over")  # so that nobody waits on


def test_messages_are_offered_in_order_with_their_cost(world: World) -> None:
    connection = world.open()
    connection.send(data(1_500))
    connection.send(Barrier(1, 2))
    connection.send(Flush(3))
    assert world.link.offered[1:] == [(data(1_500), 1_500), (Barrier(1, 2), 0), (Flush(3), 0)]
    assert connection.credit_bytes == 38_500


def test_data_waits_for_credit(world: World, pool: ThreadPoolExecutor) -> None:
    connection = world.open()
    connection.send(data(30_000))
    sending = pool.submit(connection.send, data(20_000))
    waits(sending)
    assert connection.settle([(30_000, 30_000)])
    connection.on_frame(Credit(9_999, 0), None)
    waits(sending)
    connection.on_frame(Credit(1, 0), None)
    sending.result(WAIT_SECONDS_MAX)
    assert world.link.frames == [data(30_000), data(20_000)]


def test_data_without_credit_is_given_up_in_time(world: World) -> None:
    connection = world.open()
    connection.send(data(30_000))
    with pytest.raises(SendTimeoutError, match=r"member 2 granted no credit in 0\.01 s"):
        connection.send(data(20_000), 0.01)
    with pytest.raises(SendTimeoutError):
        connection.send(data(20_000), 0)
    assert len(world.link.frames) == 1
    connection.send(data(10_000), 0)  # what was not sent took no credit


def test_a_barrier_overtakes_data_that_waits(world: World, pool: ThreadPoolExecutor) -> None:
    connection = world.open()
    connection.send(data(40_000))
    sending = pool.submit(connection.send, data(20_000, "t"))
    waits(sending)
    for message in (Barrier(1, 2), Flush(3)):
        pool.submit(connection.send, message).result(WAIT_SECONDS_MAX)
    assert connection.settle([(40_000, 40_000)])
    connection.on_frame(Credit(20_000, 0), None)
    sending.result(WAIT_SECONDS_MAX)
    assert world.link.frames == [data(40_000), Barrier(1, 2), Flush(3), data(20_000, "t")]


def test_control_frames_wait_for_theirs(world: World, pool: ThreadPoolExecutor) -> None:
    world.answers[1] = Credit(40_000, 2)
    connection = world.open()
    connection.send(Flush(1))
    connection.send(Flush(2))
    with pytest.raises(SendTimeoutError):
        connection.send(Flush(3), timeout_seconds=0.01)
    sending = pool.submit(connection.send, Barrier(1, 2))
    waits(sending)
    connection.on_frame(Credit(0, 1), None)
    sending.result(WAIT_SECONDS_MAX)
    connection.on_frame(Flushed(2, 20), None)
    with pytest.raises(RemoteProtocolError, match="cycle 3 that is not open"):
        connection.on_frame(Flushed(3, 30), None)


def test_a_credit_is_looked_at_by_all_who_wait(world: World, pool: ThreadPoolExecutor) -> None:
    world.answers[1] = Credit(20_000, 1)
    connection = world.open()
    connection.send(Flush(1))
    large = pool.submit(connection.send, data(30_000))
    waits(large)
    others = [
        pool.submit(connection.send, Flush(2)),
        pool.submit(connection.send, Flush(3)),
    ]
    for sending in others:
        waits(sending)
    connection.on_frame(Credit(0, 2), None)
    for sending in others:
        sending.result(WAIT_SECONDS_MAX)
    assert not large.done()


def test_room_that_an_estimate_took_in_vain_is_used(world: World, pool: ThreadPoolExecutor) -> None:
    """The encoder knows it first: no credit will come for it."""
    connection = world.open()
    connection.send(data(30_000))
    sending = pool.submit(connection.send, data(20_000))
    waits(sending)
    assert connection.settle([(30_000, 5_000)])
    sending.result(WAIT_SECONDS_MAX / 10)


def test_an_encoder_that_may_not_wait_is_told(world: World) -> None:
    connection = world.open()
    for _ in range(2):
        connection.send(data(2_000))
    assert connection.settle([(2_000, 30_000)], wait=False)
    assert not connection.settle([(2_000, 30_000)], wait=False)
    connection.on_frame(Credit(20_000, 0), None)
    assert connection.settle([(2_000, 30_000)], wait=False)


def test_frames_are_settled_together_as_far_as_there_is_credit(
    world: World, pool: ThreadPoolExecutor
) -> None:
    connection = world.open()
    for _ in range(4):
        connection.send(data(5_000))
    costs = [(5_000, 5_000), (5_000, 15_000), (5_000, 25_000), (5_000, 1_000)]
    assert connection.settle(costs, wait=False) == 2, "the third waits, and so does who is behind"
    assert connection.credit_bytes == 10_000
    assert connection.settle(costs[2:], wait=False) == 0
    settling = pool.submit(connection.settle, costs[2:])
    waits(settling)
    connection.on_frame(Credit(20_000, 0), None)
    assert settling.result(WAIT_SECONDS_MAX) == 1, "no more than what it waited for"
    assert connection.settle(costs[3:]) == 1
    assert connection.credit_bytes == 40_000 - 5_000 - 15_000 + 20_000 - 25_000 - 1_000
    assert connection.settle([]) == 0, "there is nothing to wait for"


def test_an_encoder_waits_for_what_an_estimate_left_out(
    world: World, pool: ThreadPoolExecutor
) -> None:
    connection = world.open()
    for _ in range(2):
        connection.send(data(2_000))
    assert connection.settle([(2_000, 30_000)])
    settling = pool.submit(connection.settle, [(2_000, 30_000)])
    waits(settling)
    connection.on_frame(Credit(20_000, 0), None)
    assert settling.result(WAIT_SECONDS_MAX) == 1
    assert connection.credit_bytes == 0


def test_a_caller_far_ahead_goes_on_when_the_encoder_has_caught_up(
    world: World, pool: ThreadPoolExecutor
) -> None:
    window_bytes = 8 * QUEUED_BYTES_MAX
    world.answers = [
        Hello(PEER, 0, TOKEN.for_member(PEER), window_bytes),
        Credit(window_bytes, CONTROL_FRAMES_MAX),
    ]
    connection = world.open()
    connection.send(data(QUEUED_BYTES_MAX))
    sending = pool.submit(connection.send, data(1_100))
    waits(sending)
    assert connection.settle([(QUEUED_BYTES_MAX, QUEUED_BYTES_MAX)])
    sending.result(WAIT_SECONDS_MAX)


TEXTS = [f"{number:0100}" for number in range(200)]
LISTS = [list(range(number, number + 20)) for number in range(200)]
MANY: dict[str, pa.Array[Any]] = {
    "numbers": pa.array(range(2_500)),
    "text": pa.array(TEXTS),
    "text views": pa.array(TEXTS, pa.string_view()),
    "lists": pa.array(LISTS),
    "list views": pa.array(LISTS, pa.list_view(pa.int64())),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0] * 200, pa.int8()), pa.array(range(200), pa.int32()), [pa.array(TEXTS)]
    ),
}
UNCUT = {"text views", "list views", "dense union"}


@pytest.mark.parametrize("kind", MANY)
def test_a_batch_too_large_for_a_frame_is_cut(
    unpriced: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of some kinds a slice keeps all values, and is no smaller than the whole: then it is cut all
    the same, or refused for what it is."""
    monkeypatch.setattr(connection_module, "BATCH_BYTES_MAX", 4_096)
    monkeypatch.setattr(stages, "GUESS_BYTES_MAX", 0)
    unpriced.widen(2**24)
    connection = unpriced.open()
    batch = pa.record_batch([MANY[kind]], ["x"])
    try:
        connection.send(VnodeData("large", 7, batch))
    except ConfigurationError as error:
        assert kind in UNCUT
        assert "one row has" not in str(error), "that is not what is wrong"  # noqa: PT017
        return
    sent = [frame for frame in unpriced.link.frames if isinstance(frame, VnodeData)]
    parts = [frame.batch for frame in sent]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    assert all(pa.ipc.get_record_batch_size(part) <= 4_096 for part in parts)
    assert all((frame.stage, frame.vnode) == ("large", 7) for frame in sent)


def test_a_few_large_rows_after_many_small_ones_are_cut(unpriced: World) -> None:
    """What the rows before had does not tell."""
    unpriced.widen(2**28)
    connection = unpriced.open()
    texts = pa.array(["small"] * 1_000 + ["x" * 40_000_000] * 2)
    batch = pa.record_batch([texts], ["text"])
    for begin, rows in ((0, 1_000), (1_000, 2)):
        connection.send(VnodeData("s", 0, batch.slice(begin, rows)))
    sizes = [f.batch.num_rows for f in unpriced.link.frames if isinstance(f, VnodeData)]
    assert sizes == [1_000, 1, 1]


def test_estimates_that_are_always_too_low_do_no_harm(unpriced: World) -> None:
    """Dictionaries within lists are not counted; other stages share their connection."""
    connection = unpriced.open()
    words = pa.array([["word"]], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    nested = VnodeData("nested", 0, pa.record_batch([words], ["words"]))
    small = VnodeData("small", 0, pa.record_batch([pa.array(range(10))], ["n"]))
    connection.send(small)
    assert connection.settle([(unpriced.link.offered[-1][1], 2_000)])
    for _ in range(400):
        connection.send(nested)
        assert connection.settle([(unpriced.link.offered[-1][1], 20_000)])
        connection.on_frame(Credit(20_000, 0), None)
    connection.send(small)
    connection.send(VnodeData("small", 0, small.batch.slice(0, 0)))
    assert len(unpriced.link.frames) == 403


@pytest.mark.parametrize("encodes", [False, True])
def test_what_nobody_settles_is_not_guessed(unpriced: World, encodes: bool) -> None:
    unpriced.widen(2**20)
    unpriced.link.encodes = encodes
    connection = unpriced.open()
    batches = [
        pa.record_batch([pa.array([text])], ["text"]) for text in ("short", "short", "long" * 500)
    ]
    for batch in batches:
        connection.send(VnodeData("s", 0, batch))
    estimates = [estimate_bytes for _, estimate_bytes in unpriced.link.offered[2:]]
    exact = [pa.ipc.get_record_batch_size(batch) + FRAME_COST_BYTES for batch in batches[1:]]
    for estimate_bytes, exact_bytes in zip(estimates, exact, strict=True):
        assert estimate_bytes >= exact_bytes
        assert (estimate_bytes == exact_bytes) == (not encodes)
