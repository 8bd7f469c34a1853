"""Entries of the transaction log, built by hand as Kafka's own description of them has it."""

from __future__ import annotations

import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal.kafka.transaction_log import (
    Entry,
    Status,
    Tombstone,
    UnknownEntryError,
    entry,
)

ID = "transfers-1"
KEY = struct.pack(">hh", 0, len(ID)) + ID.encode()
FIXED = struct.pack(">qhib", 4711, 3, 60_000, 2)
TIMES = struct.pack(">qq", 2_000, 1_000)


def value_0() -> bytes:
    partitions = struct.pack(">ih", 1, 6) + b"orders" + struct.pack(">iii", 2, 5, 7)
    return struct.pack(">h", 0) + FIXED + partitions + TIMES


def value_1() -> bytes:
    partitions = b"\x02\x07orders\x03" + struct.pack(">ii", 5, 7) + b"\x00"
    tags = (
        b"\x04"
        + b"\x00\x08" + struct.pack(">q", 4710)
        + b"\x01\x08" + struct.pack(">q", -1)
        + b"\x02\x02" + struct.pack(">h", 2)
        + b"\x03\x02" + struct.pack(">h", 4)
    )  # fmt: skip
    return struct.pack(">h", 1) + FIXED + partitions + TIMES + tags


PLAIN = Entry(
    log_partition=8,
    offset=90,
    transactional_id=ID,
    producer_id=4711,
    epoch=3,
    status=Status.PREPARE_COMMIT,
    partitions=(("orders", 5), ("orders", 7)),
    timeout_ms=60_000,
    updated_ms=2_000,
    started_ms=1_000,
)


def test_the_plain_form() -> None:
    assert entry(8, 90, KEY, value_0()) == PLAIN


def test_the_flexible_form() -> None:
    found = entry(8, 90, KEY, value_1())
    assert isinstance(found, Entry)
    assert found.partitions == PLAIN.partitions
    assert (found.previous_producer_id, found.next_producer_id) == (4710, None)
    assert (found.client_version, found.next_epoch) == (2, 4)


@pytest.mark.parametrize("partitions", [struct.pack(">i", -1), struct.pack(">i", 0)])
def test_no_partitions(partitions: bytes) -> None:
    times = struct.pack(">qq", 2_000, -1)
    found = entry(8, 90, KEY, struct.pack(">h", 0) + FIXED + partitions + times)
    assert isinstance(found, Entry)
    assert (found.partitions, found.started_ms) == ((), None)


def test_a_tombstone() -> None:
    assert entry(8, 90, KEY, None) == Tombstone(8, 90, ID)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (struct.pack(">h", 1) + KEY[2:], value_0()),
        (KEY, struct.pack(">h", 2) + value_1()[2:]),
        (KEY, value_0()[:16] + b"\x63" + value_0()[17:]),  # a status that there is not
    ],
)
def test_what_a_newer_kafka_may_write_is_refused_by_name(
    key: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(UnknownEntryError, match="__transaction_state-8 at offset 90") as unknown:
        entry(8, 90, key, value)
    assert str(pickle.loads(pickle.dumps(unknown.value))) == str(unknown.value)


@pytest.mark.parametrize("value", [value_0(), value_1()])
def test_every_cut_is_an_error(value: bytes) -> None:
    for size in range(len(value)):
        with pytest.raises(UnknownEntryError):
            entry(8, 90, KEY, value[:size])


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_anything_else_is_an_entry_or_an_error(key: bytes, value: bytes) -> None:
    for each in (key, KEY):
        for content in (value, value_1()[:17] + value):
            try:
                entry(8, 90, each, content)
            except UnknownEntryError:
                continue
