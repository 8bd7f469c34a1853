"""The bytes of blocks and segments: every one of them counts."""

from __future__ import annotations

import random
import struct
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checksum import checksum
from penstock.errors import CorruptStorageError, LocalProtocolError
from penstock.shuffle.queue.compress import compress
from penstock.shuffle.queue.errors import CorruptQueueError, QueueLostError
from penstock.shuffle.queue.groups import Identities, groups_of
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.segment import lsn_of, segment_path
from tests.unit.shuffle.queue.queues import (
    Entry,
    Rollback,
    Row,
    append,
    frontier,
    names_of,
    producer,
    read,
)

if TYPE_CHECKING:
    from pathlib import Path

FIRST = (0, "orders/000", producer(1))
SECOND = (1, "payments/000", producer(2))
ALL = {FIRST: 10**6, SECOND: 10**6}
ENTRIES: list[Entry] = [
    Row(*FIRST, 1, 1),
    Row(*SECOND, 1, 2, 2),
    Rollback(*FIRST, 0, 1),
    Row(*FIRST, 1, 3),
    Row(*SECOND, 2, 4, 2),
]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 3, 0xFFFF, 0x1_0000, 0xFFFF_FFFF]),
            st.integers(-3, 3).map(lambda number: number << 16),
            st.integers(1, 50),
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 0xFFFF_FFFF),
)
def test_groups_sum_rows_up(rows: list[tuple[int, int, int]], reads_from: int) -> None:
    rows = [(max(read_, reads_from), producer_, clock) for read_, producer_, clock in rows]
    reads, producers, clocks = (list(column) for column in zip(*rows, strict=True))
    columns = Identities(
        np.array(reads, np.uint32),
        np.array(producers, np.int64),
        np.array(clocks, np.uint64),
        np.array(clocks, np.uint64) + np.uint64(7),
    )
    expected = defaultdict(list)
    for read_, producer_, clock in rows:
        expected[read_, producer_].append(clock)
    assert groups_of(columns).tolist() == [
        (read_, len(clocks_), producer_, min(clocks_), max(clocks_) + 7)
        for (read_, producer_), clocks_ in sorted(expected.items())
    ]


def two_segments(folder: Path, *, compressed: bool) -> list[int]:
    """With a block each, of three parts in an order of their own."""
    entries = [entry for entry in ENTRIES if entry.source == FIRST] + [Row(*FIRST, 2, 5)]
    with QueueLog.open(folder, 0, segment_bytes_max=1) as log:
        lsns = [append(log, entries, None, [0, 0, 1, 0]) for _ in range(2)]
        log.sync()
        if compressed:
            compress(log, time.time() + 1, 0)
    return lsns


NOTHING, EVERYTHING = frontier({}), frontier(ALL)


def read_all(folder: Path, lsn: int) -> None:
    for _ in QueueReader(folder).read(NOTHING, EVERYTHING, lsn):
        pass


def test_the_bytes_are_those_of_the_docs(tmp_path: Path) -> None:
    """Read here by hand, as docs/format.md says."""
    with QueueLog.open(tmp_path, 0) as log:
        append(log, ENTRIES[:2], names_of(ENTRIES))
    data = segment_path(tmp_path, 1).read_bytes()
    floor = (tmp_path / "floor").read_bytes()
    generation = floor[16:24]
    fields = b"PSTKQFLR" + struct.pack("<II", 1, 0) + generation + struct.pack("<QQ", 1, 0)
    assert floor == fields + struct.pack("<Q", checksum(fields))
    fields = b"PSTKQSEG" + struct.pack("<II", 1, 0) + generation + struct.pack("<QQ", 1, 0)
    assert data[:48] == fields + struct.pack("<Q", checksum(fields))
    header = struct.unpack_from("<4sHHQIIIIIIIIQQQQ", data, 48)
    metadata_bytes, body_bytes = header[10], header[12]
    assert header[:10] == (b"PSQB", 0, 0, 1 << 16, 2, 2, 2, 2, 2, 0)
    assert header[11] == 0
    assert checksum(data[48 : 48 + 72]) == header[15]
    metadata = data[128 : 128 + metadata_bytes]
    assert checksum(metadata) == header[14]
    assert checksum(b"") == header[13]
    assert len(data) == 128 + metadata_bytes + body_bytes
    assert len(data) % 8 == metadata_bytes % 8 == 0
    position = 128 + metadata_bytes
    for number, (binding, version) in enumerate([(0, 1), (1, 2)]):
        part = struct.unpack_from("<IIIIQQ", metadata, 32 * number)
        assert part[:4] == (binding, version, 1, 1)
        assert checksum(data[position : position + part[4]]) == part[5]
        position += part[4]
    assert struct.unpack_from("<IIqQQ", metadata, 64) == (1, 1, FIRST[2], 1, 1)
    assert struct.unpack_from("<IIqQQ", metadata, 96) == (2, 1, SECOND[2], 1, 1)
    assert struct.unpack_from("<IIIIIIII", metadata, 128) == (1, 0, 10, 0, 2, 1, 12, 0)
    schemas = struct.unpack_from("<IIIIIIII", metadata, 160)
    assert (schemas[:2], schemas[4:6]) == ((0, 1), (1, 2))
    assert metadata[192:214] == b"orders/000payments/000"
    assert len(metadata) - (214 + schemas[2] + schemas[6]) in range(8)


@pytest.mark.parametrize("compressed", [False, True])
def test_every_flipped_byte_is_noticed(tmp_path: Path, compressed: bool) -> None:
    lsns = two_segments(tmp_path, compressed=compressed)
    chance = random.Random(0)
    for path in (segment_path(tmp_path, 1), tmp_path / "floor"):
        good = path.read_bytes()
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 1 << chance.randrange(8)
            path.write_bytes(bad)
            with pytest.raises((CorruptStorageError, LocalProtocolError)) as raised:
                read_all(tmp_path, lsns[0])
            assert str(tmp_path) in str(raised.value), "says where"
        path.write_bytes(good)
    assert len(read(QueueReader(tmp_path), {}, ALL, lsns[0])) == 2


@pytest.mark.parametrize("segment", [1, 2])
def test_a_file_that_ends_at_any_byte_is_noticed(tmp_path: Path, segment: int) -> None:
    folder = tmp_path / "queue"
    lsns = two_segments(folder, compressed=False)
    path = segment_path(folder, segment)
    good = path.read_bytes()
    for end in range(0, len(good), 8 if segment == 1 else 1):
        path.write_bytes(good[:end])
        with pytest.raises(CorruptQueueError) as raised:
            read_all(folder, lsns[-1])
        assert (raised.value.segment, raised.value.block) == (segment, 0)
        if end % 400 == 0:
            with pytest.raises(QueueLostError):
                QueueLog.open(folder, lsns[-1])
            assert path.stat().st_size == end, "what is lost is not made worse"
    if segment == 2:
        path.write_bytes(good[: len(good) // 2])
        with QueueLog.open(folder, lsns[0]):
            assert not path.exists(), "behind the cut nothing matters"
        assert len(read(QueueReader(folder), {}, ALL, lsns[0])) == 2


def test_a_damaged_block_is_named(tmp_path: Path) -> None:
    lsns = two_segments(tmp_path, compressed=False)
    path = segment_path(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert len(read(QueueReader(tmp_path), {}, ALL, lsns[0])) == 2, "the other one is whole"
    with pytest.raises(CorruptQueueError, match=r"2\.queue: block 0 .* remove this queue's folder"):
        read(QueueReader(tmp_path), {}, ALL, lsns[1])


def test_a_block_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    with QueueLog.open(tmp_path, 0) as log:
        for number in (1, 2, 3):
            append(log, [Row(*FIRST, number, number)])
    path = segment_path(tmp_path, 1)
    data = path.read_bytes()
    third = data.rindex(b"PSQB")
    second = data.rindex(b"PSQB", 0, third)
    path.write_bytes(data[:second] + data[third:] + data[second:third])
    with pytest.raises(CorruptQueueError, match="another one"):
        read(QueueReader(tmp_path), {}, ALL, lsn_of(1, 2))
