"""Rows into record batches and partitions: what other clients read of them, and where they put
the same keys."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_another

from penstock.journal.kafka.partitioning import murmur2, partitions_of
from penstock.journal.kafka.records.batches import HEADER, Partition
from penstock.journal.kafka.records.columns import decode
from penstock.journal.kafka.records.encoding import (
    CODECS,
    Compression,
    Rows,
    encoded_headers,
    record_batches,
    stamped,
)
from penstock.journal.kafka.records.gathering import HEADERS
from tests.unit.journal.kafka.record_bytes import read_by_another

NOW_MS = 1_790_000_000_000
moments = st.integers(0, 1 << 50)
short_bytes = st.one_of(st.none(), st.binary(max_size=70))
long_bytes = st.binary(min_size=1, max_size=70).map(lambda piece: piece * 300)
headers = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), short_bytes), max_size=3))
rows = st.lists(
    st.tuples(short_bytes, st.one_of(short_bytes, long_bytes), headers), min_size=1, max_size=12
)


def stored(batches: list[bytes]) -> bytes:
    """As a broker stores them: behind each other, with offsets."""
    data, offset = b"", 0
    for batch in batches:
        kept = stamped(batch, producer_id=7, producer_epoch=3, sequence=offset)
        kept[:8] = offset.to_bytes(8, "big")
        data += bytes(kept)
        offset += HEADER.unpack_from(batch)[-1]
    return data


@settings(max_examples=60, deadline=None)
@given(rows, st.sampled_from(sorted(CODECS)), st.data())
def test_what_was_encoded_is_read_by_another_client(
    drawn: list[Any], codec: Any, data: st.DataObject
) -> None:
    first = data.draw(st.integers(1, len(drawn)))
    counts = [first, len(drawn) - first] if first < len(drawn) else [first]
    keys, values, lists = (list(column) for column in zip(*drawn, strict=True))
    named = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in lists]
    numbers = pa.array([b"%d" % number for number in range(len(drawn))], pa.binary())
    times = data.draw(st.none() | st.lists(moments, min_size=len(drawn), max_size=len(drawn)))
    encoded = Rows(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        encoded_headers(pa.array(named, HEADERS), [("n", numbers)], len(drawn)),
        None if times is None else np.array(times, np.int64),
    )
    batches = record_batches(encoded, counts, NOW_MS, Compression(codec))
    made = stored(batches)
    expected = [
        (key, value, [*(one or ()), ("n", b"%d" % number)])
        for number, (key, value, one) in enumerate(drawn)
    ]
    ours = decode(Partition("t", 0), made, 0, with_headers=True)
    columns = (ours.rows.column(name).to_pylist() for name in ("key", "value", "headers"))
    assert [
        (key, value, [(each["key"], each["value"]) for each in found])
        for key, value, found in zip(*columns, strict=True)
    ] == expected
    others = read_by_another(made)
    assert [tuple(rest) for _, _, *rest in others] == expected
    assert [at for _, at, *_ in others] == (times or [NOW_MS] * len(drawn))
    assert ours.rows.column("timestamp_ms").to_pylist() == (times or [NOW_MS] * len(drawn))
    if codec == "none":
        for batch, most in zip(batches, np.split(encoded.sizes(), np.cumsum(counts)), strict=False):
            assert len(batch) <= most.sum() + HEADER.size


def test_lz4_has_blocks_that_do_not_refer_to_each_other() -> None:
    """Java's clients refuse others. A batch may be larger than a block."""
    values = pa.array([np.random.default_rng(1).bytes(1000), b"x" * 9_000_000], pa.binary())
    encoded = Rows(pa.nulls(2, pa.binary()), values)
    (batch,) = record_batches(encoded, [2], NOW_MS, Compression("lz4"))
    independent = 0x20
    assert batch[HEADER.size + 4] & independent
    found = [value for _, _, _, value, _ in read_by_another(stored([batch]))]
    assert found == values.to_pylist()


def test_the_hash_of_keys_is_kafkas() -> None:
    generator = np.random.default_rng(17)
    keys = [generator.bytes(int(size)) for size in generator.integers(0, 40, 500)]
    found = murmur2(pa.array([b"before", *keys])[1:])
    assert [int(each) for each in found] == [murmur2_of_another(key) & 0xFFFFFFFF for key in keys]


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_rows_without_a_key_go_everywhere(partitions: int) -> None:
    keys: list[bytes | None] = [None, b"a", None, None, b"a", None, None, None, None, None]
    found = partitions_of(pa.array(keys, pa.binary()), partitions, first=2)
    assert found[1] == found[4] == (murmur2_of_another(b"a") & 0x7FFFFFFF) % partitions
    without = [int(number) for number, key in zip(found, keys, strict=True) if key is None]
    assert set(without) == set(range(partitions))
    changes = sum(one != other for one, other in itertools.pairwise(without))
    assert changes == partitions - 1, "each partition has its rows in one run"
