"""Bytes of a fetch into columns: what another client reads of them, and nothing of damaged ones."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.journal.kafka.errors import CorruptRecordsError
from penstock.journal.kafka.records import compression
from penstock.journal.kafka.records.batches import HEADER, Partition
from penstock.journal.kafka.records.boundaries import _guessed, _walked
from penstock.journal.kafka.records.columns import (
    ABORT,
    COMMIT,
    NO_MARKER,
    Bytes,
    Decoded,
    _said,
    decode,
    decode_all,
)
from penstock.journal.kafka.records.varints import BYTES_MAX, signed
from tests.unit.journal.kafka.record_bytes import (
    CODECS,
    Row,
    batch_of,
    control_batch,
    read_by_another,
    read_slowly,
    varint,
    with_attributes,
    with_payload,
)

ORDERS = Partition("orders", 3)
OFFSET_BYTES = set(range(8))
"""Of a batch's first bytes: the base offset, which Kafka's checksum does not cover."""

short_bytes = st.one_of(st.none(), st.binary(max_size=70))
headers = st.lists(st.tuples(st.text(max_size=5), short_bytes), max_size=3).map(tuple)
rows_of_a_batch = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(0, 1 << 45), short_bytes,
        st.one_of(short_bytes, st.binary(min_size=1, max_size=70).map(lambda piece: piece * 120)),
        st.one_of(st.just(()), headers),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def rows_from(drawn: list[Any]) -> list[Row]:
    deltas = np.cumsum([gap for gap, *_ in drawn]) - drawn[0][0]
    return [Row(int(d), *rest) for d, (_, *rest) in zip(deltas, drawn, strict=True)]


def as_rows(decoded: Decoded) -> list[Any]:
    return [
        (
            row["offset"],
            row["timestamp_ms"],
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in decoded.rows.to_pylist()
    ]


@given(st.lists(st.tuples(rows_of_a_batch, st.sampled_from(list(CODECS.values()))), max_size=4))
@settings(deadline=None, max_examples=100)
def test_columns_are_what_another_client_reads(drawn: list[Any]) -> None:
    data, base = b"", 100
    for batch, codec in drawn:
        rows = rows_from(batch)
        data += batch_of(rows, base=base, codec=codec)
        base += rows[-1].delta + 1
    decoded = decode(ORDERS, data, 0, with_headers=True)
    assert as_rows(decoded) == read_by_another(data)
    assert decoded.next_offset == (base if drawn else 0)
    assert decode(ORDERS, data, 0).rows.equals(decoded.rows.drop_columns(["headers"]))


def json_rows(count: int, seed: int, *, header_every: int = 0) -> list[Row]:
    chance = random.Random(seed)
    return [
        Row(
            n,
            1_700_000_000_000 + n,
            b"k%d" % chance.randrange(9),
            json.dumps({"id": n, "text": "x" * chance.randrange(90)}).encode(),
            (("h", b"1"),) if header_every and n % header_every == 0 else (),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_many_rows_in_batches_small_and_large(codec: int) -> None:
    data, base = b"", 0
    for count in (1, 100, 10_000, 7, 10_000, 1_000):
        data += batch_of(json_rows(count, seed=count), base=base, codec=codec)
        base += count
    decoded = decode(ORDERS, data, 0, with_headers=True)
    assert as_rows(decoded) == read_by_another(data)
    assert decoded.batches.rows.tolist() == [1, 100, 10_000, 7, 10_000, 1_000]


@given(
    st.lists(
        st.lists(st.tuples(rows_of_a_batch, st.sampled_from(list(CODECS.values()))), max_size=3),
        max_size=4,
    ),
    st.integers(1, 5_000),
)
@settings(deadline=None, max_examples=60)
def test_a_little_at_a_time_of_many_partitions_is_all_of_each(
    drawn: list[Any], bytes_max: int
) -> None:
    """With a marker behind every batch: each comes once, behind the rows before it."""
    logs: dict[Partition, bytes] = {}
    for number, batches in enumerate(drawn):
        data, base = b"", 100
        for batch, codec in batches:
            rows = rows_from(batch)
            data += batch_of(rows, base=base, codec=codec)
            base += rows[-1].delta + 1
            data += control_batch(base=base, kind=COMMIT, producer=(7, 0), epoch=2)
            base += 1
        logs[Partition("orders", number)] = data
    begins = dict.fromkeys(logs, 0)
    came: dict[Partition, list[Any]] = {one: [] for one in logs}
    left = set(logs)
    while left:
        wanted = [Bytes(one, logs[one], begins[one], bytes_max) for one in sorted(left, key=str)]
        for one, decoded in zip(wanted, decode_all(wanted, with_headers=True), strict=True):
            if decoded.next_offset == one.begin:
                left.discard(one.partition)
                continue
            sizes = [len(row[2] or b"") + len(row[3] or b"") for row in as_rows(decoded)]
            assert sum(sizes[:-1]) < bytes_max, "one row may be more than there is room for"
            begins[one.partition] = decoded.next_offset
            came[one.partition] += as_rows(decoded)
            table = decoded.batches
            came[one.partition] += table.base_offset[table.marker == COMMIT].tolist()
            assert int(table.rows.sum()) == decoded.rows.num_rows
    for partition, data in logs.items():
        whole = decode(partition, data, 0, with_headers=True)
        markers = whole.batches.base_offset[whole.batches.marker == COMMIT].tolist()
        assert [row for row in came[partition] if isinstance(row, tuple)] == as_rows(whole)
        assert [row for row in came[partition] if isinstance(row, int)] == markers
        assert begins[partition] == whole.next_offset


def records_in(batch: bytes) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], int]:
    octets = np.frombuffer(batch[HEADER.size :] + bytes(BYTES_MAX), dtype=np.uint8)
    return octets, len(octets) - BYTES_MAX


def test_the_guess_finds_what_the_walk_finds_and_is_used_for_text() -> None:
    octets, size = records_in(batch_of(json_rows(500, seed=1)))
    guess = _guessed(octets, size, 500)
    assert guess is not None
    walk = _walked(octets, size, 500)
    assert all(np.array_equal(a, b) for a, b in zip(guess, walk, strict=True))


def test_the_guess_survives_values_full_of_zeros() -> None:
    chance = random.Random(5)
    rows = [Row(n, n, None, bytes(chance.choices((0, 1, 7, 60, 90), k=40))) for n in range(400)]
    octets, size = records_in(batch_of(rows))
    guess = _guessed(octets, size, 400)
    assert guess is not None
    walk = _walked(octets, size, 400)
    assert all(np.array_equal(a, b) for a, b in zip(guess, walk, strict=True))
    data = batch_of(rows, base=9)
    assert as_rows(decode(ORDERS, data, 0, with_headers=True)) == read_by_another(data)


def test_records_with_headers_among_others_are_walked() -> None:
    data = batch_of(json_rows(300, seed=2, header_every=3))
    octets, size = records_in(data)
    assert _guessed(octets, size, 300) is None
    assert as_rows(decode(ORDERS, data, 0, with_headers=True)) == read_by_another(data)


def test_what_a_batch_says_of_its_producer() -> None:
    data = (
        batch_of(json_rows(3, 1), base=5, producer=(77, 2, 30), is_transactional=True,
                 leader_epoch=4)
        + control_batch(base=8, kind=COMMIT, producer=(77, 2), epoch=6)
        + batch_of(json_rows(2, 2), base=9)
        + control_batch(base=20, kind=ABORT, producer=(78, 0), epoch=1)
    )  # fmt: skip
    decoded = decode(ORDERS, data, 0)
    table = decoded.batches
    assert table.base_offset.tolist() == [5, 8, 9, 20]
    assert table.last_offset.tolist() == [7, 8, 10, 20]
    assert table.rows.tolist() == [3, 0, 2, 0]
    assert table.leader_epoch.tolist() == [4, 0, 0, 0]
    assert table.producer_id.tolist() == [77, 77, -1, 78]
    assert table.producer_epoch.tolist() == [2, 2, -1, 0]
    assert table.base_sequence.tolist() == [30, -1, -1, -1]
    assert table.is_transactional.tolist() == [True, True, False, True]
    assert table.is_control.tolist() == [False, True, False, True]
    assert table.marker.tolist() == [NO_MARKER, COMMIT, NO_MARKER, ABORT]
    assert table.coordinator_epoch.tolist() == [-1, 6, -1, 1]
    assert decoded.rows["offset"].to_pylist() == [5, 6, 7, 9, 10]
    assert decoded.next_offset == 21


def test_what_markers_say_is_decoded_once_for_each_coordinator() -> None:
    """A transactional topic has one for every few rows, and each costs as much as many rows."""
    _said.cache_clear()
    kinds = [COMMIT, ABORT, COMMIT, COMMIT] * 50
    data = b"".join(
        control_batch(base=place, kind=kind, producer=(place, 1), epoch=3 + place // 100)
        for place, kind in enumerate(kinds)
    )
    for partition in (ORDERS, Partition("payments", 0)):
        table = decode(partition, data, 0).batches
        assert table.marker.tolist() == kinds
        assert table.coordinator_epoch.tolist() == [3] * 100 + [4] * 100
        assert table.producer_id.tolist() == list(range(200))
    assert _said.cache_info().misses == 4, "two kinds, by two coordinators"


def test_a_control_record_without_a_type_is_named_wherever_it_stands() -> None:
    record = b"\x0c\x00\x00\x00\x01\x01\x00"
    nameless = with_attributes(with_payload(record, 1), 0x30)
    for partition, base in ((ORDERS, 40), (Partition("payments", 7), 90)):
        at = struct.pack(">q", base) + nameless[8:]
        with pytest.raises(CorruptRecordsError, match="has no type") as raised:
            decode(partition, at, 0)
        error = raised.value
        assert (error.topic, error.partition, error.offset) == (
            partition.topic, partition.number, base,
        )  # fmt: skip


def test_a_read_begins_in_the_middle_of_a_batch() -> None:
    data = batch_of(json_rows(10, 1), base=0) + batch_of(json_rows(10, 2), base=10)
    decoded = decode(ORDERS, data, 13)
    assert decoded.rows["offset"].to_pylist() == list(range(13, 20))
    assert decoded.batches.base_offset.tolist() == [10]
    assert decoded.batches.rows.tolist() == [7]


def test_a_batch_that_the_broker_cut_off_comes_with_the_next_fetch() -> None:
    first, second = batch_of(json_rows(10, 1)), batch_of(json_rows(10, 2), base=10)
    for size in range(len(second)):
        decoded = decode(ORDERS, first + second[:size], 0)
        assert decoded.next_offset == 10
        assert decoded.rows.num_rows == 10


def test_the_time_of_append_is_the_batch_s() -> None:
    data = with_attributes(batch_of([Row(0, 50, None, b"a"), Row(1, 90, None, b"b")]), 0x08)
    decoded = decode(ORDERS, data, 0)
    assert decoded.rows["timestamp_ms"].to_pylist() == [90, 90]
    assert decoded.batches.has_append_time.tolist() == [True]


def test_every_flipped_byte_is_an_error_or_changes_nothing() -> None:
    first = batch_of(json_rows(4, 1), base=7, codec=CODECS["lz4"], producer=(9, 1, 0))
    second = batch_of(json_rows(3, 2), base=11)
    data = first + second
    whole = decode(ORDERS, data, 0, with_headers=True)
    for place in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= flip
            try:
                found = decode(ORDERS, bytes(damaged), 0, with_headers=True)
            except CorruptRecordsError as error:
                assert "orders-3 at offset " in str(error)  # noqa: PT017 - one of several ends
                continue
            in_batch = place if place < len(first) else place - len(first)
            rows = as_rows(found)
            if in_batch in OFFSET_BYTES:
                assert [row[1:] for row in rows] == [row[1:] for row in as_rows(whole)][: len(rows)]
            else:  # the leader epoch, or a length that makes the rest look cut off
                assert rows == as_rows(whole)[: len(rows)]
                assert len(rows) == 7 or in_batch in range(8, 12)


@given(st.binary(max_size=200), st.integers(0, 30), st.sampled_from(list(CODECS.values())))
@settings(deadline=None, max_examples=200)
def test_a_producer_that_writes_nonsense_under_a_right_checksum(
    payload: bytes, records: int, codec: int
) -> None:
    try:
        decode(ORDERS, with_payload(payload, records, base=40, codec=codec), 0, with_headers=True)
    except CorruptRecordsError as error:
        assert error.offset >= 40  # noqa: PT017 - decoding may as well succeed


@given(
    rows_of_a_batch,
    st.lists(
        st.tuples(st.integers(0, 1 << 16), st.sampled_from([1, 2, 0x7F, 0x80, 0xFF])), max_size=2
    ),
    st.sampled_from([0, 0, 0, -1, 1]),
)
@settings(deadline=None, max_examples=400)
def test_records_that_a_producer_garbled_are_what_a_slow_reader_reads(
    drawn: list[Any], flips: list[tuple[int, int]], miscount: int
) -> None:
    payload = bytearray(batch_of(rows_from(drawn))[HEADER.size :])
    for place, flip in flips:
        payload[place % min(len(payload), 300)] ^= flip
    count = max(len(drawn) + miscount, 1)
    try:
        expected = read_slowly(bytes(payload), count)
    except (ValueError, IndexError):
        with pytest.raises(CorruptRecordsError):
            decode(ORDERS, with_payload(bytes(payload), count), -(1 << 62), with_headers=True)
        return
    decoded = decode(ORDERS, with_payload(bytes(payload), count), -(1 << 62), with_headers=True)
    columns = decoded.rows.to_pydict()
    names = ("timestamp_ms", "offset", "key", "value")
    assert list(zip(*(columns[name] for name in names), strict=True)) == expected


def test_headers_that_a_record_does_not_count() -> None:
    payload = bytearray(batch_of([Row(0, 0, None, b"v", (("h", b"1"),))])[HEADER.size :])
    assert payload[-5:] == b"\x02\x02h\x021"  # one header: its name, its value
    payload[-5] = 0
    with pytest.raises(CorruptRecordsError, match="headers of a record are malformed"):
        decode(ORDERS, with_payload(bytes(payload), 1), 0, with_headers=True)


def test_records_do_not_reach_from_one_batch_into_the_next() -> None:
    first, second = (batch_of(json_rows(2, seed))[HEADER.size :] for seed in (1, 2))
    data = with_payload(first, 1) + with_payload(second, 3, base=10)
    with pytest.raises(CorruptRecordsError):
        decode(ORDERS, data, 0)


def test_a_wrong_guess_of_the_right_length_is_not_believed() -> None:
    """The value of the second record looks like a record that ends at the end; the first record has
    a header, so that the true beginning of the second is not guessed."""
    filler = b"x" * 20
    trap = b"\x00" + varint(len(filler) + 2) + b"\x00" + filler
    rows = [Row(0, 0, None, b"abcdefgh", (("h", b"1"),)), Row(1, 9, None, trap)]
    octets, size = records_in(batch_of(rows))
    assert _guessed(octets, size, 2) is None
    assert decode(ORDERS, batch_of(rows), 0).rows["value"].to_pylist() == [b"abcdefgh", trap]


@pytest.mark.parametrize("number", [0, -1, 63, -64, 64, 2**31, 2**62, -(2**63), 2**63 - 1])
def test_varints_of_all_sizes(number: int) -> None:
    octets = np.frombuffer(varint(number) + bytes(BYTES_MAX), dtype=np.uint8)
    values, behind = signed(octets, np.array([0]))
    assert (values.tolist(), behind.tolist()) == ([number], [len(varint(number))])


def test_a_packed_batch_cannot_claim_to_hold_more_than_it_does() -> None:
    batch = bytearray(batch_of(json_rows(10, 1), codec=CODECS["lz4"]))
    claimed = with_payload(bytes(batch[HEADER.size :]), 2**31 - 1, codec=CODECS["lz4"])
    with pytest.raises(CorruptRecordsError, match="claims to hold 2147483647 records"):
        decode(ORDERS, claimed, 0)


def test_a_small_batch_cannot_ask_for_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "UNPACKED_BYTES_MAX", 100_000)
    for codec in (1, 2, 3, 4):
        data = batch_of([Row(0, 0, None, bytes(200_000))], codec=codec)
        with pytest.raises(CorruptRecordsError, match="unpacks to more than 100000 bytes"):
            decode(ORDERS, data, 0)


def test_old_forms_are_refused_by_name() -> None:
    old = bytearray(batch_of(json_rows(1, 1), base=12))
    old[16] = 1
    with pytest.raises(CorruptRecordsError, match="orders-3 at offset 12: its records are in the "):
        decode(ORDERS, bytes(old), 0)
    with pytest.raises(CorruptRecordsError, match="in the form 1"):
        decode(ORDERS, bytes(old[:40]), 0)
