"""Keys spread evenly over vnodes, whatever pattern they follow. All data here is fixed."""

from __future__ import annotations

import itertools
import string
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.routing import VNODES, hash_keys

ROWS = 50_000
NUMBERS = np.arange(ROWS, dtype=np.int64)
LETTERS = string.ascii_lowercase
SECOND = 1_750_000_000

Key = list["pa.Array[Any]"]


def key(values: Any, kind: pa.DataType | None = None) -> Key:
    return [pa.array(values, kind)]


def strides() -> dict[str, Key]:
    """Numbers that differ in a few bits only, high or low."""
    return {
        f"int64 times 2**{bits}": key(NUMBERS << bits) for bits in (1, 4, 8, 16, 24, 32, 40, 47)
    }


KEYS: dict[str, Key] = {
    **strides(),
    "int64": key(NUMBERS),
    "negative int64": key(-NUMBERS),
    "int64 times 1000": key(NUMBERS * 1_000),
    "int64 times 255": key(NUMBERS * 255),
    "int64 times 257": key(NUMBERS * 257),
    "uint64 from the top": key(2**64 - 1 - NUMBERS.astype(np.uint64)),
    "float64": key(NUMBERS.astype(np.float64)),
    "float64 quarters": key(NUMBERS / 4),
    "decimal cents": [pa.array(NUMBERS).cast(pa.decimal128(19, 0)).cast(pa.decimal128(38, 2))],
    "seconds": key(NUMBERS + SECOND, pa.timestamp("s")),
    "minutes in us": key((NUMBERS * 60 + SECOND) * 1_000_000, pa.timestamp("us")),
    "days in ns": key((NUMBERS + 20_000) * 86_400 * 1_000_000_000, pa.timestamp("ns")),
    "dates": key(NUMBERS.astype(np.int32), pa.date32()),
    "three letters": key(["".join(three) for three in itertools.product(LETTERS, repeat=3)]),
    "numbers as text": key([str(number) for number in range(ROWS)]),
    "padded numbers": key([f"customer-{number:012}" for number in range(ROWS)]),
    "a differing first byte": key(
        [bytes([number % 256, number // 256]) + b"/abcdefgh" * 5 for number in range(ROWS)]
    ),
    "long texts": key([f"{number}/" + "x" * 150 for number in range(ROWS)]),
    "16 bytes": key([number.to_bytes(16, "big") for number in range(ROWS)], pa.binary(16)),
    "two numbers": [pa.array(NUMBERS % 223), pa.array(NUMBERS // 223)],
    "number and text": [pa.array(NUMBERS % 100), pa.array([f"v{n // 100}" for n in range(ROWS)])],
    "a null beside": [pa.nulls(ROWS, pa.string()), pa.array(NUMBERS)],
}


def unevenness(counts: np.ndarray[Any, np.dtype[np.intp]]) -> float:
    """How many standard deviations the chi-square of these counts lies above what is expected."""
    expected = counts.sum() / len(counts)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return float((chi_square - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("name", KEYS)
def test_vnodes_are_even(name: str) -> None:
    hashes = hash_keys(KEYS[name])
    assert len(np.unique(hashes)) == len(hashes)
    # A fair draw of so many lots lies above 4.5 about once in 100,000 times.
    assert unevenness(np.bincount((hashes % VNODES).astype(np.intp), minlength=VNODES)) < 4.5
    # Buckets of the batch reader are of any number; and the high bits must be as good.
    for buckets in (3, 7, 100, 1_000):
        counts = np.bincount((hashes % np.uint64(buckets)).astype(np.intp), minlength=buckets)
        assert unevenness(counts) < 4.5
    assert unevenness(np.bincount((hashes >> np.uint64(56)).astype(np.intp), minlength=256)) < 4.5


def test_unevenness_is_seen() -> None:
    assert unevenness(np.bincount(NUMBERS * 2 % 256, minlength=256)) > 1_000
    assert unevenness(np.bincount(np.where(NUMBERS % 50 == 0, 7, NUMBERS) % 256)) > 10


def test_powers_of_two_do_not_meet() -> None:
    powers = [1 << bit for bit in range(64)]
    both = [*powers, *(2**64 - power for power in powers)]
    hashes = hash_keys(key(sorted({*both}), pa.uint64()))
    assert len(np.unique(hashes)) == len(hashes)
    assert len(np.unique(hashes % VNODES)) > 75  # of 127 fair lots, 100 on average


def flips(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How often each of the 64 bits of the hash changed."""
    changed = (before ^ after).astype("<u8").view(np.uint8).reshape(-1, 8)
    rates: np.ndarray[Any, Any] = np.unpackbits(changed, axis=1, bitorder="little").mean(axis=0)
    return rates


@pytest.mark.parametrize("width", [8, 20, 128])
def test_one_bit_changes_half_of_the_bits(width: int) -> None:
    values = np.random.default_rng(7).integers(0, 256, (4_000, width), np.uint8)
    values[:1_000] //= 64  # also where most bits are zero
    before = hash_of_bytes(values)
    for bit in range(0, width * 8, 1 if width < 100 else 13):
        changed = values.copy()
        changed[:, bit // 8] ^= 1 << bit % 8
        rates = flips(before, hash_of_bytes(changed))
        # Of 4,000 fair coins, a share outside of 0.45 to 0.55 comes once in billions of times.
        assert rates.min() > 0.45
        assert rates.max() < 0.55


def hash_of_bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of eight bytes the hash as a number; of more, as bytes."""
    rows, width = values.shape
    if width == 8:
        return hash_keys([pa.array(values.view("<i8").ravel())])
    column = pa.Array.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(values.tobytes())])
    return hash_keys([column])
