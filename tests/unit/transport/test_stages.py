"""Stages: every batch comes back as it was, without copies, and nothing else does."""

from __future__ import annotations

import array
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport import stages
from penstock.transport.frames import STAGE_BYTES_MAX, VnodeData
from penstock.transport.stages import (
    OutboundStage,
    OutboundStages,
    SchemaChangedError,
    StageDecoders,
    StageEncoders,
    halves,
    has_dictionaries,
)
from tests.unit.transport.made_batches import batch_lists, one_of_each

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.transport.stages import Piece

EACH = one_of_each()
FLIPPED = ["text", "text view", "dictionary", "list view", "dense union", "runs"]
BATCH = pa.record_batch([pa.array(["a", None, "ccc"]), pa.array([1, 2, 3])], ["text", "number"])


def batch_of(column: pa.Array[Any]) -> pa.RecordBatch:
    return pa.record_batch([column], ["x"])


def joined(pieces: Iterable[Piece]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else piece.to_pybytes() for piece in pieces)


def encoded(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    """One stage's frames."""
    encoders = StageEncoders()
    return [joined(encoders.encode("s", batch)) for batch in batches]


def check_round_trip(batches: list[pa.RecordBatch]) -> None:
    decoders = StageDecoders()
    for batch, frame in zip(batches, encoded(batches), strict=True):
        decoded = decoders.decode("s", pa.py_buffer(frame))
        decoded.validate(full=True)
        assert decoded.schema.equals(batch.schema, check_metadata=True)
        assert decoded.equals(batch)
        assert len(frame) % 8 == 0, "the next frame's buffers are aligned, too"


@given(batch_lists())
def test_what_is_drawn_comes_back(batches: list[pa.RecordBatch]) -> None:
    check_round_trip(batches)


@pytest.mark.parametrize("kind", EACH)
def test_every_kind_comes_back(kind: str) -> None:
    batch = batch_of(EACH[kind])
    check_round_trip([batch, batch.slice(1, 2), batch.slice(2, 0), batch.slice(3), batch])


def test_batches_without_rows_or_columns_come_back() -> None:
    check_round_trip([BATCH.slice(3), BATCH, BATCH.slice(0, 0)])
    check_round_trip([pa.RecordBatch.from_arrays([], schema=pa.schema([]))] * 2)


@pytest.mark.parametrize("inside", [False, True])
def test_dictionaries_may_change(inside: bool) -> None:
    words = [["a", "b"], ["a", "b", "c"], ["z"], ["a", "b"], [], ["b", "a"]]
    columns = [pa.array(each, pa.string()).dictionary_encode() for each in words]
    batches = [
        batch_of(pa.StructArray.from_arrays([column], ["x"]) if inside else column)
        for column in columns
    ]
    check_round_trip(batches)


def test_stages_are_apart() -> None:
    other = batch_of(pa.array([1.5]))
    encoders, decoders = StageEncoders(), StageDecoders()
    for stage, batch in (("s", BATCH), ("t", other), ("t", other), ("s", BATCH)):
        frame = pa.py_buffer(joined(encoders.encode(stage, batch)))
        assert decoders.decode(stage, frame).equals(batch)


def messages_of(frame: bytes) -> list[str]:
    source = pa.BufferReader(frame)
    kinds = []
    while source.tell() < len(frame):
        kinds.append(pa.ipc.read_message(source).type)
    return kinds


def test_the_schema_is_sent_once() -> None:
    first, second = encoded([BATCH, BATCH])
    assert messages_of(first) == ["schema", "record batch"]
    assert messages_of(second) == ["record batch"]
    words = [pa.array(each).dictionary_encode() for each in (["a"], ["a"], ["b"])]
    first, second, third = encoded(map(batch_of, words))
    assert messages_of(first) == ["schema", "dictionary", "record batch"]
    assert messages_of(second) == ["record batch"]
    assert messages_of(third) == ["dictionary", "record batch"]


def buffers_of(batch: pa.RecordBatch) -> list[pa.Buffer]:
    return [
        buffer
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    ]


def test_nothing_is_copied_on_the_way_out() -> None:
    batch = pa.record_batch(
        [pa.array(range(1_000)), pa.array([f"word {n}" for n in range(1_000)])], ["n", "text"]
    )
    encoders = StageEncoders()
    for part in (batch, batch.slice(512)):
        pieces = encoders.encode("s", part)
        addresses = {piece.address for piece in pieces if not isinstance(piece, bytes)}
        numbers, texts = part.columns
        expected = {buffer.address + 8 * numbers.offset for buffer in numbers.buffers() if buffer}
        if not numbers.offset:  # offsets of text are counted anew in a slice
            expected |= {buffer.address for buffer in texts.buffers() if buffer}
        assert expected <= addresses
        copied = sum(len(piece) for piece in pieces if isinstance(piece, bytes))
        assert copied < 1_000, "headers only"


def test_nothing_is_copied_on_the_way_in() -> None:
    batch = pa.record_batch([pa.array(range(9_000)), pa.array(["word"] * 9_000)], ["n", "text"])
    decoders = StageDecoders()
    for frame in encoded([batch, batch]):
        body = pa.py_buffer(frame)
        buffers = buffers_of(decoders.decode("s", body))
        assert buffers
        for buffer in buffers:
            assert body.address <= buffer.address
            assert buffer.address + buffer.size <= body.address + body.size


def test_a_frame_s_memory_goes_with_its_batch() -> None:
    """Else every stage that falls quiet keeps a frame, which no window counts."""
    decoders = StageDecoders()
    for frame in encoded([BATCH, BATCH]):
        memory = array.array("B", frame)
        kept = weakref.ref(memory)
        batch = decoders.decode("s", pa.py_buffer(memoryview(memory)))
        del memory
        gc.collect()
        assert kept() is not None
        del batch
        gc.collect()
        assert kept() is None


def decoders_after(frames: Iterable[bytes]) -> StageDecoders:
    decoders = StageDecoders()
    for frame in frames:
        decoders.decode("s", pa.py_buffer(frame))
    return decoders


def refused(before: list[bytes], frame: bytes, match: str = "stage 's'") -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        decoders_after(before).decode("s", pa.py_buffer(frame))


@pytest.mark.parametrize("kind", ["text", "dictionary", "list view"])
def test_a_frame_cut_short_anywhere_is_refused(kind: str) -> None:
    first, second = encoded([batch_of(EACH[kind])] * 2)
    for size in range(len(first)):
        refused([], first[:size])
    for size in range(len(second)):
        refused([first], second[:size])


@pytest.mark.parametrize("kind", ["text", "dictionary"])
def test_a_frame_holds_one_batch(kind: str) -> None:
    batch = batch_of(EACH[kind])
    first, second = encoded([batch] * 2)
    for more in (b"\0", b"\0" * 8, b"\xff\xff\xff\xff\0\0\0\0", second, first):
        refused([], first + more)
        refused([first], second + more)
    refused([first], first)
    refused([], second)
    refused([], b"")
    refused([], b"\xff\xff\xff\xff\0\0\0\0")
    refused([first], b"\xff\xff\xff\xff\0\0\0\0")


@pytest.mark.parametrize("dictionary", [False, True])
def test_what_a_batch_takes_of_memory_is_what_its_frame_has(dictionary: bool) -> None:
    """A window counts frames. A compressed one would take a thousand times of it once decoded."""
    batch = batch_of(pa.array(np.zeros(100_000)))
    if dictionary:
        batch = batch.append_column("words", pa.array(["a"] * 100_000).dictionary_encode())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    writer = pa.ipc.new_stream(sink, batch.schema, options=options)
    writer.write_batch(batch)
    refused([], sink.getvalue().to_pybytes())


def test_an_offset_in_the_middle_is_checked() -> None:
    """Arrow reads wherever an offset points: the process would die of it."""
    offsets = np.array([0, 1, 2, 3], np.int32).tobytes()
    (frame,) = encoded([batch_of(pa.array(["a", "b", "c"]))])
    assert frame.count(offsets) == 1
    refused([], frame.replace(offsets, np.array([0, 2**31 - 8, 2, 3], np.int32).tobytes()))


@pytest.mark.slow
def test_a_flipped_bit_does_no_harm() -> None:
    """In a process of its own, so that a crash is a failure and not the end of the tests."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.unit.transport.flipped_bits", *FLIPPED],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == [f"{kind}: harmless" for kind in FLIPPED]


def test_a_message_is_halved_by_rows() -> None:
    message = VnodeData("s", 7, batch_of(pa.array(range(5))))
    first, second = halves(message)
    assert [(each.stage, each.vnode) for each in (first, second)] == [("s", 7)] * 2
    assert [each.batch.column(0).to_pylist() for each in (first, second)] == [[0, 1], [2, 3, 4]]
    with pytest.raises(ConfigurationError, match=r"one row has 5,\d\d\d bytes.*Store large values"):
        halves(VnodeData("s", 7, batch_of(pa.array(["x" * 5_000]))))


def frame_bytes_of(batch: pa.RecordBatch, later: bool) -> int:
    return len(encoded([batch, batch])[later])


@given(batch_lists())
def test_a_size_is_exact_or_too_large(batches: list[pa.RecordBatch]) -> None:
    """Exact, but for dictionaries and the first. Never too low: else frames would wait for credit
    that nobody reserved, and barriers behind them."""
    dictionaries = "dictionary" in str(batches[0].schema.types)
    assert has_dictionaries(batches[0].schema) == dictionaries
    stage = OutboundStage("s", batches[0].schema)
    assert stage.size(batches[0]) >= frame_bytes_of(batches[0], later=False)
    stage.schema_queued = True
    for batch in batches:
        frame_bytes = frame_bytes_of(batch, later=dictionaries is False)
        assert stage.size(batch) >= frame_bytes
        assert stage.size(batch, 2**30) >= frame_bytes, "a bound is none if it is too low"
        if not dictionaries:
            assert stage.size(batch) == frame_bytes


SHARED = pa.array([f"word {number}" for number in range(500)])
SHARING: dict[str, list[pa.Array[Any]]] = {
    "columns": [SHARED] * 40,
    "dictionaries": [
        pa.DictionaryArray.from_arrays(pa.array([number, 1], pa.int16()), SHARED)
        for number in range(40)
    ],
    "parts of structs": [pa.StructArray.from_arrays([SHARED] * 20, [str(n) for n in range(20)])],
    "dictionaries in lists": [
        pa.ListArray.from_arrays(
            pa.array([0, 2], pa.int32()),
            pa.DictionaryArray.from_arrays(pa.array([number, 1], pa.int16()), SHARED),
        )
        for number in range(40)
    ],
}


@pytest.mark.parametrize("kind", SHARING)
def test_memory_that_is_shared_is_counted_as_often_as_it_is_sent(kind: str) -> None:
    columns = SHARING[kind]
    batch = pa.record_batch(columns, [str(number) for number in range(len(columns))])
    assert batch.get_total_buffer_size() * 5 < frame_bytes_of(batch, later=False)
    stage = OutboundStage("s", batch.schema)
    assert stage.size(batch) >= frame_bytes_of(batch, later=False)
    stage.schema_queued = True
    assert stage.size(batch, 2**30) >= frame_bytes_of(batch, later=True)


def test_the_size_of_a_dictionary_is_counted_in() -> None:
    words = batch_of(pa.array([f"word {number}" for number in range(1_000)]).dictionary_encode())
    frame_bytes = frame_bytes_of(words, later=False)
    assert frame_bytes <= OutboundStage("s", words.schema).size(words) < 2 * frame_bytes


@pytest.mark.parametrize("kind", EACH)
def test_dictionaries_are_found_wherever_they_are(kind: str) -> None:
    schema = batch_of(EACH[kind]).schema
    assert has_dictionaries(schema) == ("dictionar" in kind)
    runs: Any = pa.run_end_encoded(pa.int32(), cast(Any, schema.types[0]))
    assert has_dictionaries(pa.schema([pa.field("r", runs)])) == ("dictionar" in kind)


def test_a_stage_keeps_its_schema() -> None:
    schemas = OutboundStages()
    schema = pa.schema([pa.field("n", pa.int64())])
    schemas.check("s", schema)
    schemas.check("s", pa.schema([pa.field("n", pa.int64())]))
    schemas.check("t", pa.schema([]))
    for changed in (
        pa.schema([pa.field("n", pa.int32())]),
        pa.schema([pa.field("m", pa.int64())]),
        pa.schema([pa.field("n", pa.int64(), nullable=False)]),
        pa.schema([pa.field("n", pa.int64())], metadata={"a": "b"}),
        pa.schema([]),
    ):
        with pytest.raises(SchemaChangedError, match=r"'s' changed its schema from \(n: int64\)"):
            schemas.check("s", changed)
    schemas.check("s", schema)
    wide = pa.schema([pa.field(f"column {number}", pa.int64()) for number in range(500)])
    with pytest.raises(SchemaChangedError) as caught:
        schemas.check("s", wide)
    assert len(str(caught.value)) < 500


def test_a_stage_s_name_is_measured_in_bytes() -> None:
    (frame,) = encoded([BATCH])
    for stage in ("s" * STAGE_BYTES_MAX, "ü" * (STAGE_BYTES_MAX // 2)):
        OutboundStages().check(stage, BATCH.schema)
        assert StageDecoders().decode(stage, pa.py_buffer(frame)).equals(BATCH)
    for stage in ("", "s" * (STAGE_BYTES_MAX + 1), "ü" * (STAGE_BYTES_MAX // 2 + 1)):
        with pytest.raises(LocalProtocolError, match=f"has {len(stage.encode())}"):
            OutboundStages().check(stage, BATCH.schema)


def test_a_stage_s_name_can_be_written() -> None:
    """Half of a surrogate pair is text in Python and nowhere else."""
    with pytest.raises(LocalProtocolError):
        OutboundStages().check("\ud800", BATCH.schema)


def test_stages_have_a_limit_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "STAGES_MAX", 8)
    schemas, decoders = OutboundStages(), StageDecoders()
    (frame,) = encoded([BATCH])
    for number in range(8):
        schemas.check(str(number), BATCH.schema)
        decoders.decode(str(number), pa.py_buffer(frame))
    schemas.check("0", BATCH.schema)
    with pytest.raises(LocalProtocolError, match="'more' is one more"):
        schemas.check("more", BATCH.schema)
    with pytest.raises(RemoteProtocolError, match="at most 8 stages"):
        decoders.decode("more", pa.py_buffer(frame))
