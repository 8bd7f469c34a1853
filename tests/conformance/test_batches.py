"""Batches of every size and type arrive as they were."""

from __future__ import annotations

import datetime
import decimal
import random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.transport import Barrier, Received, VnodeData
from penstock.transport.frames import BATCH_BYTES_MAX
from tests.conformance.batches import numbered, same
from tests.conformance.fabric import RECEIVING, over_tcp
from tests.conformance.raw import bytes_sender, hello_of
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024


class Celsius(pa.ExtensionType):
    """A type that Arrow does not know."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "penstock.tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"degrees"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Celsius:
        assert serialized == b"degrees"
        assert storage_type == pa.float64()
        return cls()


@pytest.fixture(autouse=True)
def celsius() -> Iterator[None]:
    pa.register_extension_type(cast(Any, Celsius()))
    yield
    pa.unregister_extension_type("penstock.tests.celsius")


def words(*values: str | None, indices: list[int | None], ordered: bool = False) -> pa.Array[Any]:
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int8()), pa.array(values, pa.string()), ordered=ordered
    )


_WORDS = words("one", "two", None, indices=[0, 2, None, 1, 0])
_NESTED_WORDS = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4, 5], pa.int32()), _WORDS)
_DAY = datetime.date(2026, 2, 28)
_TIME = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
_TYPES: list[tuple[Any, list[Any]]] = [
    (pa.null(), [None] * 5),
    (pa.bool_(), [True, False, None, True, True]),
    *[(kind, [0, 1, None, 127, 5]) for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.uint64())],
    (pa.int64(), [-(2**63), 2**63 - 1, None, 0, 1]),
    (pa.float16(), [np.float16(1.5), None, np.float16(0), np.float16(-2), np.float16(9)]),
    (pa.float32(), [1.5, None, -0.0, float("inf"), 3.0]),
    (pa.float64(), [1e300, None, 5e-324, float("-inf"), 0.1]),
    *[
        (kind(9, 2), [decimal.Decimal("1.50"), None, *map(decimal.Decimal, ("-9.99", "0", "12"))])
        for kind in (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)
    ],
    *[
        (kind, ["a", "", None, "a longer text than a view holds in place", "ä\N{SNOWMAN}"])
        for kind in (pa.string(), pa.large_string(), pa.string_view())
    ],
    *[
        (kind, [b"a", b"", None, b"\x00" * 40, b"\xff"])
        for kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    ],
    (pa.binary(3), [b"abc", None, b"\x00\x00\x00", b"xyz", b"123"]),
    *[(kind, [_DAY, None, _DAY, _DAY, _DAY]) for kind in (pa.date32(), pa.date64())],
    (pa.time32("ms"), [datetime.time(1, 2, 3), None, datetime.time(0), None, None]),
    (pa.time64("ns"), [1, None, 3, 4, 5]),
    *[(pa.timestamp(unit), [_TIME, None, _TIME, None, _TIME]) for unit in ("us", "ns")],
    (pa.timestamp("us", "Europe/Vienna"), [1, None, -1, 0, 5]),
    (pa.duration("ms"), [1, None, -1, 0, 5]),
    (pa.month_day_nano_interval(), [(1, 2, 3), None, (0, 0, 0), (-1, 0, 9), (1, 1, 1)]),
    *[
        (kind, [[1, None], [], None, [3], [4, 5, 6]])
        for kind in (
            pa.list_(pa.int32()),
            pa.large_list(pa.int64()),
            pa.list_view(pa.int16()),
            pa.large_list_view(pa.int8()),
        )
    ],
    (pa.list_(pa.int32(), 2), [[1, 2], None, [3, None], [4, 5], [6, 7]]),
    (pa.struct([("x", pa.int8()), ("y", pa.string())]), [{"x": 1, "y": "a"}, None, {}, {}, {}]),
    (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [], None, [("b", None)], [("c", 2)]]),
    (
        pa.list_(pa.struct([("deep", pa.list_(pa.map_(pa.string(), pa.list_(pa.int8()))))])),
        [[{"deep": [[("k", [1, 2])]]}], [], None, [None], [{"deep": None}]],
    ),
]
COLUMNS: dict[str, pa.Array[Any]] = {
    str(kind): pa.array(values, kind) for kind, values in _TYPES
} | {
    "dictionary": _WORDS,
    "dictionary, ordered": words("low", "high", indices=[0, 1, 0, None, 1], ordered=True),
    "dictionary in lists": _NESTED_WORDS,
    "dictionary in structs in lists": pa.ListArray.from_arrays(
        pa.array([0, 1, 1, 3, 4, 5], pa.int32()), pa.StructArray.from_arrays([_WORDS], ["word"])
    ),
    "dictionary of lists of dictionaries": pa.DictionaryArray.from_arrays(
        pa.array([4, 0, None, 1, 2], pa.int32()), _NESTED_WORDS
    ),
    "run ends": pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 4, 5], pa.int32()), pa.array(["a", None, "b"])
    ),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 1], pa.int8()),
        [pa.array([1, 2, 3, 4, None]), pa.array(["a", "b", "c", None, "e"])],
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 1], pa.int8()),
        pa.array([0, 0, 1, 1, 2], pa.int32()),
        [pa.array([1, None]), pa.array(["a", "b", "c"])],
    ),
    "extension": pa.ExtensionArray.from_storage(
        Celsius(), pa.array([1.5, None, -3.0, 0.0, 100.0], pa.float64())
    ),
    "extension of Arrow": pa.array([bytes([place] * 16) for place in range(5)], pa.binary(16)).cast(
        pa.uuid()
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_arrives_as_it_was(fabric: Fabric, name: str) -> None:
    """Whole, in slices, without rows, and the whole once more."""
    column = COLUMNS[name]
    metadata: dict[bytes | str, bytes | str] = {"about": "the column", "key\x00": "\N{SNOWMAN}"}
    field = pa.field("column", column.type, metadata={"unit": "none"})
    whole = pa.RecordBatch.from_arrays([column], schema=pa.schema([field], metadata=metadata))
    sent = [whole, whole.slice(1, 3), whole.slice(2, 0), whole.slice(3), whole.slice(0, 1), whole]
    receiver, sender = fabric.receiver(), fabric.sender()
    for batch in sent:
        sender.send(RECEIVING, VnodeData("stage", 5, batch), WAIT_SECONDS_MAX)
    for received, batch in zip(take(receiver, len(sent)), sent, strict=True):
        assert same(received.frame, VnodeData("stage", 5, batch))
        assert isinstance(received.frame, VnodeData)
        received.frame.batch.validate(full=True)


def test_dictionaries_may_change_from_batch_to_batch(fabric: Fabric) -> None:
    """Grow, shrink, turn around, and come back; alone and within lists."""
    texts: list[list[str | None]] = [
        ["a"],
        ["a", "b"],
        ["b", "a"],
        ["x", None, "y"],
        ["a"],
        [],
        ["a", "b", "c"],
    ]
    batches = []
    for values in texts:
        rows: list[int | None] = [place % len(values) if values else None for place in range(4)]
        column = words(*values, indices=rows)
        nested = pa.ListArray.from_arrays(pa.array([0, 1, 1, 2, 4], pa.int32()), column)
        batches += [pa.RecordBatch.from_arrays([column, nested], ["plain", "nested"])] * 2
    receiver, sender = fabric.receiver(), fabric.sender()
    for number, batch in enumerate(batches):
        sender.send(RECEIVING, VnodeData("words", 0, batch), WAIT_SECONDS_MAX)
        sender.send(RECEIVING, numbered(number, stage="between"), WAIT_SECONDS_MAX)
    taken = take(receiver, 2 * len(batches))
    # All at the end: a later dictionary must not change an earlier batch.
    for received, batch in zip(taken[::2], batches, strict=True):
        assert same(received.frame, VnodeData("words", 0, batch))
        assert isinstance(received.frame, VnodeData)
        assert received.frame.batch.to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("columns", [0, 1, 300])
def test_any_number_of_columns(fabric: Fabric, columns: int) -> None:
    names = [f"column {place}" for place in range(columns)]
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])] * columns, names)
    receiver, sender = fabric.receiver(), fabric.sender()
    for _ in range(3):
        sender.send(RECEIVING, VnodeData("stage", 0, batch), WAIT_SECONDS_MAX)
    assert all(same(each.frame, VnodeData("stage", 0, batch)) for each in take(receiver, 3))


def test_every_size_arrives_and_stays_as_it_was(fabric: Fabric) -> None:
    """Around the sizes at which memory is handed out differently. What was taken is kept while
    more arrives, and looked at in the end: nothing may be written over."""
    edges = [64 * 1024, 192 * 1024, 512 * 1024, 2 * MEBIBYTE]
    sizes = [0, 1, 7, 8, 9, 1000, *(edge + more for edge in edges for more in (-2000, -9, 0, 300))]
    receiver, sender = fabric.receiver(inbound_bytes_max=256 * MEBIBYTE), fabric.sender()
    sent = [numbered(number, pad_bytes=size) for number, size in enumerate(sizes * 3)]

    def send_all() -> None:
        for message in sent:
            sender.send(RECEIVING, message, WAIT_SECONDS_MAX)

    sending = Background(send_all, "sending batches of all sizes")
    kept: list[tuple[Received, VnodeData]] = []
    for place, message in enumerate(sent):
        (received,) = take(receiver)
        if place % 3:  # the memory of the others may be used again
            kept.append((received, message))
    sending.result()
    for received, message in kept:
        assert same(received.frame, message)


@over_tcp  # which cuts frames as it likes; gRPC hands over whole messages
@pytest.mark.parametrize("seed", range(4))
def test_bytes_may_come_in_any_portions(fabric: Fabric, seed: int) -> None:
    """One by one, many frames at once, and every frame of a size at which reading changes."""
    choose = random.Random(seed)
    sizes = [0, 0, 10, 3000, 60_000, 66_000, 150_000, 190_000, 200_000, 300_000, 600_000]
    sent = [numbered(n, pad_bytes=choose.choice(sizes)) for n in range(60)]
    receiver = fabric.receiver(inbound_bytes_max=16 * 64 * MEBIBYTE)
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    stream = memoryview(b"".join(peer.encode(message) for message in sent))

    def say_all() -> None:
        said = 0
        while said < len(stream):
            count = choose.choice((1, 7, 16, 5000, 100_000, 500_000, 5_000_000))
            peer.say_bytes(bytes(stream[said : said + count]))
            said += count

    saying = Background(say_all, "saying bytes in portions")
    for received, message in zip(take(receiver, len(sent)), sent, strict=True):
        assert same(received.frame, message)
    saying.result()


def test_the_smallest_batch(fabric: Fabric) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([7], pa.int8())], ["n"])
    receiver, sender = fabric.receiver(), fabric.sender()
    for _ in range(100):
        sender.send(RECEIVING, VnodeData("s", 0, batch))
    assert all(same(each.frame, VnodeData("s", 0, batch)) for each in take(receiver, 100))


@pytest.mark.parametrize("mebibytes", [64, 150])
def test_the_largest_batches(fabric: Fabric, mebibytes: int) -> None:
    """Up to the limit in one piece; above it cut by rows, in order."""
    rows = mebibytes * MEBIBYTE // 8 - 200
    column = pa.array(np.random.default_rng(mebibytes).integers(0, 2**62, rows))
    batch = pa.RecordBatch.from_arrays([column], ["number"])
    receiver, sender = fabric.receiver(inbound_bytes_max=16 * BATCH_BYTES_MAX), fabric.sender()
    sending = Background(
        lambda: sender.send(RECEIVING, VnodeData("large", 3, batch), WAIT_SECONDS_MAX)
    )
    parts: list[pa.RecordBatch] = []
    while sum(part.num_rows for part in parts) < rows:
        frame = take(receiver)[0].frame
        assert isinstance(frame, VnodeData)
        assert frame.vnode == 3
        assert pa.ipc.get_record_batch_size(frame.batch) <= BATCH_BYTES_MAX
        parts.append(frame.batch)
    sending.result()
    assert (len(parts) == 1) == (mebibytes == 64)
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))


def test_sizes_may_change_within_a_stage(fabric: Fabric) -> None:
    """Small batches do not tell how large the next one is: it is cut or refused as any other."""
    receiver = fabric.receiver(inbound_bytes_max=16 * BATCH_BYTES_MAX)
    sender = fabric.sender()
    for number in range(3):
        sender.send(RECEIVING, numbered(number))
    take(receiver, 3)
    pad = pa.array([b"x" * (40 * MEBIBYTE)] * 2, pa.binary())
    names = ["number", "pad"]
    two_rows = pa.RecordBatch.from_arrays([pa.array([3, 4]), pad], names)
    sending = Background(
        lambda: sender.send(RECEIVING, VnodeData("orders", 0, two_rows), WAIT_SECONDS_MAX)
    )
    rows = [row for part in take(receiver, 2) for row in _rows(part)]
    sending.result()
    assert rows == [3, 4]
    large = pa.array([b"x" * (BATCH_BYTES_MAX + 1)], pa.binary())
    one_row = pa.RecordBatch.from_arrays([pa.array([5]), large], names)
    with pytest.raises(ConfigurationError, match="one row has"):
        sender.send(RECEIVING, VnodeData("orders", 0, one_row))
    sender.send(RECEIVING, numbered(6))
    assert [row for part in take(receiver) for row in _rows(part)] == [6]
    assert sender.losses() == []


def _rows(received: Received) -> list[object]:
    assert isinstance(received.frame, VnodeData)
    return list(received.frame.batch.column(0).to_pylist())


def test_a_row_that_is_too_large_is_refused(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    large = pa.array([b"x" * (BATCH_BYTES_MAX + 1)], pa.large_binary())
    batch = pa.RecordBatch.from_arrays([large], ["pad"])
    sender.send(RECEIVING, Barrier(1, 1))
    with pytest.raises(ConfigurationError, match="one row has"):
        sender.send(RECEIVING, VnodeData("large", 0, batch))
    sender.send(RECEIVING, Barrier(2, 1))  # the connection is none the worse for it
    assert [each.frame for each in take(receiver, 2)] == [Barrier(1, 1), Barrier(2, 1)]
    assert sender.losses() == []


def test_a_batch_larger_than_the_window_waits_for_its_turn(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()

    def send_all() -> None:
        for number in range(4):
            sender.send(RECEIVING, numbered(number, pad_bytes=5 * MEBIBYTE), WAIT_SECONDS_MAX)

    sending = Background(send_all, "sending batches larger than the window")
    for number in range(4):
        assert same(take(receiver)[0].frame, numbered(number, pad_bytes=5 * MEBIBYTE))
    sending.result()
