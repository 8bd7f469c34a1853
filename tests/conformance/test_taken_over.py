"""Members that were taken over: their certificates and sums are right, and their batches are made
to crash whoever looks at them, or to take far more memory than they have bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.transport.frames import BATCH_ROWS_MAX, VnodeData
from tests.conformance.batches import numbered
from tests.conformance.bystander import Bystander
from tests.conformance.fabric import over_bytes
from tests.conformance.raw import bytes_sender, hello_of
from tests.conformance.waiting import take

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.fabric import Fabric

pytestmark = [pytest.mark.slow, over_bytes]
"""Within a process nothing is decoded, and whoever is in it needs no batch to harm it."""

ROWS = 1_000
WORDS = pa.array([f"word {number:04}" for number in range(ROWS)])


def stream_of(batch: pa.RecordBatch, **options: Any) -> bytearray:
    """A stage's first frame: the schema and one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytearray(sink.getvalue().to_pybytes()[:-8])


def batch_of(column: pa.Array[Any]) -> pa.RecordBatch:
    return pa.record_batch([column], ["x"])


def overwritten(column: pa.Array[Any], buffer: int, values: np.ndarray[Any, Any]) -> bytearray:
    """A column whose buffer of this number is changed after it was encoded."""
    stream = stream_of(batch_of(column))
    before = column.buffers()[buffer]
    assert before is not None
    place = stream.index(before.to_pybytes()[:64])
    stream[place : place + values.nbytes] = values.tobytes()
    return stream


def wild_offsets() -> bytearray:
    offsets = np.arange(0, 9 * ROWS, 9, dtype=np.int32)
    offsets[400:] = 0x7FFFFF00
    return overwritten(WORDS, 1, offsets)


def falling_offsets() -> bytearray:
    offsets = np.arange(0, 9 * ROWS, 9, dtype=np.int32)
    offsets[300:400] = offsets[300:400][::-1]
    return overwritten(WORDS, 1, offsets)


def wild_dictionary_indices() -> bytearray:
    column = pa.DictionaryArray.from_arrays(pa.array(range(ROWS), pa.int32()), WORDS)
    return overwritten(column, 1, np.full(ROWS, 2**30, np.int32))


def wild_views() -> bytearray:
    words = pa.array([f"a word that is too long to be inline {n:05}" for n in range(ROWS)])
    column = words.cast(pa.string_view())
    views = np.frombuffer(memoryview(column.buffers()[1]), np.int32).copy()  # type: ignore[arg-type]
    views[3::4] = 2**30
    return overwritten(column, 1, views)


def wild_lists() -> bytearray:
    column = pa.array([[number, number] for number in range(ROWS)])
    return overwritten(column, 1, np.arange(0, 2**31 - 1, 2**31 // ROWS, dtype=np.int32)[:ROWS])


def compressed(codec: str) -> bytearray:
    return stream_of(batch_of(pa.array(np.zeros(2**20, np.int64))), compression=codec)


def compressed_dictionary() -> bytearray:
    column = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * 2**20]))
    return stream_of(batch_of(column), compression="zstd")


def a_dictionary_in_pieces() -> bytearray:
    sink = pa.BufferOutputStream()
    first, second = (
        batch_of(pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(words)))
        for words in (["a"], ["a", "b"])
    )
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, first.schema, options=options) as writer:
        writer.write_batch(first)
        begin = sink.tell()
        writer.write_batch(second)
    stream = sink.getvalue().to_pybytes()
    schema = first.schema.serialize().size
    return bytearray(stream[:schema] + stream[begin:-8])


def rows_without_bytes() -> bytearray:
    return stream_of(batch_of(pa.nulls(BATCH_ROWS_MAX + 1)))


def values_without_bytes() -> bytearray:
    """Of a column within one: a list of so many nulls."""
    count = 2**30
    column = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count))
    return stream_of(batch_of(column))


def columns_that_share_their_buffer() -> bytearray:
    """Found by its offset in the body, and set to that of the first column."""
    columns = [pa.array(np.full(ROWS, number)) for number in range(20)]
    stream = stream_of(pa.record_batch(columns, [str(number) for number in range(20)]))
    places = [
        stream.index(np.array([8 * ROWS * number, 8 * ROWS], np.int64).tobytes())
        for number in range(1, 20)
    ]
    for place in places:
        stream[place : place + 8] = bytes(8)
    del stream[-8 * ROWS * 19 :]
    body_bytes = np.array([8 * ROWS * 20], np.int64).tobytes()
    place = stream.index(body_bytes)
    stream[place : place + 8] = np.array([8 * ROWS], np.int64).tobytes()
    return stream


HARMFUL: dict[str, Callable[[], bytearray]] = {
    "offsets beyond the end": wild_offsets,
    "offsets that fall": falling_offsets,
    "indices beyond a dictionary": wild_dictionary_indices,
    "views beyond the end": wild_views,
    "lists beyond the end": wild_lists,
    "compressed by zstd": lambda: compressed("zstd"),
    "compressed by lz4": lambda: compressed("lz4"),
    "a compressed dictionary": compressed_dictionary,
    "a dictionary in pieces": a_dictionary_in_pieces,
    "rows without bytes": rows_without_bytes,
    "values without bytes": values_without_bytes,
    "columns that share their buffer": columns_that_share_their_buffer,
}


WHY = {
    "compressed by zstd": "it is compressed",
    "compressed by lz4": "it is compressed",
    "a compressed dictionary": "it is compressed",
    "a dictionary in pieces": "it adds to a dictionary",
    "rows without bytes": "rows; a frame has at most",
    "values without bytes": "values; a frame has room for",
    "columns that share their buffer": "its buffers have",
}
"""What the metadata tells, before Arrow allocates anything. Arrow itself finds fault with some of
these too, later."""


@pytest.mark.parametrize("what", HARMFUL)
@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
def test_a_harmful_batch_is_refused_and_harms_nobody(
    fabric: Fabric, what: str, later: bool
) -> None:
    """As a stage's first frame, and behind a good one, where the schema is known."""
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    stream = bytes(HARMFUL[what]())
    before = pa.total_allocated_bytes()
    if later:
        schema = pa.ipc.open_stream(stream + b"\xff\xff\xff\xff\0\0\0\0").schema
        peer.say(VnodeData("s", 0, _empty(schema)))
        take(receiver)
        stream = stream[schema.serialize().size :]
    peer.say_stage("s", stream)
    close = peer.hear_close()
    assert close.fault
    assert "not a record batch of this stage" in close.reason
    assert WHY.get(what, "") in close.reason
    assert [each.frame for each in take(receiver)] == [close]
    assert pa.total_allocated_bytes() - before < 2**22
    bystander.check()
    peer.cut()


def test_dictionaries_that_are_kept_have_a_limit(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept for the frames that follow, when their own credit was given back long ago."""
    monkeypatch.setattr("penstock.transport.stages.DICTIONARIES_BYTES_MAX", 10_000)
    receiver = fabric.receiver()
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    words = pa.array(["x" * 3_000])
    for letter in ("a", "b", "a"):  # the third takes the place of the first
        column = pa.DictionaryArray.from_arrays(pa.array([0]), words)
        words = pa.array([letter * 3_000])
        peer.say(VnodeData(letter, 0, batch_of(column)))
        take(receiver)
    for letter in ("c", "d"):
        column = pa.DictionaryArray.from_arrays(pa.array([0]), words)
        peer.say(VnodeData(letter, 0, batch_of(column)))
    assert "dictionaries have at most 10,000 bytes" in peer.hear_close().reason


def test_a_good_batch_may_be_of_any_kind(fabric: Fabric) -> None:
    """What is refused above is refused for what is wrong with it."""
    receiver, sender = fabric.receiver(), fabric.sender()
    columns = [
        WORDS,
        WORDS.cast(pa.string_view()),
        WORDS.dictionary_encode(),
        pa.nulls(ROWS),
        pa.array([[None]] * ROWS, pa.list_(pa.null())),
    ]
    batch = pa.record_batch(columns, [str(number) for number in range(len(columns))])
    for _ in range(2):
        sender.send(2, VnodeData("all", 0, batch))
        (received,) = take(receiver)
        assert isinstance(received.frame, VnodeData)
        assert received.frame.batch.equals(batch)
    sender.send(2, numbered(1))
    take(receiver)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
