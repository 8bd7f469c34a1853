"""Buckets of keys: every row in one of them, equal keys together, none far too full."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.journal import Collection
from penstock.routing import hash_keys
from penstock.spark.buckets import check_key, in_bucket


def buckets_of(columns: list[pa.Array[Any]], buckets: int) -> list[int]:
    masks = np.array([in_bucket(columns, bucket, buckets) for bucket in range(buckets)])
    assert (masks.sum(axis=0) == 1).all()
    return [int(bucket) for bucket in masks.argmax(axis=0)]


@given(
    st.lists(
        st.tuples(st.none() | st.text(max_size=4), st.none() | st.integers(-3, 3)), max_size=40
    ),
    st.integers(1, 5),
    st.integers(0, 5),
)
def test_equal_keys_share_a_bucket_wherever_they_stand(
    keys: list[tuple[str | None, int | None]], buckets: int, skip: int
) -> None:
    names: pa.Array[Any] = pa.array([name for name, _ in keys], pa.string())
    numbers: pa.Array[Any] = pa.array([number for _, number in keys], pa.int32())
    found = buckets_of([names, numbers], buckets)
    homes = dict(zip(keys, found, strict=True))
    assert found == [homes[key] for key in keys]
    # The same rows as a slice of a longer array, and the other way round.
    assert buckets_of([names[skip:], numbers[skip:]], buckets) == found[skip:]
    order = list(reversed(range(len(keys))))
    turned = [names.take(order), numbers.take(order)] if keys else [names, numbers]
    assert buckets_of(turned, buckets) == found[::-1]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(range(4000), pa.int64()),
        pa.array(range(-2000, 2000), pa.int16()),
        pa.array([f"customer-{number}" for number in range(4000)]),
        pa.array([number / 4 for number in range(4000)], pa.float64()),
        pa.array([number.to_bytes(2, "big") for number in range(4000)], pa.binary()),
        pa.array([decimal.Decimal(number) / 100 for number in range(4000)], pa.decimal128(10, 2)),
        pa.array([datetime.date.fromordinal(700_000 + number) for number in range(4000)]),
        pa.array(range(4000), pa.timestamp("us", tz="UTC")),
    ],
    ids=lambda values: str(values.type),
)
def test_buckets_are_even(values: pa.Array[Any]) -> None:
    counts = np.bincount(buckets_of([values], 8), minlength=8)
    assert counts.min() > 400
    assert counts.max() < 600


def test_booleans_and_nulls() -> None:
    values: pa.Array[Any] = pa.array([True, False, None, True, None])
    found = buckets_of([values], 1000)
    assert len(set(found)) == 3


def test_buckets_are_those_of_the_key_hash() -> None:
    values: pa.Array[Any] = pa.array(["a", None, "b", "c", "d"])
    for buckets in (1, 3, 256, 1024):
        hashes = hash_keys([values]) % np.uint64(buckets)
        assert buckets_of([values], buckets) == hashes.tolist()


def test_floating_point_keys_are_equal_as_numbers_are() -> None:
    values: pa.Array[Any] = pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.5, 1.5])
    first, second, third, fourth, fifth, sixth = buckets_of([values], 1000)
    assert (first, third, fifth) == (second, fourth, sixth)
    assert len({first, third, fifth}) == 3


def test_keys_are_plain_columns() -> None:
    spec = Collection.define("c", "id BIGINT, price DOUBLE, tags ARRAY<STRING>", "id")
    check_key(spec, ["id", "price"])
    for name, words in (
        ("size", "has no column 'size'; it has id, price, tags"),
        ("tags", "column 'tags': a key column cannot be of type list"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            check_key(spec, ["id", name])
