"""Frames: what is written comes back, and nothing that was altered does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checksum import checksum
from penstock.ids import Kind, Producer
from penstock.journal.frames import (
    FRAME_HEADER,
    FRAME_MAGIC,
    FRAME_PAYLOAD_BYTES_MAX,
    FRAME_PAYLOAD_BYTES_TARGET,
    FRAME_ROWS_MAX,
    KIND_ACK,
    KIND_DOCUMENTS,
    Ack,
    DamagedFrameError,
    FrameHeader,
    Payload,
    check_payload,
    decode_ack,
    decode_documents,
    decode_header,
    document_schema,
    encode_ack,
    encode_documents,
)
from penstock.sequence import Run

FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("text", pa.string()),
]
SCHEMA = pa.schema(FIELDS)
PRODUCER = Producer.from_hex("a10203040506")
CLOCK = 0x1B21DD2138140000


def clocks_of(count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.arange(CLOCK, CLOCK + 160 * count, 160, dtype=np.uint64)


def payloads_of(texts: list[str | None], kind: Kind = Kind.OUTSIDE) -> list[Payload]:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(len(texts)), pa.int64()), pa.array(texts, pa.string())], schema=SCHEMA
    )
    return list(encode_documents(1, batch, PRODUCER, clocks_of(len(texts)), kind))


def frame_of(payload: Payload, first_offset: int = 5) -> bytes:
    return payload.header(first_offset, 1_234) + payload.body.to_pybytes()


def read_frame(data: bytes) -> tuple[FrameHeader, pa.Buffer]:
    """A frame as a reader takes it: header, check, payload, check."""
    header = decode_header(data[: FRAME_HEADER.size])
    body = pa.py_buffer(data[FRAME_HEADER.size : header.frame_bytes])
    check_payload(header, body)
    return header, body


@given(
    st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=30),
    st.sampled_from(list(Kind)),
    st.integers(0, 2**63),
)
def test_documents_round_trip(texts: list[str | None], kind: Kind, offset: int) -> None:
    (payload,) = payloads_of(texts, kind)
    header, body = read_frame(frame_of(payload, offset))
    clocks = clocks_of(len(texts)).tolist()
    assert header == FrameHeader(
        kind=KIND_DOCUMENTS,
        row_kind=kind,
        schema_version=1,
        rows=len(texts),
        payload_bytes=payload.body.size,
        first_offset=offset,
        appended_us=1_234,
        producer=PRODUCER.int64,
        first_clock=clocks[0],
        last_clock=clocks[-1],
        payload_sum=payload.body_sum,
        goes_on=False,
        unsynced_bytes_max=None,
    )
    assert header.end_offset == offset + len(texts)
    assert header.frame_bytes == len(frame_of(payload)) == payload.frame_bytes
    batch = decode_documents(body, document_schema(SCHEMA))
    assert batch.column("_producer").to_pylist() == [PRODUCER.int64] * len(texts)
    assert batch.column("_clock").to_pylist() == clocks
    assert batch.column("_flags").to_pylist() == [int(kind)] * len(texts)
    assert batch.column("text").to_pylist() == texts
    assert batch.column("id").to_pylist() == list(range(len(texts)))


@given(
    st.binary(min_size=6, max_size=6),
    st.integers(0, 2**64 - 1),
    st.lists(st.text(max_size=40).filter(lambda t: "\0" not in t), max_size=20).map(tuple),
)
def test_acknowledgements_round_trip(raw: bytes, clock: int, hints: tuple[str, ...]) -> None:
    ack = Ack(Producer(raw), clock, hints)
    payload = encode_ack(3, ack)
    header, body = read_frame(frame_of(payload))
    assert (header.kind, header.rows, header.schema_version) == (KIND_ACK, 1, 3)
    assert decode_ack(header, body) == ack
    offset = header.first_offset
    assert header.run == Run(ack.producer.int64, Kind.ACK, clock, clock, offset, offset + 1)
    assert payload.body.size % 8 == 0


def test_an_acknowledgement_with_many_hints() -> None:
    hints = tuple(f"orders/region=%C3%BC/größe={n}/000" for n in range(1_023))
    payload = encode_ack(1, Ack(PRODUCER, CLOCK, hints))
    assert decode_ack(*read_frame(frame_of(payload))).hints == hints


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.sampled_from(list(Kind)))
def test_a_header_sums_up_only_what_is_a_run(clocks: list[int], kind: Kind) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"id": list(range(len(clocks))), "text": ["x"] * len(clocks)}, schema=SCHEMA
    )
    (payload,) = encode_documents(1, batch, PRODUCER, np.array(clocks, np.uint64), kind)
    header, _ = read_frame(frame_of(payload, 7))
    ascends = sorted(set(clocks)) == clocks and (kind is not Kind.ACK or len(clocks) == 1)
    run = Run(PRODUCER.int64, kind, clocks[0], clocks[-1], 7, 7 + len(clocks))
    assert header.run == (run if ascends else None)


FRAMES = [frame_of(payloads_of(["a", None, "ccc"])[0])] + [
    frame_of(encode_ack(1, Ack(PRODUCER, CLOCK, hints))) for hints in ((), ("other/000",))
]


@pytest.mark.parametrize("frame", FRAMES)
def test_any_changed_byte_is_refused(frame: bytes) -> None:
    for place in range(len(frame)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(frame)
            changed[place] ^= change
            with pytest.raises(DamagedFrameError):
                read_frame(bytes(changed))


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_cut_short_anywhere_is_refused(frame: bytes) -> None:
    for size in range(len(frame)):
        with pytest.raises(DamagedFrameError):
            read_frame(frame[:size])
    assert read_frame(frame)


def test_the_errors_say_what_was_wrong() -> None:
    frame = FRAMES[0]
    with pytest.raises(DamagedFrameError, match=r"no frame begins here .found b'XXXX'."):
        read_frame(b"XXXX" + frame[4:])
    with pytest.raises(DamagedFrameError, match="header's checksum"):
        read_frame(frame[:8] + b"\xff" + frame[9:])
    with pytest.raises(DamagedFrameError, match="the frame's checksum"):
        read_frame(frame[:-1] + b"\xff")
    with pytest.raises(DamagedFrameError, match=r"ends after \d+ of its \d+ bytes"):
        read_frame(frame[:-1])


def header_with(kind: int, payload_bytes: int) -> bytes:
    """A header whose checksum is right, whatever it says."""
    fields = (FRAME_MAGIC, kind, 0, 1, 1, payload_bytes, 0, 0, 0, 0, 0, 0)
    return FRAME_HEADER.pack(*fields, checksum(FRAME_HEADER.pack(*fields, 0)[:-8]))


def test_a_size_beyond_the_limit_is_refused_before_anything_is_read() -> None:
    largest = decode_header(header_with(KIND_DOCUMENTS, FRAME_PAYLOAD_BYTES_MAX))
    assert largest.payload_bytes == FRAME_PAYLOAD_BYTES_MAX
    for size in (FRAME_PAYLOAD_BYTES_MAX + 1, 2**32 - 1):
        with pytest.raises(DamagedFrameError, match=f"with {size} bytes cannot be"):
            decode_header(header_with(KIND_DOCUMENTS, size))
    for kind in (0, 3, 0x80):
        with pytest.raises(DamagedFrameError, match=f"kind {kind & 3}"):
            decode_header(header_with(kind, 8))


@given(st.none() | st.integers(0, 2**40))
def test_a_frame_tells_how_much_before_it_was_not_durable(unsynced: int | None) -> None:
    """Rounded up, by less than twice; too much to be told, and it does not tell."""
    (payload,) = payloads_of(["x"])
    header = decode_header(payload.header(0, 1, goes_on=True, unsynced_bytes=unsynced))
    assert header.goes_on
    assert header.kind == KIND_DOCUMENTS
    if unsynced is None or unsynced >= 2**30:
        assert header.unsynced_bytes_max is None
    else:
        assert header.unsynced_bytes_max is not None
        assert unsynced <= header.unsynced_bytes_max <= 2 * unsynced


def test_many_rows_are_split() -> None:
    count = FRAME_ROWS_MAX * 2 + 7
    payloads = payloads_of(["x"] * count)
    assert sum(payload.rows for payload in payloads) == count
    assert max(payload.rows for payload in payloads) <= FRAME_ROWS_MAX
    schema = document_schema(SCHEMA)
    found = [
        value
        for payload in payloads
        for value in decode_documents(payload.body, schema).column("id").to_pylist()
    ]
    assert found == list(range(count))


def test_large_rows_are_split_near_the_target() -> None:
    payloads = payloads_of(["x" * 100_000] * 200)
    assert len(payloads) >= 5
    assert all(payload.body.size <= FRAME_PAYLOAD_BYTES_TARGET * 1.1 for payload in payloads)
    assert sum(payload.rows for payload in payloads) == 200


@pytest.mark.slow
def test_rows_of_uneven_size_still_fit() -> None:
    """Many small rows and a few very large ones side by side: the average says nothing."""
    texts: list[str | None] = [*["s"] * 60_000, *["L" * 16_000_000] * 6]
    payloads = payloads_of(texts)
    assert all(payload.body.size <= FRAME_PAYLOAD_BYTES_MAX for payload in payloads)
    found = [
        len(value)
        for payload in payloads
        for value in decode_documents(payload.body, document_schema(SCHEMA)).column(4).to_pylist()
        if value is not None
    ]
    assert found == [1] * 60_000 + [16_000_000] * 6


def test_no_rows_make_no_frame() -> None:
    assert payloads_of([]) == []
