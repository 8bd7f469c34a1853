"""The sender's end: who waits for credit, who is woken, and that what is queued has room."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport import connection as connection_module
from penstock.transport import stages
from penstock.transport.connection import SendTimeoutError
from penstock.transport.credit import CONTROL_FRAMES_MAX, QUEUED_BYTES_MAX
from penstock.transport.frames import (
    Barrier,
    Credit,
    Flush,
    Flushed,
    Hello,
    VnodeData,
)
from penstock.transport.stages import BatchRefusedError, OutboundStages, StageEncoders
from penstock.transport.wire import encode
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
    monkeypatch.setattr(stages, "CUT_BYTES_MIN", 0)
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


def test_frames_are_settled_together(world: World) -> None:
    connection = world.open()
    for _ in range(3):
        connection.send(data(5_000))
    assert connection.credit_bytes == 25_000
    assert connection.settle([(5_000, 5_000), (5_000, 1_000), (5_000, 2_000)])
    assert connection.credit_bytes == 32_000
    connection.lose("the cable was cut")
    assert not connection.settle([(5_000, 5_000)])


def test_a_frame_that_costs_more_than_was_reserved_is_a_defect_and_said(world: World) -> None:
    """It never waits for credit: whatever is behind it would wait as well."""
    connection = world.open()
    connection.send(data(5_000))
    with pytest.raises(LocalProtocolError, match="costs 5001 bytes, and 5000 were reserved"):
        connection.settle([(5_000, 5_001)])


def test_whoever_is_first_has_reserved_room_for_the_schema(
    unpriced: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers wait for credit, and get it in another order than that in which they came."""
    connection = unpriced.open()
    filler = VnodeData("filler", 0, pa.record_batch([pa.array(range(3_600))], ["n"]))
    connection.send(filler)  # most of the window
    large = VnodeData("s", 0, pa.record_batch([pa.array(["x" * 9_000])], ["text"]))
    small = VnodeData("s", 0, pa.record_batch([pa.array(["x"])], ["text"]))
    with pytest.raises(SendTimeoutError):
        connection.send(large, 0)
    connection.send(small, 0)
    encoders = StageEncoders()
    for frame, estimate_bytes in unpriced.link.offered[1:]:
        assert isinstance(frame, VnodeData)
        assert encode(frame, encoders).cost_bytes <= estimate_bytes
    assert connection._stages.check("s", small.batch.schema).schema_queued, "it goes once"


def test_more_rows_than_a_frame_may_have_are_cut(
    unpriced: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of columns that take no bytes, say."""
    monkeypatch.setattr(connection_module, "BATCH_ROWS_MAX", 1_000)
    unpriced.widen(2**24)
    connection = unpriced.open()
    connection.send(VnodeData("s", 0, pa.record_batch([pa.nulls(3_500)], ["nothing"])))
    rows = [f.batch.num_rows for f in unpriced.link.frames if isinstance(f, VnodeData)]
    assert sum(rows) == 3_500
    assert max(rows) <= 1_000


def test_a_batch_that_cannot_be_encoded_is_refused_to_who_sends_it(unpriced: World) -> None:
    connection = unpriced.open()
    values: pa.Array[Any] = pa.array([1, 2])
    for _ in range(70):
        values = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    for column in (values, pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values)):
        with pytest.raises(BatchRefusedError, match="'deep' cannot be encoded"):
            connection.send(VnodeData("deep", 0, pa.record_batch([column], ["x"])))
        connection._stages = OutboundStages()  # the next one has another schema
    connection.send(Flush(1))
    assert world_is_whole(unpriced)


def world_is_whole(world: World) -> bool:
    return world.connection.alive and not world.lost and world.link.frames == [Flush(1)]
