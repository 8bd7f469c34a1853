"""Hashing keys and taking batches apart by target, on one core.

Ours goes the whole way of a document: the hash of its key, its vnode, the vnode's owner among four
members, and one batch per member with the vnodes beside the rows. Rows are 128 bytes: sixteen
numbers, or nine numbers and two texts.

The peer is the least that NumPy can do to bring rows of four targets together: the target is the
key modulo four (of a text, its last byte modulo four, which was looked up before), the rows are
sorted by it as bytes, which NumPy does by counting, and rows of 128 bytes, each in one piece, are
taken in that order and cut into four. It does not hash, keeps no vnodes, and knows no columns.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from bench.report import Line, compare
from penstock.routing import assign, split_by_target, vnodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock.routing import Assignment

ROWS: Final = (8_192, 65_536)
"""From a small batch to the largest frame of a journal."""
ROW_BYTES: Final = 128
TARGETS: Final = 4
CUSTOMERS: Final = 10_000


def run() -> Iterator[Line]:
    cores = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        yield from lines()
    finally:
        pa.set_cpu_count(cores)


def lines() -> Iterator[Line]:
    assignment = assign(range(1, TARGETS + 1))
    for rows in ROWS:
        pieces = np.random.default_rng(1).integers(0, 256, (rows, ROW_BYTES), np.uint8)
        customers = np.random.default_rng(2).integers(0, CUSTOMERS, rows)
        texts = pa.array([f"customer-{customer:015}" for customer in customers.tolist()])
        numbers = numeric_batch(customers)
        mixed = mixed_batch(customers, texts)
        last_digits = customers % 10 + ord("0")
        for name, batch, column, keys in (
            ("int64_key", numbers, 0, customers),
            ("int64_key_with_texts", mixed, 0, customers),
            ("text_key", mixed, mixed.num_columns - 1, last_digits),
        ):
            yield compare(
                f"routing.{name}_{rows // 1024}k",
                partial(route, batch, column, assignment),
                partial(bare_numpy, pieces, keys),
                rows,
                "rows/s",
            )


def numeric_batch(customers: NDArray[np.int64]) -> pa.RecordBatch:
    """128 bytes a row: a key and 15 other numbers."""
    others = [pa.array(customers * number) for number in range(2, 17)]
    return batch_of([pa.array(customers), *others])


def mixed_batch(customers: NDArray[np.int64], texts: pa.StringArray) -> pa.RecordBatch:
    """128 bytes a row: a key, 8 other numbers, and 2 texts of 24 bytes, with 4 bytes each for
    where they are."""
    others = [pa.array(customers * number) for number in range(2, 10)]
    return batch_of([pa.array(customers), *others, texts, texts])


def batch_of(columns: list[Any]) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(
        columns, [f"column {place}" for place in range(len(columns))]
    )
    if batch.nbytes // batch.num_rows != ROW_BYTES:
        raise AssertionError(f"rows have {batch.nbytes / batch.num_rows} bytes, not {ROW_BYTES}")
    return batch


def route(batch: pa.RecordBatch, key: int, assignment: Assignment) -> dict[int, pa.RecordBatch]:
    return split_by_target(batch, vnodes_of([batch.column(key)]), assignment)


def bare_numpy(pieces: NDArray[np.uint8], keys: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    targets = (keys % TARGETS).astype(np.uint8)
    together = pieces.take(np.argsort(targets, kind="stable"), axis=0)
    return np.split(together, np.cumsum(np.bincount(targets))[:-1])
